"""Estimates of a log partition function from below and from above, out of n logarithmic weights.

Legend: n candidates, on the last axis.

    Z = E[w],  w = exp(-E(x0, xt)),  x0 drawn from the denoiser

The mean of n weights is unbiased for Z, so its logarithm is too low on average (Jensen). What is too high on average:

    upper_bound      at every n, by the tangent of the logarithm: log Z <= Z / c + log c - 1 for every c > 0
    paper_upper      only "for n large enough" (the paper's theorem 1, after Nowozin 2018)

Both use leave-one-out means. All are float64 and never leave log space but for ratios of weights.
"""

import math

import torch
from torch import Tensor


def lower_bound(log_weights: Tensor) -> Tensor:
    """log Z_n = log of the mean weight: at most log Z in expectation, for every n; (...) from (..., n)."""
    return log_weights.logsumexp(-1) - math.log(log_weights.shape[-1])


def leave_one_out(log_weights: Tensor) -> Tensor:
    """log Z_{n-1} without the i-th weight, for every i: (..., n), n >= 2.

    Sums from both ends are added rather than one weight taken from the total: that would cancel where one dominates.
    """
    n = log_weights.shape[-1]
    nothing = torch.full_like(log_weights[..., :1], -torch.inf)
    before = torch.cat([nothing, log_weights.logcumsumexp(-1)[..., :-1]], dim=-1)
    after = torch.cat([log_weights.flip(-1).logcumsumexp(-1).flip(-1)[..., 1:], nothing], dim=-1)
    return torch.logaddexp(before, after) - math.log(n - 1)


def paper_upper(log_weights: Tensor) -> Tensor:
    """(2n - 1) log Z_n - 2(n - 1) log Z_{n-1}, leave-one-out for the second: (...) from (..., n).

    Above log Z in expectation once n is large enough, and how large depends on the weights: below that it is no bound.
    With n = 1 the formula is log Z_1 itself.
    """
    n = log_weights.shape[-1]
    if n == 1:
        return lower_bound(log_weights)
    return (2 * n - 1) * lower_bound(log_weights) - 2 * (n - 1) * leave_one_out(log_weights).mean(-1)


def upper_bound(log_weights: Tensor, anchor: Tensor) -> Tensor:
    """mean over i of  w_i / c_i + log c_i - 1,  c_i the mean of the other weights and one more: (...) from (..., n).

    At least log Z in expectation, at every n: the logarithm lies below each of its tangents, and w_i is independent of
    the point c_i at which the tangent touches. `anchor` (...) is the logarithm of the one more, any positive number
    that does not depend on the draws; the weight of the data serves. A tangent that touches too far left is too high
    by orders of magnitude, one too far right by a few nats only, so it should be large where the draws may miss what
    dominates Z. It does not matter in the limit.
    """
    n = log_weights.shape[-1]
    others = leave_one_out(log_weights) + math.log(n - 1) if n > 1 else torch.full_like(log_weights, -torch.inf)
    log_c = torch.logaddexp(others, anchor.unsqueeze(-1)) - math.log(n)  # (..., n)
    return ((log_weights - log_c).exp() + log_c - 1).mean(-1)


def standard_error(log_weights: Tensor) -> Tensor:
    """Of log Z_n, to first order: the relative standard error of the mean weight, (...) from (..., n)."""
    n = log_weights.shape[-1]
    relative = (log_weights - lower_bound(log_weights).unsqueeze(-1)).exp()  # mean one
    return relative.std(-1) / math.sqrt(n)
