"""Where all randomness comes from: explicit generators, and categorical draws that are exact.

Legend: B rows, K candidates, V vocabulary, N independent draws.

A `Randomness` is one `torch.Generator`, or one per row of the batch. With one per row every sequence owns its stream of
numbers, so a batch draws what its rows would draw alone. Generators live on the CPU: a seed means the same everywhere.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edlm.errors import UserError

Randomness = torch.Generator | Sequence[torch.Generator]

GOLDEN = (math.sqrt(5) - 1) / 2
BLOCK = 256  # tokens whose sum stands for them when a large vocabulary is searched
CHUNK_ELEMENTS = 1 << 24  # float64 cumulative sums are made for at most this many (draw, token) pairs at a time


def make_generator(*key: int) -> torch.Generator:
    """A generator seeded by a tuple such as (seed, step, row); different tuples give independent streams."""
    # Fixed-width words behind their number: SeedSequence alone takes (1,) and (1, 0) for the same seed.
    words = [word for part in key for word in (part & 0xFFFFFFFF, part >> 32 & 0xFFFFFFFF)]
    state = np.random.SeedSequence([len(key), *words]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def make_streams(seed: int, rows: Sequence[int] | range) -> list[torch.Generator]:
    """One generator per row, each seeded by (seed, row)."""
    return [make_generator(seed, row) for row in rows]


def rand(shape: Sequence[int], generator: Randomness, *, device: torch.device | str = "cpu") -> Tensor:
    """Uniform float64 numbers in [0, 1); with one generator per row, row b only depends on the b-th generator."""
    if isinstance(generator, torch.Generator):
        return torch.rand(tuple(shape), generator=generator, dtype=torch.float64).to(device)
    if len(generator) != shape[0]:
        raise ValueError(f"one generator per row: got {len(generator)} generators for {shape[0]} rows")
    rows = [torch.rand(tuple(shape[1:]), generator=g, dtype=torch.float64) for g in generator]
    return torch.stack(rows).to(device)


def spread(index: Sequence[int], seed: int) -> Tensor:
    """A number in [0, 1) for each index: uniform over seeds, and evenly spread over any run of indices (B,).

    The additive golden-ratio sequence with a random start, so that any consecutive blocks are nearly stratified.
    """
    start = torch.rand((), generator=make_generator(seed), dtype=torch.float64).item()
    return torch.tensor([(start + GOLDEN * i) % 1 for i in index], dtype=torch.float64)


def draw(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row of `log_probs` (N, V) by inverting its cumulative sum at `uniform` (N,).

    With `uniform` (N, K), K tokens per row: all K share one cumulative sum, so no (N, K, V) is ever made.

    Exact but for the rounding of the probabilities themselves: sums are carried on and compared in float64, and a token
    of probability zero is never drawn. The usual argmax of p / float32 noise truncates the noise and acts like a lower
    temperature.
    """
    rows = max(1, CHUNK_ELEMENTS // log_probs.shape[-1])
    parts = [_invert(lp, u) for lp, u in zip(log_probs.split(rows), uniform.split(rows), strict=True)]
    return torch.cat(parts)


def _invert(log_probs: Tensor, uniform: Tensor) -> Tensor:
    wanted = uniform if uniform.ndim == 2 else uniform.unsqueeze(-1)  # (N, K)
    by_block = log_probs.shape[-1] > 2 * BLOCK and wanted.shape[-1] * BLOCK < log_probs.shape[-1]
    return (_search_blocks if by_block else _search)(log_probs, wanted).view(uniform.shape)


def _search(log_probs: Tensor, uniform: Tensor) -> Tensor:
    return search(log_probs.double().exp().cumsum(-1), uniform)


def _search_blocks(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """The same with one look at the whole vocabulary: find the block by its sum, then the token inside the block."""
    N, V = log_probs.shape
    padded = log_probs.new_empty(N, V + -V % BLOCK)
    torch.exp(log_probs, out=padded[:, :V])
    padded[:, V:] = 0
    probs = padded.unflatten(-1, (-1, BLOCK))  # (N, blocks, BLOCK)
    cumulative = probs.sum(-1).double().cumsum(-1)  # (N, blocks)
    block, share = find(cumulative, uniform)
    rows = torch.arange(N, device=probs.device).unsqueeze(-1)
    inside = probs[rows, block].double().cumsum(-1)  # (N, K, BLOCK)
    return block * BLOCK + search(inside, share.unsqueeze(-1)).squeeze(-1)


def search(cumulative: Tensor, share: Tensor) -> Tensor:
    """Where shares (..., K) of the total fall in a cumulative sum (..., n): (..., K)."""
    return torch.searchsorted(cumulative, _below(cumulative, share), right=True)


def find(cumulative: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and what share of the weight found there comes before the point, to search inside: both (..., K)."""
    place = search(cumulative, share)
    before = F.pad(cumulative, (1, 0)).gather(-1, place)
    return place, (_below(cumulative, share) - before) / (cumulative.gather(-1, place) - before)


def _below(cumulative: Tensor, share: Tensor) -> Tensor:
    """`share` of the total of a cumulative sum (..., n), in its last axis.

    The total differs from one by rounding; taking a share of it, and never all of it, keeps draws inside the support.
    """
    total = cumulative[..., -1:]
    if not total.isfinite().all():
        remedy = "copy them again, or compute in float32"
        raise UserError(f"a network gave probabilities that are not numbers: its weights are not usable; {remedy}")
    return torch.minimum(share * total, torch.nextafter(total, torch.zeros_like(total)))
