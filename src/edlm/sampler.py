"""Diffusion sampling: init, step, trajectory. Everything that shows or stores a sample consumes `trajectory`.

Legend: B batch, L positions, V vocabulary, N positions revealed in a step, over the whole batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.masking import choose_revealed
from edlm.models.denoiser import DenoiserLike
from edlm.randomness import draw, rand


@dataclass(frozen=True)
class State:
    """Where B sequences are: tokens (B, L) with the mask id at unknown positions, and each one's stream of numbers."""

    x: Tensor
    generators: Sequence[torch.Generator]
    num_evaluations: int = 0
    """Sequences passed through the network so far."""


@dataclass(frozen=True)
class Info:
    """What one step did."""

    t: float
    s: float
    is_revealed: Tensor
    """(B, L)"""
    num_evaluations: int
    """Sequences passed through the network in this step."""


def init(
    length: int, generators: Sequence[torch.Generator], mask_id: int, *, fixed: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> State:  # fmt: skip
    """All masked, or with the tokens of `fixed` (L,) or (B, L) wherever that is not the mask."""
    x = torch.full((len(generators), length), mask_id, device=device)
    if fixed is not None:
        if fixed.shape[-1] != length:
            raise UserError(f"fixed tokens must cover all {length} positions, got {fixed.shape[-1]}")
        x = fixed.to(x).expand_as(x).clone()
    return State(x, generators)


def step(state: State, denoiser: DenoiserLike, t: Tensor, s: Tensor, *, temperature: float = 1.0) -> tuple[State, Info]:
    """One reverse step t -> s: choose which masked positions are revealed, then draw their tokens.

    Choosing first does not change the law, since the choice is independent of the tokens, and it means that a sequence
    that reveals nothing costs nothing: the denoiser's output would not be used.
    """
    is_revealed = choose_revealed(state.x, t, s, denoiser.schedule, denoiser.mask_id, generator=state.generators)
    uniform = rand(state.x.shape, state.generators, device=state.x.device)
    is_active = is_revealed.any(-1)  # (B,)
    num_active = int(is_active.sum())
    x = state.x.clone()
    if num_active:
        times = t.to(x.device).expand(num_active)
        log_probs = denoiser(state.x[is_active], times, where=is_revealed[is_active])  # (N, V)
        x[is_revealed] = draw(tempered(log_probs, temperature), uniform[is_revealed])
    new = replace(state, x=x, num_evaluations=state.num_evaluations + num_active)
    return new, Info(t.item(), s.item(), is_revealed, num_active)


def tempered(log_probs: Tensor, temperature: float) -> Tensor:
    """Normalised log-probabilities (..., V) of p**(1/temperature)."""
    if temperature == 1:
        return log_probs
    if not temperature > 0:
        raise UserError(f"temperature must be positive, got {temperature}")
    return torch.log_softmax(log_probs.double() / temperature, dim=-1)


@torch.no_grad()
def trajectory(
    state: State, denoiser: DenoiserLike, times: Tensor, *, temperature: float = 1.0
) -> Iterator[tuple[State, Info]]:
    """The states after each reverse step along `times` (T + 1,), which falls from 1 to 0."""
    check_times(times)
    for t, s in pairwise(times):
        state, info = step(state, denoiser, t, s, temperature=temperature)
        yield state, info


def check_times(times: Tensor) -> None:
    """A time grid must start at 1 and fall to 0: only then is nothing left masked."""
    if len(times) < 2 or times[0] != 1 or times[-1] != 0 or (times[1:] >= times[:-1]).any():
        raise UserError(f"times must fall strictly from 1 to 0 in at least one step, got {times.tolist()[:8]}")


def sample(state: State, denoiser: DenoiserLike, times: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The tokens (B, L) at the end of `trajectory`."""
    *_, (state, _) = trajectory(state, denoiser, times, temperature=temperature)
    return state.x
