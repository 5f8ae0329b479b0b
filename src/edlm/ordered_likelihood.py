"""The likelihood of samplers whose order follows from what is known: they can write a text in one way only.

Legend: B batch, L positions.

Where lots are drawn a text may come about in many ways, and the sum over all of them has to be bounded. Where S follows
from xt there is one: begin with what is given, ask the order, reveal the true tokens of S, and so on. The likelihood is
the product of p(x0^S | xt) along it: exact for a denoiser alone, and with an energy bounded step by step. It takes as
many passes as drawing a text.
"""

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.likelihood import Law, RevealStep
from edlm.models.denoiser import DenoiserLike
from edlm.objectives import sum_per_row
from edlm.order import Confidence, EntropyBound, Here, Order, usual_time
from edlm.schedule import uniform_times
from edlm.vocabulary import Predictions


@torch.no_grad()
def ordered_nll(
    denoiser: DenoiserLike, law: Law | None, order: Order, x0: Tensor, index: Sequence[int], *, seed: int, steps: int,
    inner: int, is_given: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """-log p(x0) of every sequence in nats (B,), exact; with a `law`, an upper bound of it in expectation, (B, 2).

    The second column is then the exact value of the denoiser alone, in the same order. float64.
    """
    if not isinstance(order, Confidence | EntropyBound):
        raise UserError("this order draws lots, so a text may come about in many ways; use certified_nll")
    is_given = torch.zeros_like(x0, dtype=torch.bool) if is_given is None else is_given
    xt = torch.where(is_given, x0, denoiser.mask_id)
    total = torch.zeros(len(x0), 2, dtype=torch.float64, device=x0.device)
    for n in count():
        if not (is_masked := xt == denoiser.mask_id).any():
            return -total if law is not None else -total[:, 1]
        t, s = times_of(order, steps, n, usual_time(denoiser.schedule, is_masked, (~is_given).sum(-1)))
        plan = order.plan(Here(xt, is_given, t, s, []), denoiser)
        step = RevealStep(x0, xt, t, plan.is_revealed, [(seed, i, n) for i in index], denoiser.mask_id)
        rows = plan.is_revealed.any(-1).nonzero()[:, 0]
        if plan.predictions is not None:
            total[rows] += log_likelihoods(step.select(rows), plan.predictions, law, inner)
        xt = torch.where(plan.is_revealed, x0, xt)
    raise AssertionError  # count() never ends


def times_of(order: Order, steps: int, n: int, usual: Tensor) -> tuple[Tensor, Tensor]:
    """When the n-th step begins and ends: on the grid of so many, or at the usual time (B,) of what is masked."""
    if not order.has_grid:
        return usual, usual
    t, s = uniform_times(steps)[n : n + 2].to(usual.device)
    return t.expand_as(usual), s.expand_as(usual)


def log_likelihoods(step: RevealStep, predictions: Predictions, law: Law | None, inner: int) -> Tensor:
    """log p(x0^S | xt) of one step, with the law (from below, in expectation) and of the denoiser alone: (B, 2)."""
    is_masked = step.xt == step.mask_id
    true = predictions.log_prob(step.x0[is_masked]) * step.is_revealed[is_masked]
    plain = sum_per_row(true, is_masked)
    gain = step.gain(predictions, law, inner) if law is not None else 0
    return torch.stack([plain + gain, plain], dim=-1)
