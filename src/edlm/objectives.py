"""The training objectives of a factorised denoiser and of a causal model, one value per example.

Legend: B batch, L positions, N masked positions of the whole batch in row-major order.

All values are in nats per sequence. Training looks at one time; evaluation chooses better (`moments.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edlm.schedule import Schedule
from edlm.vocabulary import Predictions


@dataclass(frozen=True)
class Times:
    """How training times follow from a uniform number: t = start + (end - start) u**power."""

    start: float = 0.0
    end: float = 1.0
    power: float = 1.0
    """Below 1 favours late (noisy) times, above 1 early ones."""

    def at(self, u: Tensor) -> Tensor:
        return self.start + (self.end - self.start) * u**self.power

    def spacing(self, t: Tensor) -> Tensor:
        """dt/du at `t`, one over the density of t: the weight that makes a mean over u an integral over t."""
        span = self.end - self.start
        return span * self.power * ((t - self.start) / span).clamp(min=0) ** (1 - 1 / self.power)


def stratified_times(rows: Tensor, num_rows: int, uniform: Tensor) -> Tensor:
    """One time per batch row, spread evenly over (0, 1]: row b of a batch of `num_rows` falls into the b-th slice.

    t = 1 - (b + u) / num_rows, u uniform in [0, 1): never zero, where the weight may be infinite.
    """
    return 1 - (rows + uniform) / num_rows


def masked_log_likelihood(predictions: Predictions, x0: Tensor, xt: Tensor, mask_id: int) -> Tensor:
    """log p(x0 | xt) = sum over the masked positions of the log-probability of the true token: (B,) float64.

    `predictions` are the denoiser's, one per masked position of `xt`.
    """
    return sum_per_row(predictions.log_prob(x0[xt == mask_id]), xt == mask_id)


def sum_per_row(values: Tensor, where: Tensor) -> Tensor:
    """Sums over each row of the values (N,) that belong to the positions of `where` (B, L): (B,)."""
    total = torch.zeros(len(where), dtype=values.dtype, device=values.device)
    return total.index_add(0, where.nonzero()[:, 0], values)


def nelbo_at_time(log_likelihood: Tensor, t: Tensor, schedule: Schedule) -> Tensor:
    """Estimate of the continuous-time NELBO from log p(x0 | xt) at one uniform time t: rate(t) * -log p (paper eq. 13).

    The weight is 1/t for the log-linear schedule.
    """
    return -schedule.rate(t).to(log_likelihood.dtype) * log_likelihood


def cross_entropy(token_log_probs: Tensor) -> Tensor:
    """Negative log-likelihood (B,) from a causal model's log p(x^i | x^{<i}) (B, L), summed in float64."""
    return -token_log_probs.sum(-1, dtype=torch.float64)
