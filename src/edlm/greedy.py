"""Whether a text is what a model would write if it always took the most likely token, from left to right.

A denoiser has no order of its own. Here it reads what is given, the tokens so far, and masks for the rest of the text.
An energy takes no part. Checking stops at the first token that is another.
"""

import torch
from torch import Tensor

from edlm.generation import Model
from edlm.models.autoregressive import Autoregressive
from edlm.models.masked_lm import AnyDenoiser
from edlm.models.transformer import Cache
from edlm.text_score import Pair, cut


@torch.no_grad()
def is_greedy(model: Model, pair: Pair, overlap: int) -> bool:
    """Whether the second part of the pair is what greedily follows the first, window by window."""
    device = next(model.parameters()).device
    pieces = cut(0, *pair, model.length, overlap)
    return all(window_is_greedy(model, torch.from_numpy(p.tokens).to(device), p.num_given) for p in pieces)


def window_is_greedy(model: Model, x0: Tensor, num_given: int) -> bool:
    """Of the tokens of `x0` (L,) after the first `num_given`."""
    if isinstance(model, Autoregressive):
        return causal_is_greedy(model, x0, num_given)
    return denoiser_is_greedy(model, x0, num_given)


def causal_is_greedy(model: Autoregressive, x0: Tensor, num_given: int) -> bool:
    """Given all tokens before it, each is the most likely one."""
    cache, start = Cache(), torch.full_like(x0[:1], model.start_id)
    unread = torch.cat([start, x0[:num_given]])
    for token in x0[num_given:]:
        if model.next_log_probs(unread.unsqueeze(0), cache).argmax(-1) != token:
            return False
        unread = token.unsqueeze(0)
    return True


def denoiser_is_greedy(model: AnyDenoiser, x0: Tensor, num_given: int) -> bool:
    """Given all tokens before it, and masks from there on, each is the most likely one."""
    positions = torch.arange(len(x0), device=x0.device)
    for i in range(num_given, len(x0)):
        xt = torch.where(positions < i, x0, model.mask_id).unsqueeze(0)
        share = torch.tensor([(i - num_given) / (len(x0) - num_given)], dtype=torch.float64, device=x0.device)
        log_probs = model(xt, model.schedule.time(share), (positions == i).unsqueeze(0))  # (1, V)
        if log_probs.argmax(-1) != x0[i]:
            return False
    return True
