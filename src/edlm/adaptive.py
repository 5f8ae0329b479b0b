"""Adaptive effort: as many candidates as a step needs, under a budget that is spread over the text.

Legend: B batch, K candidates at most, R completions, L positions.

Candidates are weighed in groups: two, two more, four more, and so on. A sequence stops as soon as the effective number
of what it has reaches a target, when it has K, or when its budget does not allow the next group. Where weights are
nearly equal the energy has little to say, and two candidates tell so; where one of two has all the weight, more may be
worth their passes. A budget of energy passes is spread over the tokens: when a share of them is known, at most that
share is spent. What a step leaves over, later ones may use; a step that may not even weigh two is a plain one, so that
the window is chosen too.

The number of candidates depends on their weights, so the law is not that of any fixed k. It is still known: see
`Adaptive.slots`. With a budget it also depends on what earlier steps cost, which a text does not show.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.importance import Candidates, ImportanceSampling, Step, disagree, effective_sample_size, make_importance


@dataclass(frozen=True)
class Adaptive(ImportanceSampling):
    """Algorithm 1, or reveal-first where there are completions, with at most `num_candidates` in a step."""

    completions: int = 0
    """R, or 0 to weigh whole completions."""
    target: float = 1.5
    """Effective number of candidates that is enough."""
    budget: int = 0
    """Energy passes that a sequence may take in all; 0 for any number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.target > 0:
            raise UserError(f"ess must be positive, got {self.target}")
        if self.budget < 0:
            raise UserError(f"budget must be at least 0, got {self.budget}")
        _ = self.fixed  # which refuses what does not fit

    @property
    def passes(self) -> int:
        """Energy passes of one candidate."""
        return max(1, self.completions) * self.energy.num_passes

    def groups(self) -> Iterator[tuple[int, int]]:
        """First candidate and end of each group: the number of candidates doubles."""
        start, stop = 0, min(2, self.num_candidates)
        while start < stop:
            yield start, stop
            start, stop = stop, min(2 * stop, self.num_candidates)

    @property
    def fixed(self) -> ImportanceSampling:
        """The sampler with all K candidates in every step."""
        return make_importance(self.energy, self.num_candidates, self.window, self.temperature, self.completions)

    def candidates(self, at: Step, uniform: Tensor) -> Candidates:
        x0, log_p = self.fixed.propose(at, uniform)
        return self.weigh_some(at, x0, log_p, disagree(x0[:, :, 0], at.is_revealed))

    def weigh_some(self, at: Step, x0: Tensor, log_p: Tensor, undecided: Tensor | bool = True) -> Candidates:
        """Candidates (B, K, R, L), of which each sequence weighs as many as it needs; the others get no weight at all.

        All are drawn, which is cheap, and have the log-probabilities (B, K, R). Sequences that are not `undecided` (B,)
        weigh none.
        """
        B, K, R, _ = x0.shape
        log_w = torch.full((B, K), -torch.inf, dtype=torch.float64, device=x0.device)
        num = torch.zeros(B, dtype=torch.long, device=x0.device)
        for start, stop in self.groups():
            is_open = (num == start) & (self.affordable(at) >= stop) & undecided
            if start:
                is_open &= effective_sample_size(log_w[:, :start]) < self.target
            if not is_open.any():
                break
            rows, some = is_open.nonzero()[:, 0], slice(start, stop)
            log_w[rows, some] = self.fixed.weigh(at.xt[rows], at.t[rows], x0[rows, some], log_p[rows, some])
            num[rows] = stop
        log_w[num == 0, 0] = 0  # a plain draw
        return Candidates(x0[:, :, 0], -self.temperature * log_w, log_w, num_scored=num * R)

    def affordable(self, at: Step) -> Tensor:
        """Candidates that each sequence may weigh in this step: (B,)."""
        if not self.budget:
            return torch.full_like(at.xt[:, 0], self.num_candidates)
        assert at.share is not None and at.spent is not None
        due = (self.budget * at.share).floor().long() - at.spent
        return (due // max(1, self.passes)).clamp(0, self.num_candidates)

    def slots(self, at: Step, uniform: Tensor, first: Tensor) -> Tensor:
        """An unbiased estimate of p(x^S | xt) / p_theta(x^S | xt) for the tokens of `first` on S, its logarithm: (B,).

        sum over groups g of  n_g E[w / sum of all weights that are counted],  the text being in group g; 0 if weighing
        stops before it. Within a group all places are alike, so one stands for the n_g of them.
        """
        if self.budget:
            raise UserError(
                "with a budget the candidates of a step depend on what earlier ones cost, which a text does not show: "
                "its likelihood has no bound; leave the budget out"
            )
        x0, log_p = self.fixed.propose(at, uniform, first=first)
        terms = []
        for start, stop in self.groups():
            order = torch.arange(x0.shape[1], device=x0.device)
            order[[0, start]] = order[[start, 0]]
            made = self.weigh_some(at, x0[:, order], log_p[:, order])
            share = torch.log_softmax(made.log_weights, dim=-1)[:, start]
            terms.append(share + torch.tensor(stop - start, dtype=torch.float64).log())
        return torch.stack(terms).logsumexp(0)
