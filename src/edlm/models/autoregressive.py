"""The autoregressive model: next-token probabilities, the first token included.

Legend: B batch, L positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from edlm.models.pretrained import PretrainedModel
from edlm.models.transformer import Cache, Transformer, TransformerConfig
from edlm.tokenization import Tokenizer
from edlm.vocabulary import token_log_probs


class CausalLike(Protocol):
    """What energies and bounds ask of a causal model."""

    vocab_size: int
    length: int

    def __call__(self, x0: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class AutoregressiveConfig:
    transformer: TransformerConfig


class Autoregressive(PretrainedModel):
    """p(x) = prod_i p(x^i | x^{<i}) over all L positions.

    The network reads a start symbol before the first token, so that the first token has a probability too; the mask's
    id serves, since no clean text contains it.
    """

    model_type: ClassVar[str] = "edlm-autoregressive"
    config_class: ClassVar[type] = AutoregressiveConfig

    def __init__(self, config: AutoregressiveConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(config, tokenizer)
        self.transformer = Transformer(config.transformer, causal=True)
        self.vocab_size, self.start_id = config.transformer.vocab_size, config.transformer.mask_id
        self.mask_id, self.length = config.transformer.mask_id, config.transformer.length

    def forward(
        self, x0: Tensor, where: Tensor | None = None, *, cache: Cache | None = None, previous: Tensor | None = None
    ) -> Tensor:
        """log p(x^i | x^{<i}) of every token of `x0` (B, L): (B, L).

        With `where` (B, L) only of those tokens, and 0 elsewhere: the vocabulary is then projected only there. With a
        `cache` that has read all the text before `x0` but its last token, that token is `previous` (B,).
        """
        chosen = torch.ones_like(x0, dtype=torch.bool) if where is None else where
        return self.log_probs_at(self.transformer(self.shift(x0, previous), cache=cache, where=chosen), x0, chosen)

    def log_probs_at(self, hidden: Tensor, x0: Tensor, where: Tensor) -> Tensor:
        """log p of the tokens of `x0` (..., L) at the N positions of `where`; `hidden` (N, D) is what precedes them."""
        values = token_log_probs(hidden, self.transformer.head, x0[where])
        return torch.zeros_like(x0, dtype=values.dtype).masked_scatter(where, values)

    def shift(self, x0: Tensor, previous: Tensor | None = None) -> Tensor:
        """What the network reads to predict `x0`: the start symbol (or `previous`), then all tokens but the last."""
        start = torch.full_like(x0[:, :1], self.start_id) if previous is None else previous.unsqueeze(-1)
        return torch.cat([start, x0[:, :-1]], dim=1)

    def next_log_probs(self, tokens: Tensor, cache: Cache) -> Tensor:
        """log p(. | all tokens so far) after reading `tokens` (B, l) behind what `cache` holds: (B, V)."""
        return self.following_log_probs(tokens, cache, 1)[:, 0]

    def following_log_probs(self, tokens: Tensor, cache: Cache, num: int) -> Tensor:
        """The same after each of the last `num` of `tokens` (B, l): (B, num, V)."""
        hidden = self.transformer(tokens, cache=cache)[:, -num:]
        return F.log_softmax(self.transformer.head(hidden).float(), dim=-1)
