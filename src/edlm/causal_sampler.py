"""Autoregressive sampling with a key-value cache, in the states and infos of the diffusion sampler.

Legend: B batch, L positions, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.transformer import Cache
from edlm.randomness import draw, rand
from edlm.sampler import Info, State, count, tempered


@dataclass(frozen=True)
class Reading:
    """What the model has read of B sequences, and what it reads next."""

    cache: Cache
    """Keys and values of what was read; a step adds to it."""
    unread: Tensor
    """(B, l)"""
    position: int
    """Where the next token goes."""

    def select(self, rows: Tensor) -> "Reading":
        """That of some of the sequences."""
        return replace(self, cache=self.cache.select(rows), unread=self.unread[rows])


def begin(state: State, model: Autoregressive) -> Reading:
    """Before the first step: nothing is read. Known tokens must be a prefix of equal length in all rows."""
    first = prefix_length(state.x, model.start_id)
    unread = torch.cat([torch.full_like(state.x[:, :1], model.start_id), state.x[:, :first]], dim=1)
    return Reading(Cache(), unread, first)


@torch.no_grad()
def step(
    state: State, model: Autoregressive, reading: Reading, *, temperature: float = 1.0
) -> tuple[State, Info, Reading]:
    """One new token of every sequence."""
    (B, L), position = state.x.shape, reading.position
    log_probs = model.next_log_probs(reading.unread, reading.cache)  # (B, V)
    token = draw(tempered(log_probs, temperature), rand((B,), state.generators, device=state.x.device))
    x = state.x.clone()
    x[:, position] = token
    is_revealed = torch.zeros_like(x, dtype=torch.bool)
    is_revealed[:, position] = True
    once = torch.ones(B, dtype=torch.long)
    t, s = (1 - torch.full((B,), done / L, dtype=torch.float64) for done in (position, position + 1))
    reading = replace(reading, unread=token.unsqueeze(-1), position=position + 1)
    return count(state, x, once, 0 * once), Info(t, s, is_revealed), reading


def trajectory(state: State, model: Autoregressive, *, temperature: float = 1.0) -> Iterator[tuple[State, Info]]:
    """The states after each new token, left to right. Known tokens must be a prefix of equal length in all rows."""
    reading = begin(state, model)
    for _ in range(reading.position, state.x.shape[1]):
        state, info, reading = step(state, model, reading, temperature=temperature)
        yield state, info


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
