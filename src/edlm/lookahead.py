"""Particles that a causal model writes, and to which the denoiser tells what is coming.

Legend: B batch, K particles, L positions, V vocabulary, n sequences that are masked at a position.

Particles drawn from the denoiser alone do not see each other's tokens, so nearly all of them are given up again. Here a
particle draws its next token from what the causal model says of it, which has read all tokens of this particle so far,
corrected by what the known tokens on both sides say, which the denoiser has read:

    q(x) = target(x) r(x) / C,     r(x) = (p_theta(x | xt) / p_theta(x | nothing known)) ** strength

target(x) = p_AR(x | x^{<i}) at weight temperature 1. The law that is aimed at is the same as without, since the weight
makes up for q: it is C / r(x) at this position. But 1 / r would punish a particle for having looked ahead, and it would
be given up before what it saw has come. So r is lent to it, as a debt, until the next known token shows what it was
good for:

    weight *= C at a masked position, and p_AR(x | x^{<i}) / (r of all tokens since) at a known one

Any q and any such credit leave the estimate of Z unbiased, as long as all is paid in the end. Where nothing is known
r = 1, the particles are texts of the causal model, and all weights are one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edlm.importance import Step
from edlm.models.denoiser import DenoiserLike, predict
from edlm.particles import Particles, Reader
from edlm.randomness import draw


class LookAhead:
    """How much of what the denoiser says is believed, and what it says where it knows nothing."""

    def __init__(self, denoiser: DenoiserLike, strength: float) -> None:
        self.denoiser, self.strength = denoiser, strength
        self._background: dict[tuple[int, torch.device], Tensor] = {}

    def background(self, length: int, device: torch.device) -> Tensor:
        """log p_theta(x | nothing known), the mean over the positions of a text of this length: (V,) float64."""
        key = length, device
        if key not in self._background:
            xt = torch.full((1, length), self.denoiser.mask_id, device=device)
            predictions = predict(self.denoiser, xt, torch.ones(1, device=device))
            parts = [predictions.select(torch.tensor([i], device=device)).log_probs() for i in range(length)]
            self._background[key] = torch.logsumexp(torch.cat(parts).double(), dim=0) - torch.tensor(length).log()
        return self._background[key]


def look_ahead(denoiser: DenoiserLike, strength: float) -> LookAhead | None:
    """Nobody who looks ahead if the strength is 0."""
    return LookAhead(denoiser, strength) if strength else None


@dataclass(frozen=True)
class Writing:
    """A step's particles, written position by position."""

    at: Step
    ahead: LookAhead
    uniform: Tensor
    """(B, K, L) numbers that the tokens are drawn with."""
    counts: Tensor
    """(B, L) positions that enter the energy."""
    temperature: float
    given: Tensor | None = None
    """(B, L) tokens of the first particle, where that is not the mask."""

    def select(self, rows: Tensor) -> "Writing":
        """Those of some sequences."""
        at, masked_row = self.at, (self.at.xt == self.at.mask_id).nonzero()[:, 0]
        predictions = at.predictions.select(torch.isin(masked_row, rows))
        part = replace(at, predictions=predictions, xt=at.xt[rows], is_revealed=at.is_revealed[rows])
        given = self.given[rows] if self.given is not None else None
        return replace(self, at=part, uniform=self.uniform[rows], counts=self.counts[rows], given=given)

    def extend(self, particles: Particles, reader: Reader, start: int, stop: int) -> Particles:
        """The particles after the positions from `start` to `stop`."""
        for i in range(start, stop):
            particles = self._extend_by_one(particles, reader.following(particles.x0, i), i)
        return particles

    def _extend_by_one(self, particles: Particles, log_p: Tensor, i: int) -> Particles:
        """After position i, where the causal model's distributions are `log_p` (B, K, V)."""
        is_masked = self.at.xt[:, i] == self.at.mask_id
        x0 = particles.x0.clone()
        known = log_p.gather(-1, x0[..., i : i + 1].clamp(max=log_p.shape[-1] - 1)).squeeze(-1)
        step = (known * self.counts[:, i : i + 1] / self.temperature).masked_fill(is_masked.unsqueeze(-1), 0)
        after = particles.settled(~is_masked).weighed(step)
        if not is_masked.any():
            return after
        drawn = self._draw(log_p[is_masked], is_masked, i)
        x0[is_masked, :, i] = drawn.tokens
        totals = after.log_weights, after.log_path, after.log_ratio, after.debt
        added = drawn.log_norm, drawn.log_path, drawn.log_ratio, drawn.credit
        log_w, path, ratio, debt = (total.clone() for total in totals)
        for total, more in zip((log_w, path, ratio, debt), added, strict=True):
            total[is_masked] += more
        return replace(after, x0=x0, log_weights=log_w, log_path=path, log_ratio=ratio, debt=debt)

    def _draw(self, log_p: Tensor, is_masked: Tensor, i: int) -> "Drawn":
        """A token for each particle of the n sequences that are masked here; `log_p` (n, K, V)."""
        theta = self._denoiser_says(i).unsqueeze(1)  # (n, 1, V)
        background = self.ahead.background(self.at.xt.shape[1], theta.device)
        credit = (self.ahead.strength * (theta - background)).masked_fill(theta == -torch.inf, 0)
        target = log_p / self.temperature + (1 - 1 / self.temperature) * theta.clamp(min=torch.finfo(theta.dtype).min)
        target = target.masked_fill(theta == -torch.inf, -torch.inf)  # the denoiser never writes it
        log_q = target + credit
        log_norm = torch.logsumexp(log_q, dim=-1, keepdim=True)
        log_q = log_q - log_norm
        tokens = draw(log_q.flatten(0, 1), self.uniform[is_masked, :, i].flatten()).view(log_p.shape[:2])
        is_given = torch.zeros_like(tokens, dtype=torch.bool)
        if self.given is not None:
            given = self.given[is_masked, i]
            is_given[:, 0] = given != self.at.mask_id
            tokens[:, 0] = torch.where(is_given[:, 0], given, tokens[:, 0])
        own = [_of(each.expand_as(log_q), tokens) for each in (target, theta, log_q, credit)]
        return Drawn(tokens, log_norm.squeeze(-1), own[0] - own[1], own[0] - own[2].where(~is_given, own[1]), own[3])

    def _denoiser_says(self, i: int) -> Tensor:
        """log p_theta(. | xt) at position i of the sequences that are masked there: (n, V) float64."""
        where = (self.at.xt == self.at.mask_id).nonzero()[:, 1]
        return self.at.predictions.select(where == i).log_probs().double()


@dataclass(frozen=True)
class Drawn:
    """The tokens of n sequences at one position, and what they add to the totals of their particles: (n, K) each."""

    tokens: Tensor
    log_norm: Tensor
    log_path: Tensor
    log_ratio: Tensor
    credit: Tensor


def _of(log_probs: Tensor, tokens: Tensor) -> Tensor:
    return log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
