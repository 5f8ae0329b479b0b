"""Sequential Monte Carlo along positions: candidates advance from left to right, and bad ones are given up on the way.

Legend: B batch, K particles, L positions, N masked positions of the whole batch in row-major order.

A causal energy is a sum over positions, so a candidate's weight is known piece by piece as a causal model reads it:

    log w = sum over i of  [log p_AR(x^i | x^{<i})  -  log p_theta(x^i | xt) if i is masked]     (coAR: masked i only)

Algorithm 1 waits for the whole sum, whose spread grows with the number of masked tokens until one of k candidates has
all the weight. Here K particles read block after block with a cache of keys and values. When the effective sample size
of what they have so far falls below a threshold, K new ones are drawn among them by weight, and all go on with weight
one. Each reads every position once, so K particles cost what K candidates cost. The product of the mean weights
at these moments is an unbiased estimate of Z(xt), at every K; with K to infinity the particle that is taken in the end
follows the energy-based model, and one particle alone is the denoiser. The particles' tokens come from a `Source`: the
denoiser, all at once, or the causal model, one after the other, with the denoiser looking ahead (`lookahead`).
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from edlm.energy import AutoregressiveEnergy, CarryOverEnergy
from edlm.errors import UserError
from edlm.importance import Candidates, ImportanceSampling, Step, effective_sample_size
from edlm.lookahead import LookAhead, Writing
from edlm.particles import Particles, Reader, begin
from edlm.partition import lower_bound
from edlm.randomness import rand

CACHED_TOKENS = 1 << 14
"""Tokens whose keys and values are kept at a time; more sequences than fit take turns."""


@dataclass(frozen=True)
class SequentialMonteCarlo(ImportanceSampling):
    """`num_candidates` particles that are weighed, and perhaps drawn again, after every `block` positions."""

    block: int = 8
    threshold: float = 0.5
    """They are drawn again when their effective number falls below this share of K."""
    ahead: LookAhead | None = None
    """Who tells particles what is coming while the causal model writes them; None draws them from the denoiser."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.energy, AutoregressiveEnergy | CarryOverEnergy):
            remedy = "use ar:NAME or coar:NAME with the denoiser's tokens, or leave smc out"
            raise UserError(f"only the energy of a causal model is known position by position; {remedy}")
        if self.block < 1:
            raise UserError(f"positions of an smc block must be at least 1, got {self.block}")
        if not 0 <= self.threshold <= 1:
            raise UserError(f"smc threshold must be between 0 and 1, got {self.threshold}")

    def candidates(self, at: Step, uniform: Tensor) -> Candidates:
        end = self.run(at, uniform)
        return Candidates(end.x0, -self.temperature * end.log_path, end.log_weights, log_z=end.log_z)

    def run(self, at: Step, uniform: Tensor, *, first: Tensor | None = None) -> "Particles":
        """The particles at the right end, drawn with `uniform` (B, K, L).

        Where `first` (B, L) is not the mask, the first particle has its token, and that particle is never given up.
        """
        is_masked = at.xt == at.mask_id
        (B, K, L), blocks = uniform.shape, -(-uniform.shape[2] // self.block)
        counts = is_masked if isinstance(self.energy, CarryOverEnergy) else torch.ones_like(is_masked)
        source: Source
        if self.ahead is None:
            x0, log_q = propose_each(at, uniform, first)
            source = Drafted(log_q, self.temperature)
        else:
            x0 = at.xt.unsqueeze(1).expand(B, K, L)
            source = Writing(at, self.ahead, uniform, counts, self.temperature, first)
        numbers = rand((B, blocks, K), at.generators, device=x0.device)
        rows = torch.arange(B, device=x0.device).split(max(1, CACHED_TOKENS // (K * L)))
        parts = [
            self._advance(begin(x0[r]), source.select(r), is_masked[r], counts[r], numbers[r], first is not None)
            for r in rows
        ]
        return Particles(*(torch.cat(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))

    def _advance(
        self, particles: Particles, source: "Source", is_masked: Tensor, counts: Tensor, numbers: Tensor,
        keeps_first: bool,
    ) -> Particles:  # fmt: skip
        """Through all positions, those before the first mask read once for all particles of a sequence."""
        columns = is_masked.any(0).nonzero()[:, 0].tolist() or [0]
        first = columns[0]
        end = columns[-1] + 1 if isinstance(self.energy, CarryOverEnergy) else is_masked.shape[1]
        reader = Reader(self.energy.model, counts)  # type: ignore[attr-defined]
        particles = particles.weighed(reader.read(particles.x0[:, :1], 0, first) / self.temperature)
        start = first
        while start < end:
            stop = min(end, (start // self.block + 1) * self.block)
            particles = source.extend(particles, reader, start, stop)
            goes_on = counts[:, stop:].any(-1)  # at the end one is taken by weight, so nobody draws again
            renewed = goes_on & (effective_sample_size(particles.log_weights) < self.threshold * particles.num)
            if renewed.any():
                ancestors = particles.ancestors(renewed, numbers[:, (stop - 1) // self.block], keeps_first)
                particles = particles.renewed(renewed, ancestors, stop)
                reader.follow(ancestors)
            start = stop
        particles = particles.settled(torch.ones_like(goes_on))
        return replace(particles, log_z=particles.log_z + lower_bound(particles.log_weights))


class Source(Protocol):
    """Where the tokens of particles come from."""

    def select(self, rows: Tensor) -> "Source":
        """That of some sequences."""

    def extend(self, particles: Particles, reader: Reader, start: int, stop: int) -> Particles:
        """The particles after the positions from `start` to `stop`, with their weights."""


@dataclass(frozen=True)
class Drafted:
    """Tokens that the denoiser drew before anything was read."""

    log_q: Tensor
    """(B, K, L) log p_theta of each, 0 where it is known."""
    temperature: float

    def select(self, rows: Tensor) -> "Drafted":
        return replace(self, log_q=self.log_q[rows])

    def extend(self, particles: Particles, reader: Reader, start: int, stop: int) -> Particles:
        log_p = reader.read(particles.x0, start, stop)
        return particles.weighed((log_p - self.log_q[..., start:stop].sum(-1)) / self.temperature)


def propose_each(at: Step, uniform: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """K completions (B, K, L) from the denoiser, and log p_theta of each token (B, K, L) float64, 0 where it is known.

    Where `first` (B, L) is not the mask, the first of the K has its token.
    """
    is_masked = at.xt == at.mask_id
    tokens, each = at.predictions.draw(uniform.transpose(1, 2)[is_masked])  # (N, K)
    if first is not None:
        given = first[is_masked]
        tokens[:, 0] = torch.where(given == at.mask_id, tokens[:, 0], given)
        each[:, 0] = at.predictions.log_prob(tokens[:, 0])
    x0 = at.xt.unsqueeze(-1).repeat(1, 1, uniform.shape[1])  # (B, L, K)
    log_q = torch.zeros(x0.shape, dtype=torch.float64, device=x0.device)
    x0[is_masked], log_q[is_masked] = tokens, each
    return x0.transpose(1, 2).contiguous(), log_q.transpose(1, 2)
