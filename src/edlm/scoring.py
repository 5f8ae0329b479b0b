"""Candidates through a network: equal ones once, what they share once, and a few at a time.

Legend: B batch, K candidates, L positions, P = B K pairs of sequence and candidate, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from edlm.memory import in_one_pass, pass_tokens
from edlm.models.autoregressive import Autoregressive, CausalLike
from edlm.models.transformer import Cache

LEAST_SHARED = 16
"""Positions that candidates must have in common at the front before a pass of their own pays for them."""


def score_candidates(x0: Tensor, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Numbers (B, K) float64 of the candidates `x0` (B, K, L), from `score(rows (P,), x0 (P, L)) -> (P,)`.

    `rows` says which sequence each candidate belongs to. Candidates of a sequence that are equal are scored once, but
    not where all have to go through in one pass.
    """
    B, K, L = x0.shape
    rows = torch.arange(B, device=x0.device).repeat_interleave(K)
    if in_one_pass():
        return score(rows, x0.reshape(B * K, L)).double().view(B, K)
    pairs = torch.cat([rows.unsqueeze(-1), x0.reshape(B * K, L)], dim=-1)  # (P, 1 + L)
    different, where = torch.unique(pairs, dim=0, return_inverse=True)
    size = max(1, pass_tokens(x0.device) // L)
    values = torch.cat([score(part[:, 0], part[:, 1:]).double() for part in different.split(size)])
    return values[where].view(B, K)


def causal_log_probs(model: CausalLike, x0: Tensor, is_masked: Tensor, *, carry_over: bool) -> Tensor:
    """log p of each candidate (B, K, L) of sequences that are masked at `is_masked` (B, L): (B, K) float64.

    The sum is over all positions or, with `carry_over`, over the masked ones. Of our own models then nothing after the
    last of them is read, and the vocabulary is projected at the masked ones only. What comes before the first masked
    position is the same in all candidates of a sequence, and is read once.
    """
    where = is_masked if carry_over else torch.ones_like(is_masked)
    if not isinstance(model, Autoregressive):
        return score_candidates(x0, lambda rows, x: (model(x).double() * where[rows]).sum(-1))
    masked_columns = is_masked.any(0).nonzero()[:, 0].tolist() or [0]
    if carry_over:
        x0, where = x0[..., : masked_columns[-1] + 1], where[:, : masked_columns[-1] + 1]
    if in_one_pass() or masked_columns[0] < LEAST_SHARED or x0.shape[1] == 1:
        return score_candidates(x0, lambda rows, x: model(x, where[rows]).double().sum(-1))
    return _after_shared(model, x0, where, masked_columns[0])


def _after_shared(model: Autoregressive, x0: Tensor, where: Tensor, first: int) -> Tensor:
    """The same sum, when the first `first` tokens are the same in all candidates of a sequence."""
    front, cache = x0[:, 0, :first], Cache()
    before = model(front, where[:, :first], cache=cache).double().sum(-1)  # (B,)

    def score(rows: Tensor, x: Tensor) -> Tensor:
        after, previous = cache.select(rows), x[:, first - 1]
        return model(x[:, first:], where[rows, first:], cache=after, previous=previous).double().sum(-1)

    return before.unsqueeze(-1) + score_candidates(x0, score)
