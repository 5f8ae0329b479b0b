"""Diffusion sampling: init, step, trajectory. Everything that shows or stores a sample consumes `trajectory`.

Legend: B batch, K candidates, L positions, V vocabulary, N revealed (or masked) positions of a step, over the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.importance import Choice, ImportanceSampling, Step, check_energies, choose
from edlm.models.denoiser import DenoiserLike, predict
from edlm.order import Here, Order, Uniform, usual_time
from edlm.randomness import rand
from edlm.vocabulary import Predictions


@dataclass(frozen=True)
class State:
    """Where B sequences are: tokens (B, L) with the mask id at unknown positions, and each one's stream of numbers."""

    x: Tensor
    generators: Sequence[torch.Generator]
    step: int = 0
    """Steps made."""
    start: int = 0
    """Where `x` begins in its text, if that is longer than the model and made window by window."""
    denoiser_evaluations: Tensor | None = None
    """(B,) passes of each sequence through the denoiser (or causal model) so far."""
    energy_evaluations: Tensor | None = None
    """(B,) passes of candidates of each sequence through energy networks so far."""
    is_fixed: Tensor | None = None
    """(B, L) tokens that were there from the start and never change; None if no order needs to know."""


@dataclass(frozen=True)
class Info:
    """What one step did."""

    t: Tensor
    """(B,) when it began; most samplers keep all sequences at the same time."""
    s: Tensor
    """(B,) when it ended."""
    is_revealed: Tensor
    """(B, L)"""
    is_remasked: Tensor | None = None
    """(B, L) known tokens that were masked again, by an order that does so."""
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
    return State(x, generators, denoiser_evaluations=none, energy_evaluations=none, is_fixed=x != mask_id)


def step(
    state: State, denoiser: DenoiserLike, t: Tensor, s: Tensor, *, temperature: float = 1.0,
    importance: ImportanceSampling | None = None, order: Order = Uniform(),
) -> tuple[State, Info]:  # fmt: skip
    """One reverse step t -> s: choose which masked positions are revealed, then draw their tokens.

    Choosing first does not change the law, since no order looks at the tokens to be drawn, and it means that a sequence
    that reveals nothing costs nothing: neither the denoiser's output nor any candidate would be used.
    """
    t, s = (time.to(state.x.device).expand(len(state.x)) for time in (t, s))
    is_fixed = torch.zeros_like(state.x, dtype=torch.bool) if state.is_fixed is None else state.is_fixed
    plan = order.plan(Here(state.x, is_fixed, t, s, state.generators), denoiser)
    return reveal(
        state, denoiser, t, s, plan.is_revealed, temperature=temperature, importance=importance,
        predictions=plan.predictions, is_remasked=plan.is_remasked,
    )  # fmt: skip


def reveal(
    state: State, denoiser: DenoiserLike, t: Tensor, s: Tensor, is_revealed: Tensor, *, temperature: float = 1.0,
    importance: ImportanceSampling | None = None, predictions: Predictions | None = None,
    is_remasked: Tensor | None = None,
) -> tuple[State, Info]:  # fmt: skip
    """Draw the tokens at `is_revealed` (B, L), in a step from the times `t` (B,) to `s` (B,).

    `predictions` are the denoiser's at all masked positions of the rows that reveal something, if they are known. The
    tokens at `is_remasked` (B, L) are masked again; what is drawn has still seen them.
    """
    uniform = rand(state.x.shape, state.generators, device=state.x.device)
    needs_network = is_revealed.any(-1)  # (B,)
    resamples = needs_network & (importance.is_active(t) if importance is not None else False)
    x, choice = state.x.clone(), None
    if is_remasked is not None:
        x[is_remasked] = denoiser.mask_id
    masked_row = ((state.x == denoiser.mask_id) & needs_network.unsqueeze(-1)).nonzero()[:, 0]  # of each prediction
    share, spent = share_known(state, is_revealed, denoiser.mask_id), spent_by(state)

    def active(which: Tensor) -> Active:
        rows = which.nonzero()[:, 0]
        generators = [state.generators[i] for i in rows.tolist()]
        known = predictions.select(which[masked_row]) if predictions is not None else None
        return Active(
            state.x[rows], t[rows], is_revealed[rows], uniform[rows], generators, rows, known, share[rows], spent[rows]
        )

    if (plain := needs_network & ~resamples).any():
        part = active(plain)
        drawn, _ = part.predict_revealed(denoiser).tempered(temperature).draw(part.uniform[part.is_revealed])
        x[is_revealed & plain.unsqueeze(-1)] = drawn
    if resamples.any():
        assert importance is not None
        part = active(resamples)
        tokens, choice = resampled(part, denoiser, temperature, importance, state.step + 1)
        x[is_revealed & resamples.unsqueeze(-1)] = tokens
    passes = torch.zeros(len(x), dtype=torch.long)
    if importance is not None and choice is not None:
        scored = importance.scored if choice.num_scored is None else choice.num_scored.cpu()
        passes[choice.rows.cpu()] = scored * importance.energy.num_passes
    return count(state, x, needs_network, passes), Info(t, s, is_revealed, is_remasked, choice)


@dataclass(frozen=True)
class Active:
    """The rows of a batch that reveal something in a step."""

    xt: Tensor
    """(B', L)"""
    t: Tensor
    """(B',)"""
    is_revealed: Tensor
    """(B', L)"""
    uniform: Tensor
    """(B', L) the numbers a plain step draws its tokens with; the first candidate uses the same."""
    generators: Sequence[torch.Generator]
    rows: Tensor
    """(B',)"""
    predictions: Predictions | None = None
    """The denoiser's at all masked positions of these rows, if they are known."""
    share: Tensor | None = None
    """(B',) of the tokens that were not there from the start, how many are known after the step."""
    spent: Tensor | None = None
    """(B',) energy passes so far."""

    def predict(self, denoiser: DenoiserLike) -> Predictions:
        """At all masked positions."""
        return predict(denoiser, self.xt, self.t) if self.predictions is None else self.predictions

    def predict_revealed(self, denoiser: DenoiserLike) -> Predictions:
        """At those that are revealed."""
        if self.predictions is None:
            return predict(denoiser, self.xt, self.t, where=self.is_revealed)
        return self.predictions.select(self.is_revealed[self.xt == denoiser.mask_id])


def resampled(
    active: Active, denoiser: DenoiserLike, temperature: float, importance: ImportanceSampling, step: int
) -> tuple[Tensor, Choice | None]:
    """The revealed tokens (N,) of one step of the paper's Algorithm 1, and what they were chosen from.

    K completions of all masked positions are drawn from the denoiser, one is resampled by its energy, and the positions
    to be revealed are read off it. Other kinds of `importance` make their candidates otherwise.
    """
    B, L = active.xt.shape
    device = active.xt.device
    more = rand((B, importance.num_candidates - 1, L), active.generators, device=device)
    uniform = torch.cat([active.uniform.unsqueeze(1), more], dim=1)  # (B', K, L)
    predictions = active.predict(denoiser).tempered(temperature)
    at = Step(
        predictions, active.xt, active.t, active.is_revealed, denoiser.mask_id, active.generators, active.share,
        active.spent,
    )  # fmt: skip
    made = importance.candidates(at, uniform)
    check_energies(made.energies, step, active.t)
    chosen, weights = choose(made.log_weights, rand((B,), active.generators, device=device))
    taken = made.x0[torch.arange(B, device=device), chosen]  # (B', L)
    about = Choice(active.rows, made.x0, made.energies, weights, chosen, made.log_z, made.num_scored)
    return taken[active.is_revealed], about.where_scored()


def share_known(state: State, is_revealed: Tensor, mask_id: int) -> Tensor:
    """(B,) of the tokens that were not there from the start, how many are known after `is_revealed` (B, L)."""
    is_free = torch.ones_like(is_revealed) if state.is_fixed is None else ~state.is_fixed
    num_masked = ((state.x == mask_id) & ~is_revealed).sum(-1)
    return 1 - num_masked.double() / is_free.sum(-1).clamp(min=1)


def spent_by(state: State) -> Tensor:
    """(B,) energy passes so far, where the sequences are."""
    assert state.energy_evaluations is not None
    return state.energy_evaluations.to(state.x.device)


def count(state: State, x: Tensor, denoiser_passes: Tensor, energy_passes: Tensor) -> State:
    """The state after a step in which each sequence went so often (B,) through the denoiser and through the energy."""
    assert state.denoiser_evaluations is not None and state.energy_evaluations is not None
    return replace(
        state,
        x=x,
        step=state.step + 1,
        denoiser_evaluations=state.denoiser_evaluations + denoiser_passes.long().cpu(),
        energy_evaluations=state.energy_evaluations + energy_passes.long().cpu(),
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
    importance: ImportanceSampling | None = None, order: Order = Uniform(),
) -> Iterator[tuple[State, Info]]:  # fmt: skip
    """The states after each reverse step along `times` (T + 1,), which falls from 1 to 0.

    An order without a grid makes steps until nothing is masked; `times` then does not matter.
    """
    check_times(times)
    if not order.has_grid:
        yield from at_own_pace(state, denoiser, order, temperature=temperature, importance=importance)
        return
    for t, s in pairwise(times):
        state, info = step(state, denoiser, t, s, temperature=temperature, importance=importance, order=order)
        yield state, info


def at_own_pace(
    state: State, denoiser: DenoiserLike, order: Order, *, temperature: float = 1.0,
    importance: ImportanceSampling | None = None,
) -> Iterator[tuple[State, Info]]:  # fmt: skip
    """The states after each step of an order without a grid. It is the time at which so much is usually masked."""
    num_free = (state.x == denoiser.mask_id).sum(-1)
    while (is_masked := state.x == denoiser.mask_id).any():
        t = usual_time(denoiser.schedule, is_masked, num_free)
        state, info = step(state, denoiser, t, t, temperature=temperature, importance=importance, order=order)
        yield state, info


@torch.no_grad()
def first_hitting(
    state: State, denoiser: DenoiserLike, *, temperature: float = 1.0, importance: ImportanceSampling | None = None
) -> Iterator[tuple[State, Info]]:
    """The states after each reveal of a sampler with infinitely many steps: one token of every sequence at a time.

    Each masked token has a moment of its own. After time t the next of n comes at the s with
    1 - alpha(s) = (1 - alpha(t)) u^(1/n), u uniform, and each of the n is as likely to be it. Nothing happens in
    between, so this is exact, and takes one pass per token however fine the grid that it stands for.
    """
    B = len(state.x)
    t = torch.ones(B, dtype=torch.float64, device=state.x.device)
    while (is_masked := state.x == denoiser.mask_id).any():
        num_masked = is_masked.sum(-1)
        numbers = rand((B, 2), state.generators, device=state.x.device)
        level = (1 - denoiser.schedule.alpha(t)) * numbers[:, 0] ** (1 / num_masked.clamp(min=1))
        t = torch.where(num_masked > 0, denoiser.schedule.time(1 - level), t)
        rank, chosen = is_masked.cumsum(-1) - 1, (numbers[:, 1] * num_masked).long()
        is_revealed = is_masked & (rank == chosen.unsqueeze(-1))
        state, info = reveal(state, denoiser, t, t, is_revealed, temperature=temperature, importance=importance)
        yield state, info


def check_times(times: Tensor) -> None:
    """A time grid must start at 1 and fall to 0: only then is nothing left masked."""
    if len(times) < 2 or times[0] != 1 or times[-1] != 0 or (times[1:] >= times[:-1]).any():
        raise UserError(f"times must fall strictly from 1 to 0 in at least one step, got {times.tolist()[:8]}")


def sample(
    state: State, denoiser: DenoiserLike, times: Tensor, *, temperature: float = 1.0,
    importance: ImportanceSampling | None = None, order: Order = Uniform(),
) -> Tensor:  # fmt: skip
    """The tokens (B, L) at the end of `trajectory`."""
    *_, (state, _) = trajectory(state, denoiser, times, temperature=temperature, importance=importance, order=order)
    return state.x
