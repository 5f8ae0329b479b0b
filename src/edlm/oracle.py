"""Oracles: causal language models that say how likely a text is, to judge what other models wrote.

Legend: B texts scored at once, L positions.

An oracle reads a start symbol before the first token, so all tokens of a text are scored. It never sees two texts at
once, and texts of different lengths are padded on the right, where a causal model does not look.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor, nn

from edlm.errors import UserError
from edlm.generation import windows
from edlm.models.autoregressive import Autoregressive
from edlm.models.causal_lm import UNBOUNDED, CausalLM
from edlm.models.pretrained import fingerprint
from edlm.tokenization import TextError, Tokenizer


@dataclass(frozen=True)
class Scores:
    """What an oracle says about n texts, one entry each."""

    nats: np.ndarray
    """(n,) -log p of the whole text, float64."""
    num_tokens: np.ndarray
    """(n,) the oracle's own tokens, all of them scored, the start symbol not among them."""
    num_characters: np.ndarray
    """(n,)"""


class Oracle(Protocol):
    """Anything that scores texts like this."""

    @property
    def name(self) -> str:
        """How the oracle is called on the command line."""

    @property
    def fingerprint(self) -> str:
        """A hash of its weights."""

    def describe(self) -> dict[str, Any]:
        """The protocol behind its numbers: start symbol, context, precision."""

    def encode(self, text: str) -> list[int]:
        """The tokens it scores; raises `TextError` for a character it cannot read."""

    def nll(self, texts: Sequence[str]) -> Scores:
        """Nats, tokens and characters of each text."""


@final
class CausalOracle:
    """A causal model, ours or from elsewhere, as an oracle. It can also be asked about tokens instead of text."""

    def __init__(self, model: Autoregressive | CausalLM, name: str = "ar", *, batch_size: int = 16) -> None:
        if model.tokenizer is None:
            raise UserError(f"oracle {name} has no tokenizer.json; put the one it was trained with beside its weights")
        self.model, self.name, self.batch_size = model.eval(), name, batch_size
        self.tokenizer: Tokenizer = model.tokenizer
        self.context = None if model.length == UNBOUNDED else model.length
        self.fingerprint = fingerprint(model)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def describe(self) -> dict[str, Any]:
        about = {"start": "the model's own start symbol"}
        about = self.model.describe() if isinstance(self.model, CausalLM) else about
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        return about | {"context": self.context, "precision": dtype}

    def encode(self, text: str) -> list[int]:
        try:
            return self.tokenizer.encode(text).tolist()
        except TextError as error:
            where = f"a text for oracle {self.name}"
            raise TextError(error.character, error.position, error.remedy, where=where) from error

    def nll(self, texts: Sequence[str]) -> Scores:
        return self.nll_of_tokens([self.encode(text) for text in texts], [len(text) for text in texts])

    def nll_of_tokens(self, rows: Sequence[Sequence[int]], num_characters: Sequence[int]) -> Scores:
        """Scores of token sequences, which need not be how the tokenizer would have cut their text."""
        return score_rows(rows, num_characters, self._nats, context=self.context, batch_size=self.batch_size)

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """The last hidden state at the last token of each text (n, D): features for `divergence.compare_texts`.

        Of a text longer than the context, the end is read: the last token sees no more than that anyway.
        """
        model = self.model
        if not isinstance(model, CausalLM):
            raise UserError(f"oracle {self.name} is a model of edlm, whose hidden states are no features; use another")
        most = self.context - 1 if self.context else None
        rows = [[model.start_id, *self.encode(text)[-most if most else None :]] for text in texts]
        vectors = []
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            inputs = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in batch], batch_first=True)
            states = model.states(inputs.to(self.device))  # (B, L, D)
            last = [len(row) - 1 for row in batch]
            vectors.append(states[range(len(batch)), last].double().cpu().numpy())
        return np.concatenate(vectors)

    @torch.no_grad()
    def _nats(self, x0: Tensor) -> Tensor:
        return -self.model(x0.to(self.device)).double().cpu()


def score_rows(
    rows: Sequence[Sequence[int]], num_characters: Sequence[int], nats: Callable[[Tensor], Tensor], *,
    context: int | None, batch_size: int,
) -> Scores:  # fmt: skip
    """Scores of token sequences; `nats` maps right-padded tokens (B, L) to nats of each token (B, L).

    A sequence longer than `context` is read in windows that begin with the start symbol and half overlap; each token is
    scored once, in the first window that holds it, with at least half a context before it. Sums are float64.
    """
    totals = np.zeros(len(rows))
    pieces = sorted(split(rows, context), key=lambda piece: len(piece[1]))  # neighbours need little padding
    for start in range(0, len(pieces), batch_size):
        batch = pieces[start : start + batch_size]
        x0 = nn.utils.rnn.pad_sequence([torch.tensor(tokens) for _, tokens, _ in batch], batch_first=True)
        for (row, tokens, skip), values in zip(batch, nats(x0), strict=True):
            totals[row] += values[skip : len(tokens)].double().sum().item()
    if not np.isfinite(totals).all():
        bad = int(np.flatnonzero(~np.isfinite(totals))[0])
        raise UserError(f"the oracle gives text {bad} {totals[bad]} nats: its weights are not usable")
    return Scores(totals, np.array([len(row) for row in rows]), np.asarray(num_characters))


def split(rows: Sequence[Sequence[int]], context: int | None) -> Iterator[tuple[int, Sequence[int], int]]:
    """(row, its tokens in one window, how many of them an earlier window has scored)."""
    for row, tokens in enumerate(rows):
        if not tokens:
            continue
        done = 0
        for start, stop in windows(len(tokens), context or len(tokens), None):
            yield row, tokens[start:stop], done - start
            done = stop


def score_samples(
    oracle: Oracle, texts: Sequence[str], tokens: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> Scores:
    """Scores of samples: of their tokens if the oracle is one of ours with the vocabulary of the model that drew them.

    Otherwise of their text, cut into the oracle's own tokens. The two differ where a sampler writes a word in another
    way than the tokenizer would.
    """
    if reads_tokens(oracle, tokenizer):
        assert isinstance(oracle, CausalOracle)
        return oracle.nll_of_tokens(tokens, [len(text) for text in texts])
    return oracle.nll(texts)


def reads_tokens(oracle: Oracle, tokenizer: Tokenizer) -> bool:
    """Whether samples are scored as the tokens they were drawn as. Published oracles are used on text."""
    if not isinstance(oracle, CausalOracle) or not isinstance(oracle.model, Autoregressive):
        return False
    return oracle.tokenizer.fingerprint == tokenizer.fingerprint


def check_readable(oracle: Oracle, tokenizer: Tokenizer) -> None:
    """Refuse, before anything is drawn, an oracle that cannot read a character which the sampler's tokens can spell."""
    if reads_tokens(oracle, tokenizer):
        return
    alphabet = sorted({character for token in range(tokenizer.vocab_size) for character in tokenizer.decode([token])})
    try:
        oracle.encode("".join(alphabet))
    except TextError as error:
        raise UserError(
            f"oracle {oracle.name} cannot read {error.character!r}, which the samples may contain; "
            "use an oracle with a byte-level tokenizer, or one trained on the same characters"
        ) from error
