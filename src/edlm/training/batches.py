"""Training batches as a function of (seed, row) alone.

Legend: B rows of this process's batch, L positions.

A run reads rows 0, 1, 2, ... of one long list: row r belongs to optimizer step r // batch_size, its text is the r-th of
an endless sequence of shuffled epochs, its noise comes from a generator seeded by (seed, r). So the same rows get the
same noise however they are split over processes and micro-batches, and a resumed run goes on as if never stopped.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from edlm.data.blocks import Blocks
from edlm.masking import corrupt, corrupt_step
from edlm.objectives import Times, stratified_times
from edlm.randomness import make_generator, make_streams, rand, spread
from edlm.schedule import Schedule


class Rows(Dataset[int]):
    """The row numbers of a whole run; the collators below turn them into batches."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: int) -> int:
        return row


@dataclass(frozen=True)
class TextBatches:
    """Rows to clean text: what the causal model trains on."""

    blocks: Blocks
    seed: int

    def __call__(self, rows: list[int]) -> dict[str, Any]:
        epochs, places = np.divmod(np.asarray(rows), len(self.blocks))
        index = [_shuffled(len(self.blocks), self.seed, int(e))[p] for e, p in zip(epochs, places, strict=True)]
        return {"row": torch.tensor(rows), "x0": torch.from_numpy(self.blocks.get(np.asarray(index)))}


@dataclass(frozen=True)
class NoisyBatches:
    """Rows to clean text, a time each, and the masked text at that time: what the denoiser trains on."""

    texts: TextBatches
    schedule: Schedule
    mask_id: int
    batch_size: int
    """Sequences per optimizer step: the times are stratified over these, whichever process holds them."""
    times: Times = field(default_factory=Times)
    negatives: int = 0
    """Sets of numbers per row with which completions will be drawn."""
    steps: bool = False
    """Whether a row is one step of a sampler: `is_revealed` says which masks it reveals, at least one.

    The sampler has T steps, T log-uniform between 1 and L: 1 to 2 steps are as common as 2 to 4, or 128 to 256. More
    than L would add nothing, since their steps reveal one token or none.
    """

    def __call__(self, rows: list[int]) -> dict[str, Any]:
        batch, generators = self.texts(rows), make_streams(self.texts.seed, rows)
        uniform = rand((len(rows),), generators)
        return self._noisy(
            batch, stratified_times(batch["row"] % self.batch_size, self.batch_size, uniform), generators
        )

    def of_blocks(self, index: list[int]) -> dict[str, Any]:
        """The blocks at `index`, unshuffled, each with noise of its own: for validation."""
        x0 = torch.from_numpy(self.texts.blocks.get(np.asarray(index)))
        generators = make_streams(self.texts.seed, index)
        return self._noisy({"row": torch.tensor(index), "x0": x0}, 1 - spread(index, self.texts.seed), generators)

    def _noisy(self, batch: dict[str, Any], u: Tensor, generators: list[torch.Generator]) -> dict[str, Any]:
        rows, x0 = batch["row"], batch["x0"]
        t = self.times.at(u)
        if self.steps:
            size = x0.shape[1] ** -rand((len(rows),), generators)  # 1 / T
            s, noise = (t - size).clamp(min=0), (self.schedule, self.mask_id)
            xt, batch["is_revealed"] = corrupt_step(x0, t, s, *noise, generator=generators)
        else:
            xt = corrupt(x0, t, self.schedule, self.mask_id, generator=generators)
        batch |= {"t": t, "xt": xt}
        if self.negatives:
            batch["uniform"] = rand((len(rows), self.negatives, x0.shape[1]), generators)
        return batch


@lru_cache(maxsize=2)
def _shuffled(num_blocks: int, seed: int, epoch: int) -> np.ndarray:
    state = make_generator(seed, epoch, num_blocks).initial_seed()
    return np.random.Generator(np.random.PCG64(state)).permutation(num_blocks)
