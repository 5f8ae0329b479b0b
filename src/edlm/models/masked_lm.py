"""Masked language models from elsewhere as denoisers: BERT and its kind, and masked diffusion models of other projects.

Legend: B batch, L positions, D width, V vocabulary, N masked positions of the whole batch in row-major order.

The diffusion's L positions are text only. What a tokenizer puts around a text ([CLS] and [SEP]) is put around the
sequence here, on the way into the network, and never seen outside.
"""

from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edlm.errors import UserError
from edlm.models.causal_lm import looks_ahead
from edlm.models.denoiser import Denoiser
from edlm.schedule import LogLinear, Schedule
from edlm.tokenization import BPETokenizer


@final
class MaskedLM(nn.Module):
    """p(x0^i | xt) at each masked position i. Special tokens get no mass; known tokens are copies by definition.

    The network's own mask is one of its tokens. Outside this class the mask is id V, one past the vocabulary, as for
    every denoiser here. Time does not enter: these models find out from the number of masks.
    """

    model_type = "masked"
    uses_time = False
    frame: Tensor

    def __init__(
        self, network: Any, tokenizer: BPETokenizer, own_mask_id: int, name: str, *, vocab_size: int,
        never: tuple[int, ...] = (), front: tuple[int, ...] = (), back: tuple[int, ...] = (), shifted: bool = False,
        folder: Path = Path(),
    ) -> None:  # fmt: skip
        """`front` and `back` stand around a text, `never` are the ids without mass, and with `shifted` the network's
        output at a position is about the next one."""
        super().__init__()
        self.network, self.tokenizer, self.name, self.folder = network.eval(), tokenizer, name, folder
        self.vocab_size, self.mask_id, self.own_mask_id = vocab_size, vocab_size, own_mask_id
        self.never = tuple(sorted({*never, own_mask_id} & set(range(vocab_size))))
        self.front, self.back, self.shifted = front, back, shifted
        self.schedule: Schedule = LogLinear()
        self.length = num_positions(network, name) - len(front) - len(back)
        # A buffer is part of the fingerprint: the same weights read in another way are another model.
        self.register_buffer("frame", torch.tensor([*front, own_mask_id, *back, int(shifted)]))
        self._check()
        self.picks = self._picking_changes_nothing()

    def forward(self, xt: Tensor, t: Tensor | None = None, where: Tensor | None = None) -> Tensor:
        """Normalised log-probabilities (N, V) of the clean token at the masked positions of `xt` (B, L).

        `where` (B, L) picks some of them instead of all. Ids in `never` have -inf.
        """
        where = xt == self.mask_id if where is None else where
        logits = self._logits(self._framed(xt), self._placed(where))[:, : self.vocab_size].float()  # (N, V)
        logits[:, list(self.never)] = -torch.inf
        return F.log_softmax(logits, dim=-1)

    def describe(self) -> dict[str, Any]:
        """What it is, for a person."""
        around = " ".join(self.tokenizer.tokens()[id] for id in (*self.front, *self.back)) or "nothing"
        about = {"mask": f"id {self.own_mask_id} of the network", "around a text": around}
        return about | {"tokens without mass": len(self.never), "shifted": self.shifted}

    def _framed(self, xt: Tensor) -> Tensor:
        """What the network reads: its own mask for ours, and what stands around a text."""
        tokens = torch.where(xt == self.mask_id, self.own_mask_id, xt)
        front, back = (xt.new_tensor(ids).expand(len(xt), -1) for ids in (self.front, self.back))
        return torch.cat([front, tokens, back], dim=1)

    def _placed(self, where: Tensor) -> Tensor:
        """Positions of the text (B, L) among the network's outputs."""
        left = len(self.front) - self.shifted
        return F.pad(where, (left, len(self.back) + self.shifted))

    def _logits(self, tokens: Tensor, where: Tensor, *, pick: bool | None = None) -> Tensor:
        """The network's output at `where`: (N, rows). Where it can be, the vocabulary is left out everywhere else."""
        if not (self.picks if pick is None else pick):
            return self.network(input_ids=tokens).logits[where]

        def keep_only(module: nn.Module, inputs: Any, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state[where].unsqueeze(0)  # (1, N, D)
            return output

        hook = self.network.base_model.register_forward_hook(keep_only)
        try:
            return self.network(input_ids=tokens).logits[0]
        finally:
            hook.remove()

    @torch.no_grad()
    def _picking_changes_nothing(self) -> bool:
        """Whether the network's head can be run on a few positions alone, as tried on a short input."""
        tokens = self._framed(torch.full((2, 3), self.mask_id))
        where = self._placed(torch.tensor([[True, False, True], [False, True, False]]))
        if self.network.base_model is self.network:
            return False
        try:
            picked = self._logits(tokens, where, pick=True)
        except Exception:  # no hidden states by that name, or a head that wants all of them
            return False
        plain = self._logits(tokens, where, pick=False)
        return picked.shape == plain.shape and torch.allclose(picked, plain, rtol=1e-4, atol=1e-5)

    def _check(self) -> None:
        if self.shifted and not self.front:
            raise UserError(f"{self.name}: shifted output needs a token before the text, and its tokenizer has none")
        if not looks_ahead(self.network, self.own_mask_id):
            raise UserError(f"{self.name} looks to the left only: it is no masked model; use it as an energy, ar:NAME")


AnyDenoiser = Denoiser | MaskedLM


def num_positions(network: Any, name: str) -> int:
    """How many tokens the network reads. Those of RoBERTa's kind count positions from behind the padding's id."""
    fields = ("max_position_embeddings", "max_sequence_length", "n_positions")
    found = next((value for field in fields if (value := getattr(network.config, field, None))), None)
    if found is None:
        raise UserError(f"{name} does not say how many tokens it reads; set max_position_embeddings in its config.json")
    tables = [module for key, module in network.named_modules() if key.endswith("position_embeddings")]
    unused = [1 + table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
    return int(found) - max(unused, default=0)
