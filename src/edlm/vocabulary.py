"""Over the vocabulary: log-probabilities of given tokens, and exact draws, from hidden states.

Legend: N positions, D width, V vocabulary, K tokens per position.

With 50,000 tokens the last projection makes arrays that dwarf everything else. Here (N, K, V) never exists, and (N, V)
only while it is small. What is larger is summed up once, a few columns at a time: the logarithm of the sum over each
block of tokens. A draw finds its block by these sums and makes the logits of that block again; the log-probability of a
given token needs one logit and all sums.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edlm.memory import fitting
from edlm.products import linear
from edlm.randomness import BLOCK, draw, find, search

ROWS = {"cpu": 1 << 10, "cuda": 1 << 14}
"""Positions that are projected together."""
PIECE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits that exist at a time. On a CPU they stay near it, with the columns of the projection that made them."""
KEPT = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Log-probabilities that are simply written out, all of them."""
LOGIT_BYTES = 16
"""Memory for one of them, with the copies that are made of it on the way: less is taken where little is free."""


class Predictions(Protocol):
    """What a denoiser says about N positions: a distribution over V tokens each."""

    def log_prob(self, tokens: Tensor) -> Tensor:
        """log p of the given tokens (N,) or (N, K), in their shape: float64."""

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """A token for each number of `uniform` (N,) or (N, K), and its log-probability, float64, both in its shape."""

    def confidence(self) -> Tensor:
        """log p of the likeliest token of each position: (N,) float64."""

    def entropy(self) -> Tensor:
        """In nats, of each position's distribution: (N,) float64."""

    def log_probs(self) -> Tensor:
        """All of it: (N, V). For a few positions at a time."""

    def select(self, keep: Tensor) -> "Predictions":
        """Those of some positions: a boolean mask (N,) or indices."""

    def tempered(self, temperature: float) -> "Predictions":
        """p**(1/temperature), normalised."""


@dataclass(frozen=True)
class Table:
    """Predictions that are written out."""

    rows: Tensor
    """(N, V) normalised log-probabilities."""

    def log_prob(self, tokens: Tensor) -> Tensor:
        each = tokens if tokens.ndim == 2 else tokens.unsqueeze(-1)
        return self.rows.gather(-1, each).double().view(tokens.shape)

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        tokens = draw(self.rows, uniform)
        return tokens, self.log_prob(tokens)

    def confidence(self) -> Tensor:
        return self.rows.max(-1).values.double()

    def entropy(self) -> Tensor:
        return torch.special.entr(self.rows.double().exp()).sum(-1)

    def log_probs(self) -> Tensor:
        return self.rows

    def select(self, keep: Tensor) -> "Table":
        return Table(self.rows[keep])

    def tempered(self, temperature: float) -> "Table":
        return self if temperature == 1 else Table(F.log_softmax(self.rows.double() / temperature, dim=-1))


@dataclass(frozen=True)
class Projection:
    """Predictions softmax((W h + b) / temperature) that are never written out."""

    hidden: Tensor
    """(N, D)"""
    weight: Tensor
    """(V, D)"""
    bias: Tensor
    """(V,)"""
    temperature: float = 1.0

    @cached_property
    def log_sums(self) -> Tensor:
        """The logarithm of the sum of exp(logit) over each block of BLOCK tokens: (N, blocks) float32."""
        sums = self.hidden.new_empty(len(self.hidden), -(-len(self.weight) // BLOCK), dtype=torch.float32)
        for rows, columns, logits in self._pieces():
            blocks = slice(columns.start // BLOCK, -(-columns.stop // BLOCK))
            padded = F.pad(logits, (0, -logits.shape[1] % BLOCK), value=-torch.inf)
            sums[rows, blocks] = padded.unflatten(-1, (-1, BLOCK)).logsumexp(-1)
        return sums

    @cached_property
    def log_norm(self) -> Tensor:
        """The logarithm of the sum over all tokens: (N,) float64."""
        return self.log_sums.double().logsumexp(-1)

    def log_prob(self, tokens: Tensor) -> Tensor:
        each = tokens if tokens.ndim == 2 else tokens.unsqueeze(-1)  # (N, K)
        size = max(1, most(PIECE, self.hidden.device) // (each[:1].numel() * self.hidden.shape[1] or 1))
        parts = [self._logits_of(h, y) for h, y in zip(self.hidden.split(size), each.split(size), strict=True)]
        return (torch.cat(parts).double() - self.log_norm.unsqueeze(-1)).view(tokens.shape)

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        wanted = uniform if uniform.ndim == 2 else uniform.unsqueeze(-1)  # (N, K)
        cumulative = (self.log_sums.double() - self.log_norm.unsqueeze(-1)).exp().cumsum(-1)  # (N, blocks)
        block, share = find(cumulative, wanted)
        tokens, values = torch.empty_like(block), torch.empty_like(share)
        row = torch.arange(len(block), device=block.device).unsqueeze(-1).expand_as(block)
        for number, here in _groups(block.flatten()):
            rows, which = row.flatten()[here].unique(return_inverse=True)
            columns = slice(number * BLOCK, min((number + 1) * BLOCK, len(self.weight)))
            logits = self._logits(rows, columns)  # (n, BLOCK)
            inside = (logits - self.log_sums[rows, number].unsqueeze(-1)).double().exp().cumsum(-1)
            place = search(inside[which], share.flatten()[here].unsqueeze(-1))
            tokens.view(-1)[here] = columns.start + place[:, 0]
            values.view(-1)[here] = logits[which].gather(-1, place)[:, 0].double() - self.log_norm[rows[which]]
        return tokens.view(uniform.shape), values.view(uniform.shape)

    def confidence(self) -> Tensor:
        most_likely = torch.full_like(self.log_norm, -torch.inf)
        for rows, _, logits in self._pieces():
            most_likely[rows] = torch.maximum(most_likely[rows], logits.amax(-1).double())
        return most_likely - self.log_norm

    def entropy(self) -> Tensor:
        total = torch.zeros_like(self.log_norm)
        for rows, _, logits in self._pieces():
            log_p = logits.double() - self.log_norm[rows].unsqueeze(-1)
            total[rows] += torch.special.entr(log_p.exp()).sum(-1)
        return total

    def log_probs(self) -> Tensor:
        return F.log_softmax(self._logits(slice(None), slice(None)), dim=-1)

    def select(self, keep: Tensor) -> "Projection":
        chosen = replace(self, hidden=self.hidden[keep])
        if "log_sums" in self.__dict__:
            chosen.__dict__["log_sums"] = self.log_sums[keep]  # what was summed up is not summed up again
        return chosen

    def tempered(self, temperature: float) -> "Projection":
        return self if temperature == 1 else replace(self, temperature=self.temperature * temperature)

    def _pieces(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """(rows, columns, their logits), the columns in whole blocks, so that a column's weights are read once."""
        device, (V, _) = self.hidden.device, self.weight.shape
        limit = most(PIECE, device)
        height = max(1, min(ROWS.get(device.type, ROWS["cpu"]), limit // BLOCK, len(self.hidden)))
        width = BLOCK * max(1, limit // (height * BLOCK))
        for top in range(0, len(self.hidden), height):
            for left in range(0, V, width):
                rows, columns = slice(top, top + height), slice(left, min(left + width, V))
                yield rows, columns, self._logits(rows, columns)

    def _logits(self, rows: slice | Tensor, columns: slice) -> Tensor:
        """(n, c) float32"""
        logits = linear(self.hidden[rows], self.weight[columns], self.bias[columns]).float()
        return logits if self.temperature == 1 else logits / self.temperature

    def _logits_of(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """The logits of tokens (n, K) alone: (n, K) float32."""
        products = self.weight[tokens].float() @ hidden.float().unsqueeze(-1)  # (n, K, 1)
        return (products.squeeze(-1) + self.bias[tokens].float()) / self.temperature


def project(hidden: Tensor, head: nn.Linear) -> Predictions:
    """Predictions softmax(head(hidden)) from hidden states (N, D): written out if that is small or is to be trained."""
    if torch.is_grad_enabled():
        return Table(log_probs(hidden, head))
    weight, bias = _whole(head.weight), _whole(head.bias)
    if hidden.shape[0] * head.out_features <= most(KEPT, hidden.device):
        return Table(log_probs(hidden, lambda h: linear(h, weight, bias)))
    return Projection(hidden, weight, bias)


def log_probs(hidden: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    """log softmax(head(hidden)), all of it: (n, V) float32 from (n, D)."""
    return F.log_softmax(head(hidden).float(), dim=-1)


def token_log_probs(hidden: Tensor, head: nn.Linear, tokens: Tensor) -> Tensor:
    """log p of the tokens (N,) under softmax(head(hidden)), hidden (N, D): (N,) float32."""
    if torch.is_grad_enabled():
        return -F.cross_entropy(head(hidden).float(), tokens, reduction="none")
    return project(hidden, head).log_prob(tokens).float()


def most(limits: Mapping[str, int], device: torch.device) -> int:
    """How many logits a limit allows on a device, or fewer if little memory is left."""
    return fitting(limits.get(device.type, limits["cpu"]), LOGIT_BYTES, device)


def _groups(numbers: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each different number of `numbers` (n,), and where it stands."""
    found, counts = torch.sort(numbers, stable=True), torch.unique(numbers, return_counts=True)
    yield from zip(counts[0].tolist(), found.indices.split(counts[1].tolist()), strict=True)


def _whole(weight: Tensor) -> Tensor:
    """A weight that may be sharded over several processes."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight
