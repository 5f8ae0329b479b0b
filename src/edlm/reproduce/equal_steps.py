"""A sampler beside the plain denoiser with as many steps: what it gains or loses, by every oracle, and in entropy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edlm.metrics import Estimate

Verdict = Literal["better", "worse", "as good", "entropy differs"]
MOST_ENTROPY = 0.05
"""Nats by which entropies of texts may differ and still be called equal."""
ERRORS = 2
"""Standard errors that a difference must exceed to be called one."""
RULE = (
    f"Against mdlm with as many steps: better or worse if perplexities differ by more than {ERRORS} standard errors by "
    f"every oracle, as good otherwise; only if mean entropies differ by at most {MOST_ENTROPY} nats"
)


@dataclass(frozen=True)
class Against:
    """A sampler's values less the plain denoiser's, with the errors of both."""

    perplexities: Sequence[Estimate]
    """By oracle."""
    entropy: Estimate

    @property
    def verdict(self) -> Verdict:
        if abs(self.entropy.mean) > MOST_ENTROPY:
            return "entropy differs"
        if all(gap.mean < -ERRORS * gap.standard_error for gap in self.perplexities):
            return "better"
        if all(gap.mean > ERRORS * gap.standard_error for gap in self.perplexities):
            return "worse"
        return "as good"


def less(one: Estimate, other: Estimate) -> Estimate:
    """The difference of two means. Samples that share random numbers hardly agree, so errors add as if independent."""
    return Estimate(one.mean - other.mean, math.hypot(one.standard_error, other.standard_error))
