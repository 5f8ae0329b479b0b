"""The training objectives and likelihood bounds of a factorised denoiser and of a causal model, one value per example.

Legend: B batch, L positions, V vocabulary, N masked positions of the whole batch in row-major order.

All values are in nats per sequence. Three estimators bound the same model from above:

    nelbo_at_time    one time t ~ U(0, 1) and its random mask; what training minimises (paper eq. 13)
    nelbo_at_step    one of T steps; the bound of the sampler with T steps (paper eq. 12)
    nelbo_at_count   one number of masked tokens n ~ U{1..L}; the integral over t done exactly
"""

import torch
from torch import Tensor

from edlm.schedule import Schedule, reveal_probability


def stratified_times(rows: Tensor, num_rows: int, uniform: Tensor) -> Tensor:
    """One time per batch row, spread evenly over (0, 1]: row b of a batch of `num_rows` falls into the b-th slice.

    t = 1 - (b + u) / num_rows, u uniform in [0, 1): never zero, where the weight may be infinite.
    """
    return 1 - (rows + uniform) / num_rows


def masked_log_likelihood(log_probs: Tensor, x0: Tensor, xt: Tensor, mask_id: int) -> Tensor:
    """log p(x0 | xt) = sum over the masked positions of the log-probability of the true token: (B,).

    `log_probs` (N, V) are the denoiser's, one row per masked position of `xt`.
    """
    is_masked = xt == mask_id
    true = log_probs.gather(-1, x0[is_masked].unsqueeze(-1)).squeeze(-1)  # (N,)
    row = is_masked.nonzero()[:, 0]
    return torch.zeros(len(xt), dtype=true.dtype, device=true.device).index_add(0, row, true)


def nelbo_at_time(log_likelihood: Tensor, t: Tensor, schedule: Schedule) -> Tensor:
    """Estimate of the continuous-time NELBO from log p(x0 | xt) at one uniform time t: rate(t) * -log p (paper eq. 13).

    The weight is 1/t for the log-linear schedule.
    """
    return -schedule.rate(t).to(log_likelihood.dtype) * log_likelihood


def nelbo_at_step(log_likelihood: Tensor, t: Tensor, s: Tensor, num_steps: int, schedule: Schedule) -> Tensor:
    """Estimate of the T-step NELBO from log p(x0 | xt) at one uniformly chosen step: T rho -log p (paper eq. 12).

    The average over which tokens the step reveals is done in closed form; that is right for a factorised denoiser only.
    """
    weight = num_steps * reveal_probability(schedule, t.double(), s.double())
    return -weight.to(log_likelihood.dtype) * log_likelihood


def nelbo_at_count(log_likelihood: Tensor, num_masked: Tensor, length: int) -> Tensor:
    """Estimate of the continuous-time NELBO from log p(x0 | xt) with n uniform in {1..L} masked tokens: L/n * -log p.

    Given t, n is binomial; integrating the weight 1/t against that leaves exactly 1/n for every set of n positions. So
    this is the same bound without the tail of large weights near t = 0, for any schedule.
    """
    return -(length / num_masked).to(log_likelihood.dtype) * log_likelihood


def cross_entropy(token_log_probs: Tensor) -> Tensor:
    """Negative log-likelihood (B,) from a causal model's log p(x^i | x^{<i}) (B, L), summed in float64."""
    return -token_log_probs.sum(-1, dtype=torch.float64)
