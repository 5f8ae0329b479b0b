"""Self-normalised importance sampling: k candidates from the denoiser, one resampled by its energy.

Legend: B batch, K candidates, L positions, V vocabulary, N masked positions of the whole batch in row-major order.

Weights stay logarithms in float64 until one is drawn. K keeps its own axis: the candidates of one sequence never meet
those of another.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edlm.energy import Energy
from edlm.errors import UserError
from edlm.randomness import draw


@dataclass(frozen=True)
class ImportanceSampling:
    """The paper's Algorithm 1: energy, number of candidates k, window w; and a temperature on the weights."""

    energy: Energy
    num_candidates: int = 2
    window: float = 1.0
    """Importance sampling while t >= 1 - window; 0 turns it off altogether, as in the paper's ablation."""
    temperature: float = 1.0
    """Weights are exp(-E / temperature); anything but 1 samples from another model than the one that is named."""

    def __post_init__(self) -> None:
        if self.num_candidates < 1:
            raise UserError(f"candidates must be at least 1, got {self.num_candidates}")
        if not 0 <= self.window <= 1:
            raise UserError(f"window must be between 0 and 1, got {self.window}")
        if not self.temperature > 0:
            raise UserError(f"weight temperature must be positive, got {self.temperature}")

    def is_active(self, t: float) -> bool:
        """Whether the step that starts at `t` resamples. One candidate has nothing to choose from."""
        return self.num_candidates > 1 and self.window > 0 and t >= 1 - self.window - 1e-9


@dataclass(frozen=True)
class Choice:
    """What one step's importance sampling saw and chose, for the rows that took part."""

    rows: Tensor
    """(B',) which rows of the batch."""
    x0: Tensor
    """(B', K, L) their candidates."""
    energies: Tensor
    """(B', K) float64."""
    log_weights: Tensor
    """(B', K) normalised."""
    chosen: Tensor
    """(B',) index of the candidate that was taken."""

    @property
    def weights(self) -> Tensor:
        return self.log_weights.exp()

    @property
    def effective_sample_size(self) -> Tensor:
        return effective_sample_size(self.log_weights)

    @property
    def energy_ess(self) -> Tensor:
        return energy_ess(self.energies)


def propose(log_probs: Tensor, xt: Tensor, mask_id: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """K completions of each row of `xt` (B, L), drawn from the denoiser, and the log-probability of each.

    `log_probs` (N, V) are the denoiser's at the masked positions, `uniform` is (B, K, L). Returns candidates (B, K, L)
    and log p_theta (B, K) float64. Known tokens are copied and cost nothing.
    """
    is_masked = xt == mask_id
    K = uniform.shape[1]
    tokens = draw(log_probs, uniform.transpose(1, 2)[is_masked])  # (N, K)
    x0 = xt.unsqueeze(-1).repeat(1, 1, K)  # (B, L, K)
    x0[is_masked] = tokens
    each = log_probs.gather(-1, tokens).double()  # (N, K)
    total = torch.zeros(len(xt), K, dtype=torch.float64, device=xt.device)
    return x0.transpose(1, 2).contiguous(), total.index_add(0, is_masked.nonzero()[:, 0], each)


def log_weights(energies: Tensor, temperature: float = 1.0) -> Tensor:
    """Normalised log-weights over the K candidates of each row: log softmax(-E / temperature), (B, K) float64.

    The minus sign of exp(-E) stands here and nowhere else.
    """
    return torch.log_softmax(-energies.double() / temperature, dim=-1)


def choose(energies: Tensor, uniform: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(index (B,), log-weights (B, K)): one candidate per row, drawn with probability softmax(-E / temperature)."""
    weights = log_weights(energies, temperature)
    return draw(weights, uniform), weights


def check_energies(energies: Tensor, step: int, t: float) -> None:
    """Refuse energies that leave no law to draw from: NaN, minus infinity, or plus infinity for all of a row."""
    bad = energies.isnan() | (energies == -torch.inf)
    if bad.any() or energies.isinf().all(-1).any():
        row = int((bad.any(-1) | energies.isinf().all(-1)).nonzero()[0])
        raise UserError(
            f"the energy of row {row} is {energies[row].tolist()} at step {step} (t = {t:.4g}); "
            "stopped. Check the energy model's weights and precision"
        )


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2 of each row, between 1 and K: (B,)."""
    return torch.exp(2 * log_weights.logsumexp(-1) - (2 * log_weights).logsumexp(-1))


def energy_ess(energies: Tensor) -> Tensor:
    """What the paper's appendix calls ESS: (sum e)^2 / sum e^2 of the energies themselves, not of the weights."""
    return energies.sum(-1) ** 2 / (energies**2).sum(-1)
