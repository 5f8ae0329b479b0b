"""Autoregressive sampling with a key-value cache, in the states and infos of the diffusion sampler.

Legend: B batch, L positions, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.transformer import Cache
from edlm.randomness import draw, rand
from edlm.sampler import Info, State, count, tempered


@torch.no_grad()
def trajectory(state: State, model: Autoregressive, *, temperature: float = 1.0) -> Iterator[tuple[State, Info]]:
    """The states after each new token, left to right. Known tokens must be a prefix of equal length in all rows."""
    B, L = state.x.shape
    once = torch.ones(B, dtype=torch.long)
    first = prefix_length(state.x, model.start_id)
    cache = Cache()
    unread = torch.cat([torch.full_like(state.x[:, :1], model.start_id), state.x[:, :first]], dim=1)
    for position in range(first, L):
        log_probs = model.next_log_probs(unread, cache)  # (B, V)
        token = draw(tempered(log_probs, temperature), rand((B,), state.generators, device=state.x.device))
        x = state.x.clone()
        x[:, position] = token
        is_revealed = torch.zeros_like(x, dtype=torch.bool)
        is_revealed[:, position] = True
        state = count(state, x, once, 0 * once)
        t, s = (1 - torch.full((B,), done / L, dtype=torch.float64) for done in (position, position + 1))
        yield state, Info(t, s, is_revealed)
        unread = token.unsqueeze(-1)


def prefix_length(x: Tensor, mask_id: int) -> int:
    """How many tokens are known at the front of every row of `x` (B, L); known ones elsewhere are refused."""
    is_known = x != mask_id
    length = int(is_known[0].sum())
    if not (is_known[:, :length].all() and not is_known[:, length:].any()):
        raise UserError("an autoregressive model can only continue a prefix; known tokens must come first in every row")
    return length


def sample(state: State, model: Autoregressive, *, temperature: float = 1.0) -> Tensor:
    """The tokens (B, L) at the end of `trajectory`."""
    *_, (state, _) = trajectory(state, model, temperature=temperature)
    return state.x
