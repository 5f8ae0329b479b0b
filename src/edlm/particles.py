"""Candidates that advance from left to right under a causal model, and the model that reads them.

Legend: B batch, K particles, L positions, V vocabulary, D width.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive, CausalLike
from edlm.models.transformer import Cache
from edlm.partition import lower_bound
from edlm.randomness import draw


@dataclass(frozen=True)
class Particles:
    """K candidates of each of B sequences on their way."""

    x0: Tensor
    """(B, K, L)"""
    log_weights: Tensor
    """(B, K) since they were last drawn again."""
    log_path: Tensor
    """(B, K) of the whole path so far: in the end minus the energy over the temperature."""
    log_ratio: Tensor
    """(B, K) the same, but over the law from which tokens that were not given were drawn: what a bound needs."""
    debt: Tensor
    """(B, K) logarithm of the credit that each has been given for what it is going to meet (see `lookahead`)."""
    log_z: Tensor
    """(B,) logarithm of the estimate of Z from before they were last drawn again; in the end, of all."""

    @property
    def num(self) -> int:
        return self.x0.shape[1]

    def columns(self) -> tuple[Tensor, ...]:
        return self.x0, self.log_weights, self.log_path, self.log_ratio, self.debt, self.log_z

    def weighed(self, increment: Tensor) -> "Particles":
        """After a block with this log-weight, (B, K) or the same for all (B, 1)."""
        totals = self.log_weights, self.log_path, self.log_ratio
        log_w, path, ratio = (total + increment for total in totals)
        return replace(self, log_weights=log_w, log_path=path, log_ratio=ratio)

    def settled(self, which: Tensor) -> "Particles":
        """With the debt of some sequences (B,) paid."""
        due = self.debt * which.unsqueeze(-1)
        return replace(self, log_weights=self.log_weights - due, debt=self.debt - due)

    def ancestors(self, renewed: Tensor, numbers: Tensor, keeps_first: bool) -> Tensor:
        """Whose place each takes (B, K): independent draws by weight where `renewed` (B,), elsewhere its own."""
        drawn = draw(torch.log_softmax(self.log_weights, dim=-1), numbers)
        if keeps_first:
            drawn[:, 0] = 0
        own = torch.arange(self.num, device=drawn.device)
        return torch.where(renewed.unsqueeze(-1), drawn, own)

    def renewed(self, which: Tensor, ancestors: Tensor, stop: int) -> "Particles":
        """With the first `stop` tokens of their ancestors; what comes after is independent of them and stays."""
        x0 = self.x0.clone()
        x0[..., :stop] = x0[..., :stop].gather(1, ancestors.unsqueeze(-1).expand(-1, -1, stop))
        log_w = self.log_weights.masked_fill(which.unsqueeze(-1), 0)
        log_z = self.log_z + lower_bound(self.log_weights).masked_fill(~which, 0)
        path, ratio, debt = (each.gather(1, ancestors) for each in (self.log_path, self.log_ratio, self.debt))
        return Particles(x0, log_w, path, ratio, debt, log_z)


def begin(x0: Tensor) -> Particles:
    """Before anything is read: weight one."""
    zeros = torch.zeros(x0.shape[:2], dtype=torch.float64, device=x0.device)
    return Particles(x0, zeros, zeros, zeros, zeros, zeros[:, 0])


class Reader:
    """A causal model that reads candidates (B, k, L) block by block and remembers what it read, if it can.

    Beginnings that are alike are read once: particles drawn again have few ancestors, so there are far fewer different
    beginnings than particles.
    """

    def __init__(self, model: CausalLike, counts: Tensor) -> None:
        """Only the positions of `counts` (B, L) enter the sums."""
        self.model, self.counts = model, counts
        self.cache = Cache()
        self.rows = torch.zeros(len(counts), 1, dtype=torch.long, device=counts.device)  # (B, k) of the cache

    def read(self, x0: Tensor, start: int, stop: int) -> Tensor:
        """log p of the tokens from `start` to `stop`, given all before them: (B, k) float64."""
        (B, k, _), counts = x0.shape, self.counts[:, start:stop]
        if start == stop:
            return torch.zeros(B, k, dtype=torch.float64, device=x0.device)
        where = counts.unsqueeze(1).expand(-1, k, -1)
        if isinstance(self.model, Autoregressive):
            hidden = self._hidden(self.model, x0, start, stop)
            values = self.model.log_probs_at(hidden[where], x0[..., start:stop], where)
        else:  # no cache: the text is read again from its beginning
            values = self.model(x0[..., :stop].reshape(B * k, stop)).view(B, k, stop)[..., start:] * where
        return values.double().sum(-1)

    def following(self, x0: Tensor, at: int) -> Tensor:
        """log p of every token at a position, given all before it: (B, k, V) float64."""
        if not isinstance(self.model, Autoregressive):
            raise UserError(
                "with lookahead the causal model writes token by token, which only an autoregressive model of edlm "
                "can do; leave lookahead out"
            )
        hidden = self._hidden(self.model, x0, at, at + 1)[:, :, 0]
        return torch.log_softmax(self.model.transformer.head(hidden).float(), dim=-1).double()

    def follow(self, ancestors: Tensor) -> None:
        """Every particle goes on as its ancestor (B, k)."""
        self.rows = self.rows.expand_as(ancestors).gather(1, ancestors)

    def _hidden(self, model: Autoregressive, x0: Tensor, start: int, stop: int) -> Tensor:
        """Hidden states (B, k, stop - start, D) from which these tokens are predicted; each beginning goes in once."""
        B, k, _ = x0.shape
        read = x0[..., start - 1 : stop - 1] if start else model.shift(x0[..., :stop].flatten(0, 1)).view(B, k, stop)
        rows, read, which = different_beginnings(self.rows.expand(B, k).flatten(), read.flatten(0, 1))
        places = self.cache.branch(rows)
        tokens = torch.empty_like(read)
        tokens[places] = read
        self.rows = places[which].view(B, k)
        return model.transformer(tokens, cache=self.cache)[self.rows]


def different_beginnings(rows: Tensor, read: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different pairs of a row (N,) and the tokens (N, l) read behind it, sorted, and which of them each one is."""
    if read.shape[1] == 1:  # as one number, which is sorted far faster
        size = int(read.max()) + 1
        codes, which = torch.unique(rows * size + read[:, 0], return_inverse=True)
        return codes // size, (codes % size).unsqueeze(-1), which
    pairs, which = torch.unique(torch.cat([rows.unsqueeze(-1), read], dim=-1), dim=0, return_inverse=True)
    return pairs[:, 0], pairs[:, 1:], which
