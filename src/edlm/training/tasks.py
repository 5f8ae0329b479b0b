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
from edlm.energy import Energy, judges_steps
from edlm.evaluation import make_score, score_blocks, summarise
from edlm.likelihood_config import LikelihoodConfig
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.nce import LOSSES, contrast, diagnostics
from edlm.objectives import Times, cross_entropy, masked_log_likelihood, nelbo_at_time
from edlm.training.batches import NoisyBatches
from edlm.vocabulary import Table

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
        predictions = Table(self.model(batch["xt"], batch["t"]))
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
    """Contrast: the true completion of a masked sequence, or of one step, against draws of a frozen denoiser."""

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
        what = batch["x0"], batch["xt"], batch["t"], batch["uniform"], batch.get("is_revealed")
        return contrast(self.energy, self.denoiser, *what)

    @torch.no_grad()
    def validate(self, index: Sequence[int], batch_size: int, device: torch.device) -> np.ndarray:
        """Columns: t, tokens judged, loss, then the diagnostics in their order."""
        assert self.validation is not None
        rows = []
        for start in range(0, len(index), batch_size):
            batch = self.validation.of_blocks(list(index[start : start + batch_size]))
            batch = {key: value.to(device) for key, value in batch.items()}
            energies = self.energies(batch)
            judged = batch.get("is_revealed", batch["xt"] == self.denoiser.mask_id).sum(-1)
            columns = [batch["t"], judged, LOSSES[self.form](energies), *diagnostics(energies).values()]
            rows.append(torch.stack([column.double() for column in columns], dim=-1).cpu().numpy())
        return np.concatenate(rows)

    def summarise(self, values: np.ndarray) -> dict[str, float]:
        """Means over all blocks, over those with t in each fifth of (0, 1], and of steps by what they reveal."""
        names = ["loss", *diagnostics(torch.zeros(1, 2))]
        t, judged, loss = values.T[:3]
        metrics = {"standard_error": float(loss.std(ddof=1) / math.sqrt(len(loss))) if len(loss) > 1 else math.nan}
        groups = {"": np.ones_like(t, dtype=bool)} | by_time(t)
        if judges_steps(self.energy):
            groups |= by_size(judged)
        for label, inside in groups.items():
            if inside.any():
                means = values[inside, 2:].mean(0)
                metrics |= {name + label: float(v) for name, v in zip(names, means, strict=True)}
        return metrics


def by_time(t: np.ndarray) -> dict[str, np.ndarray]:
    """Which values belong to each fifth of (0, 1], by the name of the fifth."""
    number = np.ceil(t * NUM_BINS).astype(int) - 1
    return {f"_t{b / NUM_BINS:.1f}-{(b + 1) / NUM_BINS:.1f}": number == b for b in range(NUM_BINS)}


def by_size(judged: np.ndarray) -> dict[str, np.ndarray]:
    """Which steps reveal 1 to 3 tokens, 4 to 15, 16 to 63, ..., by name."""
    number = np.floor(np.log2(judged.clip(min=1)) / 2).astype(int)
    return {f"_revealed{4**b}-{4 ** (b + 1) - 1}": number == b for b in range(number.max() + 1)}


def gather(mine: np.ndarray, world_size: int) -> np.ndarray:
    """Every process's rows, in the order in which they were dealt out."""
    if world_size == 1:
        return mine
    parts: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(parts, mine.tolist())
    every = np.array(parts)  # (processes, rows, ...)
    return every.swapaxes(0, 1).reshape(-1, *every.shape[2:])
