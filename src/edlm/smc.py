"""Sequential Monte Carlo along positions: candidates advance from left to right, and bad ones are given up on the way.

Legend: B batch, K particles, L positions, N masked positions of the whole batch in row-major order.

A causal energy is a sum over positions, so a candidate's weight is known piece by piece as a causal model reads it:

    log w = sum over i of  [log p_AR(x^i | x^{<i})  -  log p_theta(x^i | xt) if i is masked]     (coAR: masked i only)

Algorithm 1 waits for the whole sum, whose spread grows with the number of masked tokens until one of k candidates has
all the weight. Here K particles read block after block with a cache of keys and values. When the effective sample size
of what they have so far falls below a threshold, K new ones are drawn among them by weight, and all go on with weight
one. Each reads every position once, so K particles cost what K candidates cost. The product of the mean weights
at these moments is an unbiased estimate of Z(xt), at every K; with K to infinity the particle that is taken in the end
follows the energy-based model, and one particle alone is the denoiser.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edlm.energy import AutoregressiveEnergy, CarryOverEnergy
from edlm.errors import UserError
from edlm.importance import Candidates, ImportanceSampling, Step, effective_sample_size
from edlm.models.autoregressive import Autoregressive, CausalLike
from edlm.models.transformer import Cache
from edlm.partition import lower_bound
from edlm.randomness import draw, rand

CACHED_TOKENS = 1 << 14
"""Tokens whose keys and values are kept at a time; more sequences than fit take turns."""


@dataclass(frozen=True)
class SequentialMonteCarlo(ImportanceSampling):
    """`num_candidates` particles that are weighed, and perhaps drawn again, after every `block` positions."""

    block: int = 8
    threshold: float = 0.5
    """They are drawn again when their effective number falls below this share of K."""

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
        x0, log_q = propose_each(at, uniform, first)
        numbers = rand((B, blocks, K), at.generators, device=x0.device)
        rows = torch.arange(B, device=x0.device).split(max(1, CACHED_TOKENS // (K * L)))
        parts = [
            self._advance(begin(x0[r]), log_q[r], is_masked[r], numbers[r], keeps_first=first is not None) for r in rows
        ]
        return Particles(*(torch.cat(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))

    def _advance(
        self, particles: "Particles", log_q: Tensor, is_masked: Tensor, numbers: Tensor, *, keeps_first: bool
    ) -> "Particles":
        """Through all positions, those before the first mask read once for all particles of a sequence."""
        carries_over = isinstance(self.energy, CarryOverEnergy)
        counts = is_masked if carries_over else torch.ones_like(is_masked)
        columns = is_masked.any(0).nonzero()[:, 0].tolist() or [0]
        first, end = columns[0], columns[-1] + 1 if carries_over else is_masked.shape[1]
        reader = Reader(self.energy.model, counts)  # type: ignore[attr-defined]
        rows = torch.arange(len(counts), device=counts.device)
        particles = particles.weighed(reader.read(particles.x0[:, :1], 0, first) / self.temperature)
        reader.select(rows.repeat_interleave(particles.num))
        start = first
        while start < end:
            stop = min(end, (start // self.block + 1) * self.block)
            log_p = reader.read(particles.x0, start, stop)
            particles = particles.weighed((log_p - log_q[..., start:stop].sum(-1)) / self.temperature)
            goes_on = counts[:, stop:].any(-1)  # at the end one is taken by weight, so nobody draws again
            renewed = goes_on & (effective_sample_size(particles.log_weights) < self.threshold * particles.num)
            if renewed.any():
                ancestors = particles.ancestors(renewed, numbers[:, (stop - 1) // self.block], keeps_first)
                particles = particles.renewed(renewed, ancestors, stop)
                reader.select((particles.num * rows.unsqueeze(-1) + ancestors).flatten())
            start = stop
        return replace(particles, log_z=particles.log_z + lower_bound(particles.log_weights))


@dataclass(frozen=True)
class Particles:
    """K candidates of each of B sequences on their way."""

    x0: Tensor
    """(B, K, L)"""
    log_weights: Tensor
    """(B, K) since they were last drawn again."""
    log_path: Tensor
    """(B, K) of the whole path so far: in the end minus the energy over the temperature."""
    log_z: Tensor
    """(B,) logarithm of the estimate of Z from before they were last drawn again; in the end, of all."""

    @property
    def num(self) -> int:
        return self.x0.shape[1]

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.x0, self.log_weights, self.log_path, self.log_z

    def weighed(self, increment: Tensor) -> "Particles":
        """After a block with this log-weight, (B, K) or the same for all (B, 1)."""
        return replace(self, log_weights=self.log_weights + increment, log_path=self.log_path + increment)

    def ancestors(self, renewed: Tensor, numbers: Tensor, keeps_first: bool) -> Tensor:
        """Whose place each takes (B, K): independent draws by weight where `renewed` (B,), elsewhere its own."""
        drawn = draw(torch.log_softmax(self.log_weights, dim=-1), numbers)
        if keeps_first:
            drawn[:, 0] = 0
        own = torch.arange(self.num, device=drawn.device)
        return torch.where(renewed.unsqueeze(-1), drawn, own)

    def renewed(self, which: Tensor, ancestors: Tensor, stop: int) -> "Particles":
        """With the first `stop` tokens of their ancestors; what comes after is independent of them and stays."""
        x0 = self.x0.clone()
        x0[..., :stop] = x0[..., :stop].gather(1, ancestors.unsqueeze(-1).expand(-1, -1, stop))
        log_w = self.log_weights.masked_fill(which.unsqueeze(-1), 0)
        log_z = self.log_z + lower_bound(self.log_weights).masked_fill(~which, 0)
        return Particles(x0, log_w, self.log_path.gather(1, ancestors), log_z)


def begin(x0: Tensor) -> Particles:
    """Before anything is read: weight one."""
    zeros = torch.zeros(x0.shape[:2], dtype=torch.float64, device=x0.device)
    return Particles(x0, zeros, zeros, zeros[:, 0])


class Reader:
    """A causal model that reads candidates (B, k, L) block by block and remembers what it read, if it can."""

    def __init__(self, model: CausalLike, counts: Tensor) -> None:
        """Only the positions of `counts` (B, L) enter the sums."""
        self.model, self.counts = model, counts
        self.cache = Cache() if isinstance(model, Autoregressive) else None

    def read(self, x0: Tensor, start: int, stop: int) -> Tensor:
        """log p of the tokens from `start` to `stop`, given all before them: (B, k) float64."""
        (B, k, _), counts = x0.shape, self.counts[:, start:stop]
        if start == stop:
            return torch.zeros(B, k, dtype=torch.float64, device=x0.device)
        x, where = x0[..., :stop].reshape(B * k, stop), counts.repeat_interleave(k, dim=0)
        if isinstance(self.model, Autoregressive):
            previous = x[:, start - 1] if start else None
            values = self.model(x[:, start:], where, cache=self.cache, previous=previous)
        else:  # no cache: the text is read again from its beginning
            values = self.model(x)[:, start:] * where
        return values.double().sum(-1).view(B, k)

    def select(self, rows: Tensor) -> None:
        """Go on with some of the rows read so far, which may repeat."""
        if self.cache is not None:
            self.cache = self.cache.select(rows)


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
