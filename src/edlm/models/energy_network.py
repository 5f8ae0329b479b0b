"""The learned energy: a bidirectional transformer that reads what was filled in, where, and the time.

Legend: B batch, L positions, D width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from edlm.models.denoiser import Denoiser
from edlm.models.pretrained import PretrainedModel
from edlm.models.transformer import TimeEmbedding, Transformer, TransformerConfig
from edlm.tokenization import Tokenizer


@dataclass(frozen=True)
class EnergyConfig:
    transformer: TransformerConfig
    inputs: Literal["marked", "joined"] = "marked"
    """How x0 and xt enter: the embedding of x0 plus a learned mark where xt was filled in (the same information, since
    xt is x0 elsewhere), or the embeddings of x0 and xt side by side and projected, as in the paper."""
    pooling: Literal["mean", "sum"] = "mean"
    """How the last hidden states become one vector: the paper's mean, or a sum over what was filled in divided by
    the square root of the length, which lets the energy grow with the number of tokens it judges."""
    target: Literal["clean", "step"] = "clean"
    """What it judges: completions of all masked tokens, or the tokens that one step reveals, others staying masked."""


class EnergyNetwork(PretrainedModel):
    """E(x0, xt, t) or E(xs, xt, t), one number per sequence; begins as a denoiser with E = 0."""

    model_type: ClassVar[str] = "edlm-energy"
    config_class: ClassVar[type] = EnergyConfig

    def __init__(self, config: EnergyConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(config, tokenizer)
        D = config.transformer.width
        self.transformer = Transformer(config.transformer, causal=False)
        self.transformer.head = nn.Linear(D, 1)  # the energy instead of logits
        self.time = TimeEmbedding(D)
        self.time_out = nn.Linear(D, D)
        self.mark = nn.Parameter(torch.zeros(D))
        self.join = nn.Linear(2 * D, D, bias=False) if config.inputs == "joined" else None
        self.vocab_size, self.mask_id = config.transformer.vocab_size, config.transformer.mask_id
        self.length = config.transformer.length
        self._start_at_zero()

    def forward(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Energies (B,) of completions `x0` (B, L) of `xt` (B, L) at times `t` (B,).

        Tokens that a step energy is not to judge are masks in both.
        """
        is_new = ((xt == self.mask_id) & (x0 != self.mask_id)).unsqueeze(-1)  # (B, L, 1)
        h = self.transformer.embedding(x0)
        if self.join is not None:
            h = self.join(torch.cat([h, self.transformer.embedding(xt)], dim=-1))
        h = h + is_new * self.mark + self.time_out(self.time(t)).unsqueeze(1)
        hidden = self.transformer.run(h, t).float()  # (B, L, D)
        if self.config.pooling == "mean":
            pooled = hidden.mean(1)
        else:
            pooled = (hidden * is_new).sum(1) / x0.shape[1] ** 0.5
        return self.transformer.head(pooled).squeeze(-1).float()

    @torch.no_grad()
    def _start_at_zero(self) -> None:
        """The head and all that is new begin without effect, so that E = 0 and the network is the denoiser's."""
        nn.init.zeros_(self.transformer.head.weight)
        nn.init.zeros_(self.transformer.head.bias)
        nn.init.zeros_(self.time_out.weight)
        nn.init.zeros_(self.time_out.bias)
        if self.join is not None:
            D = self.config.transformer.width
            self.join.weight.copy_(torch.cat([torch.eye(D), torch.zeros(D, D)], dim=1))


def energy_from_denoiser(
    denoiser: Denoiser, *, inputs: str = "marked", pooling: str = "mean", target: str = "clean"
) -> EnergyNetwork:
    """An energy network with the denoiser's transformer."""
    config = EnergyConfig(denoiser.config.transformer, inputs, pooling, target)  # type: ignore[arg-type]
    network = EnergyNetwork(config, denoiser.tokenizer)
    own, start = network.transformer.state_dict(), denoiser.transformer.state_dict()
    network.transformer.load_state_dict(own | {k: v for k, v in start.items() if not k.startswith("head.")})
    return network
