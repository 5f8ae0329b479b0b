"""From per-sequence values to a result that can be trusted: mean, standard error, and the protocol behind them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from edlm.data import Corpus
from edlm.data.blocks import Blocks
from edlm.errors import UserError
from edlm.likelihood import autoregressive_nll, denoiser_nelbo
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser

Score = Callable[[Tensor, Sequence[int]], Tensor]
"""Tokens (B, L) and the index of each sequence in its split, to nats per sequence (B,)."""


@dataclass(frozen=True)
class Likelihood:
    """Bits per character or token with standard error over sequences, and everything needed to measure it again."""

    bits: float
    standard_error: float
    perplexity: float
    unit: str
    quantity: str
    """What `bits` is: the exact value, or an upper bound of which generator."""
    protocol: str
    num_blocks: int
    num_tokens: int
    block_length: int
    steps: int | None
    seed: int | None
    precision: str
    data: dict[str, object] | None = None


def make_score(model: Denoiser | Autoregressive, *, steps: int | None, seed: int) -> Score:
    """How a model scores sequences: the exact likelihood if it has one, else one NELBO estimate each."""
    if isinstance(model, Autoregressive):
        return lambda x0, index: autoregressive_nll(model, x0)
    return lambda x0, index: denoiser_nelbo(model, x0, index, seed=seed, steps=steps)


def score_blocks(
    score: Score, blocks: Blocks, index: Sequence[int], *, batch_size: int, device: torch.device | str, progress: bool
) -> np.ndarray:
    """Nats of the blocks at `index`, in that order: (n,) float64."""
    nats = []
    with tqdm(total=len(index), unit="block", disable=not progress, desc="scoring") as bar:
        for start in range(0, len(index), batch_size):
            part = index[start : start + batch_size]
            x0 = torch.from_numpy(blocks.get(np.asarray(part))).to(device)
            nats.append(score(x0, part).cpu().numpy())
            bar.update(len(part))
    return np.concatenate(nats)


def summarise(
    nats: np.ndarray, model: Denoiser | Autoregressive, *, length: int, unit: str, steps: int | None, seed: int,
    data: dict[str, object] | None = None,
) -> Likelihood:  # fmt: skip
    """Average per-sequence nats into bits per unit. The standard error is over sequences."""
    if not np.isfinite(nats).all():
        bad = int(np.flatnonzero(~np.isfinite(nats))[0])
        raise UserError(f"block {bad} has a likelihood of {nats[bad]}: the model's weights are not usable")
    bits = nats / (length * math.log(2))
    mean = float(bits.mean())
    exact = isinstance(model, Autoregressive)
    return Likelihood(
        bits=mean,
        standard_error=float(bits.std(ddof=1) / math.sqrt(len(bits))) if len(bits) > 1 else math.nan,
        perplexity=2**mean,
        unit=unit,
        quantity="exact NLL"
        if exact
        else f"upper bound (NELBO), {'continuous time' if steps is None else f'T = {steps}'}",
        protocol="certified",
        num_blocks=len(nats),
        num_tokens=len(nats) * length,
        block_length=length,
        steps=None if exact else steps,
        seed=None if exact else seed,
        precision=str(next(model.parameters()).dtype).removeprefix("torch."),
        data=data,
    )


def choose_blocks(num_blocks: int, max_blocks: int) -> list[int]:
    """Which blocks are scored: all, or `max_blocks` evenly spaced ones, so that no part of the split is favoured."""
    if max_blocks <= 0 or max_blocks >= num_blocks:
        return list(range(num_blocks))
    return [i * num_blocks // max_blocks for i in range(max_blocks)]


def evaluate_likelihood(
    model: Denoiser | Autoregressive, corpus: Corpus, split: str, *, steps: int | None, max_blocks: int,
    batch_size: int, seed: int, progress: bool,
) -> Likelihood:  # fmt: skip
    """Score a split of a corpus that is tokenised for this model."""
    blocks = corpus[split]
    index = choose_blocks(len(blocks), max_blocks)
    device = next(model.parameters()).device
    score = make_score(model, steps=steps, seed=seed)
    nats = score_blocks(score, blocks, index, batch_size=batch_size, device=device, progress=progress)
    about = corpus.describe() | {"split": split}
    return summarise(nats, model, length=blocks.length, unit=corpus.unit, steps=steps, seed=seed, data=about)
