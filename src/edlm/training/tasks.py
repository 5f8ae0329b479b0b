"""What is learned: a language model by likelihood, or an energy by contrast. The trainer knows only `Task`.

Legend: B batch, K completions, L positions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from edlm.data.blocks import Blocks
from edlm.energy import Energy
from edlm.evaluation import make_score, score_blocks, summarise
from edlm.likelihood_config import LikelihoodConfig
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.nce import LOSSES, contrast, diagnostics
from edlm.objectives import Times, cross_entropy, masked_log_likelihood, nelbo_at_time
from edlm.training.batches import NoisyBatches
from edlm.vocabulary import table

Batch = dict[str, Tensor]
Model = Denoiser | Autoregressive | EnergyNetwork
Collate = Callable[[list[int]], dict[str, Any]]
NUM_BINS = 5  # of time, in the diagnostics of an energy


class Task(Protocol):
    """A model, its batches, its loss, and how it is validated."""

    @property
    def model(self) -> Model: ...

    @property
    def collate(self) -> Collate: ...

    @property
    def metric(self) -> str:
        """Name of the validation metric of which less is better."""

    @property
    def unit(self) -> str:
        """What the loss is counted in: character, token or sequence."""

    def loss(self, batch: Batch) -> Tensor:
        """The loss of each sequence: (B,)."""

    def validate(self, index: Sequence[int], batch_size: int, device: torch.device) -> np.ndarray:
        """Values of the validation blocks at `index`, one row each."""

    def summarise(self, values: np.ndarray) -> dict[str, float]:
        """Metrics from the rows of all blocks."""


@dataclass(frozen=True)
class LanguageModelTask:
    """Likelihood: the continuous-time NELBO of a denoiser, or the cross-entropy of a causal model, per token."""

    model: Denoiser | Autoregressive
    collate: Collate
    validation: Blocks | None
    unit: str
    seed: int
    times: Times = field(default_factory=Times)
    """How the times of a denoiser's batches are drawn."""
    metric: str = "bits"

    def loss(self, batch: Batch) -> Tensor:
        length = batch["x0"].shape[1]
        if isinstance(self.model, Autoregressive):
            return (cross_entropy(self.model(batch["x0"])) / length).float()
        predictions = table(self.model(batch["xt"], batch["t"]))
        log_likelihood = masked_log_likelihood(predictions, batch["x0"], batch["xt"], self.model.mask_id)
        weight = self.times.spacing(batch["t"])
        return (weight * nelbo_at_time(log_likelihood, batch["t"], self.model.schedule) / length).float()

    def validate(self, index: Sequence[int], batch_size: int, device: torch.device) -> np.ndarray:
        assert self.validation is not None
        score = make_score(self.model, LikelihoodConfig(seed=self.seed))
        return score_blocks(score, self.validation, index, batch_size=batch_size, device=device, progress=False)

    def summarise(self, values: np.ndarray) -> dict[str, float]:
        assert self.validation is not None
        config = LikelihoodConfig(seed=self.seed)
        score = make_score(self.model, config)
        result = summarise(values, score, config, length=self.validation.length, unit=self.unit)
        return {"bits": result.bits, "standard_error": result.standard_error}


@dataclass(frozen=True)
class EnergyTask:
    """Contrast: the true completion of a masked sequence against completions drawn from a frozen denoiser."""

    model: Autoregressive | EnergyNetwork
    energy: Energy
    """The energy that `model` defines."""
    denoiser: Denoiser
    collate: NoisyBatches
    validation: NoisyBatches | None
    form: str
    """binary or ranking."""
    t_weight: float = 0.0
    metric: str = "loss"
    unit: str = "sequence"

    def __post_init__(self) -> None:
        self.denoiser.eval().requires_grad_(False)

    def loss(self, batch: Batch) -> Tensor:
        weight = batch["t"].float() ** self.t_weight
        return weight * LOSSES[self.form](self.energies(batch)).float()

    def energies(self, batch: Batch) -> Tensor:
        """Energies (B, K) of the true completion, then of the drawn ones."""
        return contrast(self.energy, self.denoiser, batch["x0"], batch["xt"], batch["t"], batch["uniform"])

    @torch.no_grad()
    def validate(self, index: Sequence[int], batch_size: int, device: torch.device) -> np.ndarray:
        """Columns: t, loss, then the diagnostics in their order."""
        assert self.validation is not None
        rows = []
        for start in range(0, len(index), batch_size):
            batch = self.validation.of_blocks(list(index[start : start + batch_size]))
            batch = {key: value.to(device) for key, value in batch.items()}
            energies = self.energies(batch)
            columns = [batch["t"], LOSSES[self.form](energies), *diagnostics(energies).values()]
            rows.append(torch.stack([column.double() for column in columns], dim=-1).cpu().numpy())
        return np.concatenate(rows)

    def summarise(self, values: np.ndarray) -> dict[str, float]:
        """Means over all blocks, and over those whose t falls into each fifth of (0, 1]."""
        names = ["loss", *diagnostics(torch.zeros(1, 2))]
        loss = values[:, 1]
        metrics = {"standard_error": float(loss.std(ddof=1) / math.sqrt(len(loss))) if len(loss) > 1 else math.nan}
        metrics |= dict(zip(names, map(float, values[:, 1:].mean(0)), strict=True))
        bins = np.ceil(values[:, 0] * NUM_BINS).astype(int) - 1
        for b in range(NUM_BINS):
            inside = values[bins == b, 1:]
            if len(inside):
                label = f"t{b / NUM_BINS:.1f}-{(b + 1) / NUM_BINS:.1f}"
                metrics |= {f"{name}_{label}": float(v) for name, v in zip(names, inside.mean(0), strict=True)}
        return metrics


def gather(mine: np.ndarray, world_size: int) -> np.ndarray:
    """Every process's rows, in the order in which they were dealt out."""
    if world_size == 1:
        return mine
    parts: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(parts, mine.tolist())
    every = np.array(parts)  # (processes, rows, ...)
    return every.swapaxes(0, 1).reshape(-1, *every.shape[2:])
