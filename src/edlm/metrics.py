"""What is measured on samples, as pure functions of tokens and of an oracle's nats; every mean has its standard error.

Samples are the unit: tokens of one sample depend on each other, so all standard errors are over samples.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edlm.errors import UserError

Numbers = Sequence[float] | Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error, which is NaN where there was one sample only."""

    mean: float
    standard_error: float


@dataclass(frozen=True)
class Perplexity:
    """How surprised an oracle is by samples, per token of its own and per character."""

    perplexity: Estimate
    nats_per_token: Estimate
    nats_per_character: Estimate
    bits_per_character: Estimate
    num_tokens: int
    num_characters: int


def estimate(values: Numbers) -> Estimate:
    """The mean of one value per sample, and std / sqrt(n)."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        raise UserError("there are no samples to average over; draw at least one")
    error = array.std(ddof=1) / math.sqrt(array.size) if array.size > 1 else math.nan
    return Estimate(float(array.mean()), float(error))


def ratio(numerators: Numbers, denominators: Numbers) -> Estimate:
    """Sum of numerators over sum of denominators, one pair per sample, with its standard error.

        r = sum a / sum b,    se(r)^2 = sum (a - r b)^2 / ((n - 1) n mean(b)^2)       (delta method)

    Not the mean of the ratios, in which a short sample would count as much as a long one.
    """
    a, b = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if not b.sum() > 0:
        raise UserError("the samples are empty texts: there is nothing to score")
    value, n = a.sum() / b.sum(), a.size
    error = math.sqrt(((a - value * b) ** 2).sum() / ((n - 1) * n)) / b.mean() if n > 1 else math.nan
    return Estimate(float(value), float(error))


def scaled(value: Estimate, factor: float) -> Estimate:
    """The same quantity in another unit."""
    return Estimate(value.mean * factor, value.standard_error * abs(factor))


def exponential(value: Estimate) -> Estimate:
    """exp of an estimate; its standard error is multiplied by the derivative (delta method)."""
    return scaled(Estimate(1.0, value.standard_error), math.exp(value.mean) if value.mean < 709 else math.inf)


def perplexity(nats: Numbers, num_tokens: Numbers, num_characters: Numbers) -> Perplexity:
    """Generative perplexity from an oracle's nats, tokens and characters of each sample.

        perplexity = exp(sum of nats / sum of tokens)

    A token is the oracle's, so perplexities of oracles with different tokenizers cannot be compared; values per
    character can.
    """
    per_token, per_character = ratio(nats, num_tokens), ratio(nats, num_characters)
    return Perplexity(
        perplexity=exponential(per_token),
        nats_per_token=per_token,
        nats_per_character=per_character,
        bits_per_character=scaled(per_character, 1 / math.log(2)),
        num_tokens=int(np.sum(num_tokens)),
        num_characters=int(np.sum(num_characters)),
    )


def token_entropy(tokens: Sequence[int]) -> float:
    """Entropy in nats of one sample's token histogram: -sum over v of (n_v / L) log(n_v / L).

    At most log of the number of tokens in the sample. Public code reports it in nats or in bits without saying so.
    """
    counts = np.array(list(Counter(tokens).values()), dtype=np.float64)
    if not counts.size:
        raise UserError("an empty sample has no entropy; draw sequences of at least one token")
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum()) + 0.0  # a single symbol has entropy 0, not -0


def distinct(tokens: Sequence[int], n: int) -> float:
    """Different n-grams of one sample over all its n-grams; NaN if it is shorter than n.

    Falls with the sample's length by itself: compare only samples of one length.
    """
    grams = list(zip(*(tokens[start:] for start in range(n)), strict=False))
    return len(set(grams)) / len(grams) if grams else math.nan


def distinct_share(samples: Sequence[Sequence[int]]) -> float:
    """Different samples over all samples: the one number here that sees a sampler that repeats itself."""
    return len({tuple(tokens) for tokens in samples}) / len(samples)
