"""Over the vocabulary a few rows at a time: log-probabilities of given tokens, and exact draws, from hidden states.

Legend: N positions, D width, V vocabulary, K tokens per position.

With 50,000 tokens the last projection makes arrays that dwarf everything else. Here (N, K, V) never exists, and (N, V)
only while it is small: larger ones are projected, read and forgotten in pieces that stay near the processor.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from edlm.memory import fitting
from edlm.randomness import draw

PIECE = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Logits that exist at a time."""
KEPT = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Log-probabilities that are kept for the next question about the same positions, instead of being made again."""
LOGIT_BYTES = 16
"""Memory for one of them, with the copies that are made of it on the way: less is taken where little is free."""


@dataclass(frozen=True)
class Predictions:
    """What a denoiser says about N positions: a distribution over V tokens each."""

    rows: Tensor
    """(N, D) hidden states, or (N, V) log-probabilities."""
    log_probs_of_rows: Callable[[Tensor], Tensor]
    """(n, D) to (n, V) normalised log-probabilities."""
    vocab_size: int

    def log_prob(self, tokens: Tensor) -> Tensor:
        """log p of the given tokens (N,) or (N, K), in their shape: float64."""
        return torch.cat([_pick(log_probs, tokens[part]) for part, log_probs in self._pieces()])

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """A token for each number of `uniform` (N,) or (N, K), and its log-probability, float64, both in its shape."""
        tokens, values = [], []
        for part, log_probs in self._pieces():
            tokens.append(draw(log_probs, uniform[part]))
            values.append(_pick(log_probs, tokens[-1]))
        return torch.cat(tokens), torch.cat(values)

    def confidence(self) -> Tensor:
        """log p of the likeliest token of each position: (N,) float64."""
        return torch.cat([log_probs.max(-1).values.double() for _, log_probs in self._pieces()])

    def entropy(self) -> Tensor:
        """In nats, of each position's distribution: (N,) float64."""
        return torch.cat([torch.special.entr(log_probs.double().exp()).sum(-1) for _, log_probs in self._pieces()])

    def log_probs(self) -> Tensor:
        """All of it: (N, V). For a few positions at a time."""
        return self.log_probs_of_rows(self.rows)

    def select(self, keep: Tensor) -> "Predictions":
        """Those of some positions: a boolean mask (N,) or indices."""
        return replace(self, rows=self.rows[keep])

    def tempered(self, temperature: float) -> "Predictions":
        """p**(1/temperature), normalised."""
        if temperature == 1:
            return self
        inner = self.log_probs_of_rows
        return replace(self, log_probs_of_rows=lambda rows: F.log_softmax(inner(rows).double() / temperature, dim=-1))

    def _pieces(self) -> Iterator[tuple[slice, Tensor]]:
        size = max(1, most(PIECE, self.rows.device) // self.vocab_size)
        if torch.is_grad_enabled():
            size = max(1, len(self.rows))  # the backward pass keeps all pieces anyway
        for start in range(0, max(1, len(self.rows)), size):
            part = slice(start, start + size)
            yield part, self.log_probs_of_rows(self.rows[part])


def most(limits: Mapping[str, int], device: torch.device) -> int:
    """How many logits a limit allows on a device, or fewer if little memory is left."""
    return fitting(limits.get(device.type, limits["cpu"]), LOGIT_BYTES, device)


def _pick(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """log p (n,) or (n, K) of tokens in that shape, from (n, V): float64."""
    each = tokens if tokens.ndim == 2 else tokens.unsqueeze(-1)
    return log_probs.gather(-1, each).double().view(tokens.shape)


def table(log_probs: Tensor) -> Predictions:
    """Predictions that are written out: (N, V)."""
    return Predictions(log_probs, lambda rows: rows, log_probs.shape[-1])


def project(hidden: Tensor, log_probs_of_rows: Callable[[Tensor], Tensor], vocab_size: int) -> Predictions:
    """Predictions from hidden states (N, D): written out if that is small, else projected whenever they are asked."""
    if hidden.shape[0] * vocab_size <= most(KEPT, hidden.device):
        return table(log_probs_of_rows(hidden))
    return Predictions(hidden, log_probs_of_rows, vocab_size)


def token_log_probs(hidden: Tensor, head: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """log p of the tokens (N,) under softmax(head(hidden)), hidden (N, D): (N,) float32, a few rows at a time."""
    if torch.is_grad_enabled():
        return -F.cross_entropy(head(hidden).float(), tokens, reduction="none")
    vocab_size = head(hidden[:1]).shape[-1]
    size = max(1, most(PIECE, hidden.device) // vocab_size)
    parts = [
        -F.cross_entropy(head(h).float(), y, reduction="none")
        for h, y in zip(hidden.split(size), tokens.split(size), strict=True)
    ]
    return torch.cat(parts)
