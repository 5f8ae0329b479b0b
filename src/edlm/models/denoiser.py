"""The denoiser: the factorised distribution of the clean tokens given a partly masked sequence.

Legend: B batch, L positions, D width, V vocabulary, N masked positions of the whole batch in row-major order.
"""

from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from edlm.memory import in_one_pass, pass_tokens
from edlm.models.pretrained import PretrainedModel
from edlm.models.transformer import Transformer, TransformerConfig
from edlm.schedule import Schedule, make_schedule
from edlm.tokenization import Tokenizer
from edlm.vocabulary import Predictions, Table, log_probs, project


class DenoiserLike(Protocol):
    """What samplers and bounds ask of a denoiser."""

    vocab_size: int
    mask_id: int
    schedule: Schedule
    uses_time: bool

    def __call__(self, xt: Tensor, t: Tensor | None = None, where: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class DenoiserConfig:
    transformer: TransformerConfig
    schedule: str = "log-linear"


class Denoiser(PretrainedModel):
    """Masked diffusion denoiser (MDLM): p(x0^i | xt) at each masked position i, independently of the others."""

    model_type: ClassVar[str] = "edlm-denoiser"
    config_class: ClassVar[type] = DenoiserConfig
    never: ClassVar[tuple[int, ...]] = ()
    """Ids that get no mass: here none."""

    def __init__(self, config: DenoiserConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(config, tokenizer)
        self.transformer = Transformer(config.transformer, causal=False)
        self.schedule = make_schedule(config.schedule)
        self.vocab_size, self.mask_id = config.transformer.vocab_size, config.transformer.mask_id
        self.length, self.uses_time = config.transformer.length, config.transformer.time_conditioning

    def forward(self, xt: Tensor, t: Tensor | None = None, where: Tensor | None = None) -> Tensor:
        """Normalised log-probabilities (N, V) of the clean token at the masked positions of `xt` (B, L).

        `where` (B, L) picks some of them instead of all. Unmasked positions are copies by definition and have no row;
        `masking.substitute` writes them out. The mask has no column, so it can get no mass.
        """
        return log_probs(self._hidden(xt, t, where), self.transformer.head)

    def hidden(self, xt: Tensor, t: Tensor | None = None, where: Tensor | None = None) -> Tensor:
        """What the distributions are made from: (N, D). Large batches are read in parts."""
        return self._hidden(xt, t, where)

    def _hidden(self, xt: Tensor, t: Tensor | None, where: Tensor | None) -> Tensor:
        """The same inside `forward`: sharded weights are put away again where a way in from outside ends."""
        where = xt == self.mask_id if where is None else where
        rows = max(1, pass_tokens(xt.device) // xt.shape[1])
        if in_one_pass() or len(xt) <= rows:
            return self.transformer(xt, t, where=where)
        times = t.split(rows) if t is not None else repeat(None)
        parts = zip(xt.split(rows), times, where.split(rows), strict=False)
        return torch.cat([self.transformer(x, at, where=chosen) for x, at, chosen in parts])


def predict(denoiser: DenoiserLike, xt: Tensor, t: Tensor | None = None, where: Tensor | None = None) -> Predictions:
    """What the denoiser says about the masked positions of `xt` (B, L), or about those of `where` (B, L).

    Of our own the hidden states are enough; any other gives its whole table.
    """
    if not isinstance(denoiser, Denoiser):
        return Table(denoiser(xt, t, where))
    return project(denoiser.hidden(xt, t, where), denoiser.transformer.head)
