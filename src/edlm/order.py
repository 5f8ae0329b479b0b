"""What a step reveals, and what it may hide again: the sampler asks an order before it draws any token.

Legend: B batch, L positions, N masked positions of the rows that reveal something, in row-major order.

    Uniform       every masked position independently: the reverse process itself
    Confidence    as many as the schedule says, those first whose token the denoiser is surest of
    EntropyBound  those of lowest entropy, as many as can hardly contradict each other; needs no time grid
    Remasking     as Uniform, and known tokens may be masked again (ReMDM), so that mistakes can be mended

No order looks at a token that the step will draw. So S is known before the tokens are, and importance sampling of every
kind may follow; and every order has its likelihood: `likelihood.certified_nll` or `ordered_likelihood.ordered_nll`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from edlm.masking import choose_revealed
from edlm.models.denoiser import DenoiserLike, predict
from edlm.order_spec import parse_order
from edlm.randomness import rand
from edlm.schedule import Schedule
from edlm.vocabulary import Predictions


@dataclass(frozen=True)
class Here:
    """Where B sequences are before a step."""

    x: Tensor
    """(B, L)"""
    is_fixed: Tensor
    """(B, L) tokens that were there from the start."""
    t: Tensor
    """(B,) when the step begins,"""
    s: Tensor
    """(B,) and ends."""
    generators: Sequence[torch.Generator]


@dataclass(frozen=True)
class Plan:
    """What a step is going to do."""

    is_revealed: Tensor
    """(B, L)"""
    is_remasked: Tensor | None = None
    """(B, L) known tokens that are masked again; None where that never happens."""
    predictions: Predictions | None = None
    """The denoiser's at all N masked positions, if the order had to ask: nobody asks twice."""


class Order(Protocol):
    """Anything that can plan a step is an order."""

    @property
    def has_grid(self) -> bool:
        """Whether it follows the times of a grid; without, it goes on until nothing is masked."""

    def plan(self, here: Here, denoiser: DenoiserLike) -> Plan:
        """What the step from `here` reveals and hides; when time ends, at s = 0, all that is masked is revealed."""


@dataclass(frozen=True)
class Uniform:
    """Each masked position with the reveal probability of the step, independently of all tokens."""

    has_grid: bool = True

    def plan(self, here: Here, denoiser: DenoiserLike) -> Plan:
        schedule, mask_id = denoiser.schedule, denoiser.mask_id
        return Plan(choose_revealed(here.x, here.t, here.s, schedule, mask_id, generator=here.generators))


@dataclass(frozen=True)
class Confidence:
    """As many positions as the schedule says, rounded; first those with the largest probability of a token.

    The probability is that of the likeliest token, not of a drawn one: S follows from xt. Equal ones go by position.
    """

    has_grid: bool = True

    def plan(self, here: Here, denoiser: DenoiserLike) -> Plan:
        is_masked = here.x == denoiser.mask_id
        num_free = (~here.is_fixed).sum(-1)
        num_left = ((1 - denoiser.schedule.alpha(here.s.double())) * num_free + 0.5).floor()
        num = (is_masked.sum(-1) - num_left).clamp(min=0)  # (B,)
        predictions, doubt = ask(denoiser, here, is_masked & (num > 0).unsqueeze(-1), lambda p: -p.confidence())
        return Plan((rank(doubt) < num.unsqueeze(-1)) & is_masked, predictions=predictions)


@dataclass(frozen=True)
class EntropyBound:
    """Positions in order of their entropy, as long as the sum of all but the largest stays within `bound` nats.

    That sum bounds by how much the tokens of a step, drawn independently, can fall short of their true joint law: their
    joint entropy is at least the largest of theirs. A bound of 0 reveals one token at a time, and all certain ones.
    """

    bound: float
    has_grid: bool = False

    def plan(self, here: Here, denoiser: DenoiserLike) -> Plan:
        is_masked = here.x == denoiser.mask_id
        predictions, entropy = ask(denoiser, here, is_masked, lambda p: p.entropy())
        by_rank, order = entropy.sort(dim=-1, stable=True)
        before = by_rank.cumsum(-1) - by_rank  # the sum but for the largest; NaN behind the last masked one
        chosen = torch.zeros_like(is_masked).scatter(-1, order, before <= self.bound)
        return Plan(chosen & is_masked, predictions=predictions)


@dataclass(frozen=True)
class Remasking:
    """As Uniform, but a known token is masked again with probability sigma, unless it was there from the start.

    As many more are revealed instead: rho = (alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t), so that given the clean
    text each token is still known with probability alpha_s after the step, whatever sigma (ReMDM, Wang et al. 2025).
    """

    share: float
    """eta"""
    rule: Literal["cap", "rescale"] = "cap"
    """Whether sigma is at most eta, or eta times the most that is possible, min(1, (1 - alpha_s) / alpha_t)."""
    has_grid: bool = True

    def plan(self, here: Here, denoiser: DenoiserLike) -> Plan:
        is_masked = here.x == denoiser.mask_id
        rho, sigma = self.rates(denoiser.schedule, here.t.double(), here.s.double())
        chance = torch.where(is_masked, rho.unsqueeze(-1), sigma.unsqueeze(-1))
        changes = rand(here.x.shape, here.generators, device=here.x.device) < chance
        return Plan(changes & is_masked, changes & ~is_masked & ~here.is_fixed)

    def rates(self, schedule: Schedule, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """(rho, sigma) of the step t -> s: the chances that a masked token is revealed and a known one masked."""
        alpha_t, alpha_s = schedule.alpha(t), schedule.alpha(s)
        most = torch.where(alpha_t > 0, (1 - alpha_s) / alpha_t, 0).clamp(max=1)  # at alpha = 0 nothing is known
        sigma = most.clamp(max=self.share) if self.rule == "cap" else self.share * most
        return (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t), sigma


def make_order(spec: str) -> Order:
    """The order of that name."""
    kind, value = parse_order(spec)
    if kind == "entropy":
        return EntropyBound(value)
    if kind.startswith("remask"):
        return Remasking(value, "cap" if kind == "remask-cap" else "rescale")
    return Confidence() if kind == "confidence" else Uniform()


def usual_time(schedule: Schedule, is_masked: Tensor, num_free: Tensor) -> Tensor:
    """The time (B,) at which as many of `num_free` (B,) tokens are masked on average as are at `is_masked` (B, L)."""
    return schedule.time(1 - is_masked.sum(-1).double() / num_free.clamp(min=1))


def ask(
    denoiser: DenoiserLike, here: Here, where: Tensor, question: Callable[[Predictions], Tensor]
) -> tuple[Predictions | None, Tensor]:
    """The denoiser's predictions at `where` (B, L), and the answer to a question about each: (B, L), inf elsewhere.

    Rows without such a position are not read.
    """
    answer = torch.full(here.x.shape, torch.inf, dtype=torch.float64, device=here.x.device)
    rows = where.any(-1)
    if not rows.any():
        return None, answer
    predictions = predict(denoiser, here.x[rows], here.t[rows], where=where[rows])
    return predictions, answer.masked_scatter(where, question(predictions))


def rank(values: Tensor) -> Tensor:
    """The place of each value in its row (B, L), from 0 for the smallest; equal ones keep their order."""
    return values.argsort(dim=-1, stable=True).argsort(-1)
