"""An autoregressive energy over another tokenizer: candidates are decoded, and their text is read by the other model.

Legend: B batch, K candidates, L positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edlm.oracle import CausalOracle
from edlm.tokenization import Tokenizer


@dataclass(frozen=True)
class RetokenisedEnergy:
    """E = -log p_AR(text of x0) + log p_theta(x0 | xt), the text cut as the causal model's own tokenizer cuts it.

    The other tokens of a text do not line up with the denoiser's, so there is no sum over masked positions and no
    carry-over form. Nor is Z known anywhere, not even where all is masked: p_AR sums to one over its own token
    sequences of any length, not over the texts that L tokens of the denoiser can spell.
    """

    oracle: CausalOracle
    tokenizer: Tokenizer
    """The denoiser's."""
    num_passes: int = 1

    @property
    def model(self) -> nn.Module:
        return self.oracle.model

    def __call__(self, x0: Tensor, xt: Tensor, t: Tensor, log_proposal: Tensor) -> Tensor:
        texts = [self.tokenizer.decode(tokens) for tokens in x0.flatten(0, 1).tolist()]
        different = list(dict.fromkeys(texts))  # late in a trajectory many candidates are the same
        nats = dict(zip(different, self.oracle.nll(different).nats.tolist(), strict=True))
        each = torch.tensor([nats[text] for text in texts], dtype=torch.float64, device=x0.device)
        return log_proposal.double() + each.view(log_proposal.shape)
