"""Where on its way back from noise a sequence is looked at: one random step each, whose weight makes the mean a bound.

Legend: B batch, L positions.

The likelihood of the sampler with T steps is bounded by a sum over its steps; a `Moment` is one of them, drawn so that

    -log p(x0) <= E [ weight * -log p(x0^S | xt) ]

where S are the positions that the step reveals. A factorised denoiser needs no S: the average over it is `share` times
the sum over all masked positions. Two ways to draw one:

    moment_at_step    one of T steps; each masked position is in S with the reveal probability of the step
    moment_at_count   the limit of many steps, in which tokens are revealed one by one: n ~ U{1..L} masked tokens, one
                      of them revealed. The integral over t is exact, and no weight is large near t = 0

Tokens may be given, such as a prompt's. They are never masked, so all of this holds for the others, with the number of
those in place of L, and bounds -log p(others | given) of the sampler that starts from the given tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edlm.masking import corrupt, corrupt_count
from edlm.models.denoiser import DenoiserLike
from edlm.order import Remasking
from edlm.randomness import make_streams, rand, spread
from edlm.schedule import Schedule, reveal_probability, uniform_times


@dataclass(frozen=True)
class Moment:
    """One step of the way back of each of B sequences."""

    xt: Tensor
    """(B, L)"""
    t: Tensor
    """(B,) the time at which the step starts."""
    is_revealed: Tensor
    """(B, L) the positions S."""
    share: Tensor
    """(B,) the chance that a masked position is in S."""
    weight: int | Tensor
    """How many such steps the whole way has: T, or (B,) the number of tokens where they come one by one."""


def draw_moment(
    denoiser: DenoiserLike, x0: Tensor, index: Sequence[int], *, seed: int, steps: int | None,
    is_given: Tensor | None = None, remasking: Remasking | None = None,
) -> Moment:  # fmt: skip
    """One moment for each row of `x0`, from its own random numbers; evenly spread over the steps for consecutive rows.

    `steps` is T on the uniform time grid, or None for the limit of many steps. Tokens at `is_given` (B, L) stay. With
    `remasking` the masks are the same, since it keeps their law, and more of them are revealed in a step.
    """
    u = spread(index, seed).to(x0.device)
    is_free = torch.ones_like(x0, dtype=torch.bool) if is_given is None else ~is_given
    noise = denoiser.schedule, denoiser.mask_id, make_streams(seed, index)
    if steps is None:
        return moment_at_count(x0, 1 + (u * is_free.sum(-1)).long(), is_free, *noise)
    return moment_at_step(x0, (u * steps).long(), uniform_times(steps), is_free, *noise, remasking)


def moment_at_step(
    x0: Tensor, n: Tensor, times: Tensor, is_free: Tensor, schedule: Schedule, mask_id: int,
    generators: Sequence[torch.Generator], remasking: Remasking | None = None,
) -> Moment:  # fmt: skip
    """The n-th (B,) of the steps along `times` (T + 1,). For a factorised denoiser: T rho -log p, paper eq. 12."""
    times = times.to(x0.device)
    t, s = times[n], times[n + 1]
    xt = torch.where(is_free, corrupt(x0, t, schedule, mask_id, generator=generators), x0)
    share = reveal_probability(schedule, t, s) if remasking is None else remasking.rates(schedule, t, s)[0]
    is_revealed = (xt == mask_id) & (rand(xt.shape, generators, device=xt.device) < share.unsqueeze(-1))
    return Moment(xt, t, is_revealed, share, len(times) - 1)


def moment_at_count(
    x0: Tensor, count: Tensor, is_free: Tensor, schedule: Schedule, mask_id: int, generators: Sequence[torch.Generator]
) -> Moment:
    """`count` (B,) masked tokens, of which one is revealed. For a factorised denoiser: L/n -log p, L of them free.

    Given t, n is binomial; integrating the weight 1/t against that leaves exactly 1/n for every set of n positions. So
    this is the bound of paper eq. 13 without the tail of large weights near t = 0, for any schedule.
    """
    xt = corrupt_count(x0, count, mask_id, generator=generators, is_free=is_free)
    t = _time_of_count(count, is_free, schedule, generators)
    rank = rand(x0.shape, generators, device=x0.device).masked_fill(xt != mask_id, -1)
    is_revealed = torch.zeros_like(xt, dtype=torch.bool).scatter(1, rank.argmax(-1, keepdim=True), True)
    return Moment(xt, t, is_revealed, 1 / count, is_free.sum(-1))


def _time_of_count(
    count: Tensor, is_free: Tensor, schedule: Schedule, generators: Sequence[torch.Generator]
) -> Tensor:  # fmt: skip
    """The time that networks with a sense of time are told when n of L free tokens are masked: (B,).

    Given n, the masked fraction has the density t^(n-1) (1-t)^(L-n): the n-th smallest of L uniform numbers has it.
    """
    ordered = rand(is_free.shape, generators, device=count.device).masked_fill(~is_free, 2).sort(-1).values
    return schedule.time(1 - ordered.gather(-1, (count - 1).unsqueeze(-1)).squeeze(-1))
