"""Diffusion sampling: init, step, trajectory. Everything that shows or stores a sample consumes `trajectory`.

Legend: B batch, K candidates, L positions, V vocabulary, N revealed (or masked) positions of a step, over the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.importance import Choice, ImportanceSampling, check_energies, choose, propose
from edlm.masking import choose_revealed
from edlm.models.denoiser import DenoiserLike
from edlm.randomness import draw, rand


@dataclass(frozen=True)
class State:
    """Where B sequences are: tokens (B, L) with the mask id at unknown positions, and each one's stream of numbers."""

    x: Tensor
    generators: Sequence[torch.Generator]
    step: int = 0
    """Steps made."""
    denoiser_evaluations: Tensor | None = None
    """(B,) passes of each sequence through the denoiser (or causal model) so far."""
    energy_evaluations: Tensor | None = None
    """(B,) passes of candidates of each sequence through energy networks so far."""


@dataclass(frozen=True)
class Info:
    """What one step did."""

    t: float
    s: float
    is_revealed: Tensor
    """(B, L)"""
    choice: Choice | None = None
    """The candidates and what became of them, where importance sampling took part."""

    @property
    def num_revealed(self) -> Tensor:
        """(B,)"""
        return self.is_revealed.sum(-1)


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
    none = torch.zeros(len(generators), dtype=torch.long)
    return State(x, generators, denoiser_evaluations=none, energy_evaluations=none)


def step(
    state: State, denoiser: DenoiserLike, t: Tensor, s: Tensor, *, temperature: float = 1.0,
    importance: ImportanceSampling | None = None,
) -> tuple[State, Info]:  # fmt: skip
    """One reverse step t -> s: choose which masked positions are revealed, then draw their tokens.

    Choosing first does not change the law, since the choice is independent of the tokens, and it means that a sequence
    that reveals nothing costs nothing: neither the denoiser's output nor any candidate would be used.
    """
    is_revealed = choose_revealed(state.x, t, s, denoiser.schedule, denoiser.mask_id, generator=state.generators)
    uniform = rand(state.x.shape, state.generators, device=state.x.device)
    rows = is_revealed.any(-1).nonzero()[:, 0]  # (B',) those that need a network
    active = Active(state.x[rows], is_revealed[rows], uniform[rows], [state.generators[i] for i in rows.tolist()], rows)
    x, choice = state.x.clone(), None
    if len(rows) and importance is not None and importance.is_active(t):
        x[is_revealed], choice = resampled(active, denoiser, t, temperature, importance, state.step + 1)
    elif len(rows):
        log_probs = denoiser(active.xt, t.to(x.device).expand(len(rows)), where=active.is_revealed)  # (N, V)
        x[is_revealed] = draw(tempered(log_probs, temperature), active.uniform[active.is_revealed])
    passes = importance.num_candidates * importance.energy.num_passes if importance and choice else 0
    return count(state, x, rows, passes), Info(t.item(), s.item(), is_revealed, choice)


@dataclass(frozen=True)
class Active:
    """The rows of a batch that reveal something in a step."""

    xt: Tensor
    """(B', L)"""
    is_revealed: Tensor
    """(B', L)"""
    uniform: Tensor
    """(B', L) the numbers a plain step draws its tokens with; the first candidate uses the same."""
    generators: Sequence[torch.Generator]
    rows: Tensor
    """(B',)"""


def resampled(
    active: Active, denoiser: DenoiserLike, t: Tensor, temperature: float, importance: ImportanceSampling, step: int
) -> tuple[Tensor, Choice]:
    """The revealed tokens (N,) of one step of the paper's Algorithm 1, and what they were chosen from.

    K completions of all masked positions are drawn from the denoiser, one is resampled by its energy, and the positions
    to be revealed are read off it.
    """
    B, L = active.xt.shape
    device, times = active.xt.device, t.to(active.xt.device).expand(B)
    more = rand((B, importance.num_candidates - 1, L), active.generators, device=device)
    uniform = torch.cat([active.uniform.unsqueeze(1), more], dim=1)  # (B', K, L)
    log_probs = tempered(denoiser(active.xt, times), temperature)  # (N, V), all masked positions
    x0, log_proposal = propose(log_probs, active.xt, denoiser.mask_id, uniform)
    energies = importance.energy(x0, active.xt, times, log_proposal)
    check_energies(energies, step, t.item())
    chosen, weights = choose(energies, rand((B,), active.generators, device=device), importance.temperature)
    taken = x0[torch.arange(B, device=device), chosen]  # (B', L)
    return taken[active.is_revealed], Choice(active.rows, x0, energies, weights, chosen)


def count(state: State, x: Tensor, rows: Tensor, energy_passes: int) -> State:
    """The state after a step in which `rows` went through the denoiser, and their candidates through the energy."""
    is_active = torch.zeros(len(x), dtype=torch.long)
    is_active[rows.cpu()] = 1
    assert state.denoiser_evaluations is not None and state.energy_evaluations is not None
    return replace(
        state,
        x=x,
        step=state.step + 1,
        denoiser_evaluations=state.denoiser_evaluations + is_active,
        energy_evaluations=state.energy_evaluations + energy_passes * is_active,
    )


def tempered(log_probs: Tensor, temperature: float) -> Tensor:
    """Normalised log-probabilities (..., V) of p**(1/temperature)."""
    if temperature == 1:
        return log_probs
    if not temperature > 0:
        raise UserError(f"temperature must be positive, got {temperature}")
    return torch.log_softmax(log_probs.double() / temperature, dim=-1)


@torch.no_grad()
def trajectory(
    state: State, denoiser: DenoiserLike, times: Tensor, *, temperature: float = 1.0,
    importance: ImportanceSampling | None = None,
) -> Iterator[tuple[State, Info]]:  # fmt: skip
    """The states after each reverse step along `times` (T + 1,), which falls from 1 to 0."""
    check_times(times)
    for t, s in pairwise(times):
        state, info = step(state, denoiser, t, s, temperature=temperature, importance=importance)
        yield state, info


def check_times(times: Tensor) -> None:
    """A time grid must start at 1 and fall to 0: only then is nothing left masked."""
    if len(times) < 2 or times[0] != 1 or times[-1] != 0 or (times[1:] >= times[:-1]).any():
        raise UserError(f"times must fall strictly from 1 to 0 in at least one step, got {times.tolist()[:8]}")


def sample(
    state: State, denoiser: DenoiserLike, times: Tensor, *, temperature: float = 1.0,
    importance: ImportanceSampling | None = None,
) -> Tensor:  # fmt: skip
    """The tokens (B, L) at the end of `trajectory`."""
    *_, (state, _) = trajectory(state, denoiser, times, temperature=temperature, importance=importance)
    return state.x
