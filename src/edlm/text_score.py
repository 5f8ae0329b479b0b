"""The likelihood of texts as they come: tokenised, cut where they are too long, and many draws of each averaged.

Legend: B batch, L positions, D draws.

A text of n tokens is scored as a sequence of n positions, the way `generate` draws one of that length. So the number
belongs to a sampler: a denoiser's is -log p(text | n tokens), and with given tokens it is that of the sampler that
continues them as a prompt, window by window if they do not fit the model. A causal model reads left to right, and its
number is the exact -log of the chance that a text goes on like this.

Texts with the same key share their masks: draw d of one looks at the same moment as draw d of the other. Their
difference is then known better than either, but their errors go together. Nothing depends on what else is scored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log, nan
from zlib import crc32

import numpy as np
import torch
from tqdm import tqdm

from edlm.energy import Energy
from edlm.errors import UserError
from edlm.evaluation import MOST_LOGITS, Score, make_score, mean_and_error, require_finite
from edlm.generation import Model, require_denoiser, require_tokenizer, windows
from edlm.likelihood_config import LikelihoodConfig
from edlm.score_config import Effort
from edlm.tokenization import TextError, Tokenizer, normalise_text8

MOST_TOKENS = 1 << 13
Pair = tuple[np.ndarray, np.ndarray]
"""Ids that are given, and ids that follow them."""


@dataclass(frozen=True)
class TextScore:
    """How likely one text is."""

    text: str
    given: str
    num_tokens: int
    """Tokens that were scored; given ones are not."""
    nats: float
    """-log p(text | given): exact, or an upper bound in expectation, as `quantity` says."""
    standard_error: float
    """Of `nats`, over the draws; 0 where nothing is random."""
    quantity: str
    protocol: str

    @property
    def log_likelihood(self) -> float:
        """log p(text | given) in nats: exact, or a lower bound in expectation."""
        return -self.nats

    @property
    def bits_per_token(self) -> float:
        return self.nats / (self.num_tokens * log(2))


def score_texts(
    model: Model, texts: Sequence[str], config: LikelihoodConfig = LikelihoodConfig(), effort: Effort = Effort(), *,
    energy: Energy | None = None, given: str | Sequence[str] = "", normalise: bool = False, progress: bool = False,
) -> list[TextScore]:  # fmt: skip
    """-log p of each text, after its prefix in `given` (or the one prefix of all).

    Prefix and text are tokenised apart, like a prompt and what is drawn after it.
    """
    prefixes = [given] * len(texts) if isinstance(given, str) else list(given)
    if len(prefixes) != len(texts):
        raise UserError(f"given must be one prefix, or one for each of the {len(texts)} texts, got {len(prefixes)}")
    pairs = list(zip(prefixes, texts, strict=True))
    if normalise:
        pairs = [normalise_pair(prefix, text) for prefix, text in pairs]
    tokenizer = require_tokenizer(model)
    ids = [encode_pair(tokenizer, *pair, number) for number, pair in enumerate(pairs, 1)]
    score = score_of(model, config, energy)
    values = score_ids(model, score, ids, effort, progress=progress)
    return [
        TextScore(text, prefix, len(new), *value, score.quantity, config.protocol)
        for (prefix, text), (_, new), value in zip(pairs, ids, values, strict=True)
    ]


def score_of(model: Model, config: LikelihoodConfig, energy: Energy | None) -> Score:
    """The estimator that a model, perhaps with an energy, and a protocol call for."""
    return make_score(model if energy is None else require_denoiser(model), config, energy)


def score_ids(
    model: Model, score: Score, pairs: Sequence[Pair], effort: Effort = Effort(), *, keys: Sequence[int] = (),
    progress: bool = False,
) -> list[tuple[float, float]]:  # fmt: skip
    """(nats, standard error) of the tokens of each pair that are not given. Without keys all share their masks."""
    draws = effort.num_draws if "seed" in score.uses else 1
    pieces = [piece for number, pair in enumerate(pairs) for piece in cut(number, *pair, model.length, effort.overlap)]
    first = [(keys[piece.text] if keys else 0) + piece.window * draws for piece in pieces]
    values = draw_values(model, score, pieces, first, draws, effort.batch_size, progress=progress)
    totals = np.zeros((len(pairs), draws))
    for piece, row in zip(pieces, values, strict=True):
        totals[piece.text] += row  # draws of one text's windows are added before their spread is measured
    require_finite(totals.mean(1, keepdims=True).tolist(), range(1, len(pairs) + 1), what="text")
    return [summary(row) if "seed" in score.uses else (float(row[0]), 0.0) for row in totals]


def key_of(ids: np.ndarray) -> int:
    """A number for a text, the same on every machine; small enough that `spread` keeps its digits."""
    return crc32(ids.astype("<i8").tobytes()) >> 8


def summary(draws: np.ndarray) -> tuple[float, float]:
    """Mean and standard error of the draws (D,) of one text."""
    return mean_and_error(draws) if len(draws) > 1 else (float(draws[0]), nan)


@dataclass(frozen=True)
class Piece:
    """One window of a text: what the model reads, of which the first tokens are given."""

    text: int
    window: int
    tokens: np.ndarray
    """(L,)"""
    num_given: int


def cut(text: int, given: np.ndarray, new: np.ndarray, length: int, overlap: int | None) -> Iterator[Piece]:
    """The windows in which `generate` would write the tokens of a text; each scores what none before it has."""
    whole, known = np.concatenate([given, new]).astype(np.int64), len(given)
    if overlap is None and len(whole) > length:
        remedy = f"shorten it, or cut it into windows with overlap {length // 2}"
        raise UserError(f"text {text + 1} has {len(whole)} tokens, but the model reads {length}; {remedy}")
    for number, (start, stop) in enumerate(windows(len(whole), length, overlap)):
        if stop > known:
            yield Piece(text, number, whole[start:stop], known - start)
            known = stop


def draw_values(
    model: Model, score: Score, pieces: Sequence[Piece], first: Sequence[int], draws: int, batch_size: int, *,
    progress: bool,
) -> np.ndarray:  # fmt: skip
    """Nats of every draw of every piece, from the index of its first one on: (pieces, D).

    Pieces of one length share batches; nothing is padded.
    """
    device, values = next(model.parameters()).device, np.empty((len(pieces), draws))
    order = sorted(range(len(pieces)), key=lambda p: len(pieces[p].tokens))
    with tqdm(total=values.size, unit="draw", disable=not progress, desc="scoring") as bar:
        for length, group in groupby(order, key=lambda p: len(pieces[p].tokens)):
            rows = [(p, d) for p in group for d in range(draws)]
            size = batch_size or max(1, min(MOST_TOKENS // length, MOST_LOGITS // (length * model.vocab_size)))
            for start in range(0, len(rows), size):
                batch = rows[start : start + size]
                x0 = torch.from_numpy(np.stack([pieces[p].tokens for p, _ in batch])).to(device)
                num_given = torch.tensor([pieces[p].num_given for p, _ in batch], device=device)
                is_given = torch.arange(length, device=device) < num_given.unsqueeze(-1)
                index = [first[p] + d for p, d in batch]
                nats = score.function(x0, index, is_given).view(len(batch), -1)[:, 0].tolist()
                for (p, d), value in zip(batch, nats, strict=True):
                    values[p, d] = value
                bar.update(len(batch))
    return values


def encode_pair(tokenizer: Tokenizer, given: str, text: str, number: int) -> Pair:
    """Ids of both, refused if there is nothing to score."""
    ids = []
    for part, where in ((given, f"what is given before text {number}"), (text, f"text {number}")):
        try:
            ids.append(tokenizer.encode(part))
        except TextError as error:
            raise TextError(error.character, error.position, error.remedy, where=where) from error
    if not len(ids[1]):
        raise UserError(f"text {number} is empty; there is nothing to score")
    return ids[0], ids[1]


def normalise_pair(given: str, text: str) -> tuple[str, str]:
    """Both in a-z and space. A space between them stays on its side; letters on both sides stay one word."""
    if not given:
        return "", normalise_text8(text)
    before, after = normalise_text8(f"{given}x")[:-1], normalise_text8(f"x{text}")[1:]
    return before, after[before.endswith(" ") and after.startswith(" ") :]
