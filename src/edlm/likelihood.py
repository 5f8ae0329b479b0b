"""Likelihood of given sequences: one estimate each, in nats, that depends on nothing but the sequence and its key.

Legend: B batch, L positions.

Every sequence of a data set has an index; its masks come from a generator seeded by (seed, index) and its masked count
from a low-discrepancy sequence at that index. So results do not depend on batch size or number of processes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from edlm.masking import corrupt, corrupt_count
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import DenoiserLike
from edlm.objectives import cross_entropy, masked_log_likelihood, nelbo_at_count, nelbo_at_step
from edlm.randomness import make_streams, spread
from edlm.schedule import uniform_times


@torch.no_grad()
def denoiser_nelbo(denoiser: DenoiserLike, x0: Tensor, index: Sequence[int], *, seed: int, steps: int | None) -> Tensor:
    """One unbiased estimate per sequence of the NELBO of a factorised denoiser, in nats: (B,) float64.

    An upper bound on -log p(x0) in expectation: of the sampler with `steps` steps on the uniform time grid, or of its
    continuous-time limit if `steps` is None.
    """
    u = spread(index, seed).to(x0.device)
    generators = make_streams(seed, index)
    length = x0.shape[1]
    if steps is None:
        count = 1 + (u * length).long()
        xt = corrupt_count(x0, count, denoiser.mask_id, generator=generators)
        t = _time_of_count(denoiser, count, length, generators)
        return nelbo_at_count(_log_likelihood(denoiser, x0, xt, t), count, length)
    times = uniform_times(steps).to(x0.device)
    n = (u * steps).long()
    t, s = times[n], times[n + 1]
    xt = corrupt(x0, t, denoiser.schedule, denoiser.mask_id, generator=generators)
    return nelbo_at_step(_log_likelihood(denoiser, x0, xt, t), t, s, steps, denoiser.schedule)


def _log_likelihood(denoiser: DenoiserLike, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
    return masked_log_likelihood(denoiser(xt, t).double(), x0, xt, denoiser.mask_id)


def _time_of_count(denoiser: DenoiserLike, count: Tensor, length: int, generators: Sequence[torch.Generator]) -> Tensor:
    """The time a time-conditioned denoiser is told when n tokens are masked.

    Given n, the masked fraction has the density t^(n-1) (1-t)^(L-n): the n-th smallest of L uniform numbers has it.
    """
    if not denoiser.uses_time:
        return count / length
    ordered = torch.stack([torch.rand(length, generator=g, dtype=torch.float64) for g in generators]).sort(-1).values
    fraction = ordered.to(count.device).gather(-1, (count - 1).unsqueeze(-1)).squeeze(-1)
    return denoiser.schedule.time(1 - fraction)


@torch.no_grad()
def autoregressive_nll(model: Autoregressive, x0: Tensor) -> Tensor:
    """-log p(x0) of every sequence in nats, all L tokens: (B,) float64."""
    return cross_entropy(model(x0))
