"""Causal models from elsewhere behind the interface of ours: tokens in, the log-probability of each out.

Legend: B batch, L positions, D width, V vocabulary, N a few positions at once.
"""

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edlm.errors import UserError
from edlm.memory import fitting
from edlm.strict_tokenizer import StrictTokenizer

CHUNK_LOGITS = 1 << 24
"""Numbers over the vocabulary that are made at a time: memory does not grow with the number of candidates."""
LOGIT_BYTES = 16
"""Memory for one of them and its copies: fewer are made where little is free."""
UNBOUNDED = 1 << 30
"""The length of a model that does not say how much it reads."""


@final
class CausalLM(nn.Module):
    """p(x) = prod_i p(x^i | x^{<i}), the first token after a start symbol.

    The law is over the ids that the tokenizer names. Rows of the network beyond them are padding and get no mass; nor
    do ids that `narrow` leaves out.
    """

    model_type = "causal"

    def __init__(self, network: Any, tokenizer: StrictTokenizer, start_id: int, name: str, *, file: str = "") -> None:
        """`name` is for messages, `file` for the protocol of a result."""
        super().__init__()
        self.network, self.tokenizer, self.start_id, self.file = network.eval(), tokenizer, start_id, file
        self.vocab_size = tokenizer.vocab_size
        self.length: int = getattr(network.config, "max_position_embeddings", None) or UNBOUNDED
        self.never: Tensor | None = None
        """(V,) whether an id is left out."""
        if looks_ahead(network, start_id):  # `transformers` loads a BERT as a causal model without a word
            raise UserError(f"{name} sees the tokens that it should predict: it is no causal model; name one that is")
        self.has_plain_head = has_plain_head(network, start_id)

    def forward(self, x0: Tensor) -> Tensor:
        """log p(x^i | x^{<i}) of every token of `x0` (B, L): (B, L) float32."""
        inputs = F.pad(x0[:, :-1], (1, 0), value=self.start_id)
        if not self.has_plain_head:  # one row at a time: all of its logits are made at once
            rows = zip(inputs.split(1), x0, strict=True)
            return torch.stack([self._log_probs(self._call(self.network, row).logits[0], x) for row, x in rows])
        states, head = self.states(inputs).flatten(0, 1), self.network.get_output_embeddings()  # (B * L, D)
        size = max(1, fitting(CHUNK_LOGITS, LOGIT_BYTES, x0.device) // head.weight.shape[0])
        parts = zip(states.split(size), x0.flatten().split(size), strict=True)
        return torch.cat([self._log_probs(head(part), tokens) for part, tokens in parts]).view_as(x0)

    def states(self, tokens: Tensor) -> Tensor:
        """The last hidden states (B, L, D) after reading `tokens` (B, L), the start symbol among them."""
        states: Tensor = self._call(self.network.base_model, tokens).last_hidden_state
        return states

    def narrow(self, vocab_size: int, without: tuple[int, ...] = ()) -> None:
        """Keep to the first `vocab_size` ids, `without` some of them, and share their mass among the rest.

        So that a denoiser which can write exactly these gives carry-over weights that are normalised.
        """
        self.vocab_size = vocab_size
        self.never = torch.zeros(vocab_size, dtype=torch.bool)
        self.never[list(without)] = True

    def describe(self) -> dict[str, Any]:
        """What its numbers depend on besides the weights."""
        return {"weights": self.file, "start": self.tokenizer.decode([self.start_id])}

    def _call(self, network: Any, tokens: Tensor) -> Any:
        return network(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)

    def _log_probs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """log p of `tokens` (N,) from the outputs of all rows (N, rows): (N,)."""
        logits = logits[:, : self.vocab_size].float()  # (N, V)
        chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        if self.never is not None:
            logits = logits.masked_fill(self.never.to(logits.device), -torch.inf)
        return chosen - logits.logsumexp(-1)


@torch.no_grad()
def looks_ahead(network: Any, token: int) -> bool:
    """Whether the last token changes what is said about the first, beyond rounding."""
    ends = torch.tensor([[token, 0, 0], [token, 0, 1]])
    logits = network(input_ids=ends).logits[:, 0]
    tolerance = 1e-4 if logits.dtype == torch.float32 else 2e-2
    return bool((logits[0] - logits[1]).abs().max() > tolerance * logits.abs().max())


@torch.no_grad()
def has_plain_head(network: Any, token: int) -> bool:
    """Whether logits are the output matrix times the last hidden state and nothing else, as tried on a short input."""
    tokens, head = torch.tensor([[token, 0, 1]]), network.get_output_embeddings()
    if head is None or network.base_model is network:
        return False
    states = network.base_model(input_ids=tokens, use_cache=False)
    logits = network(input_ids=tokens, use_cache=False).logits
    return hasattr(states, "last_hidden_state") and torch.equal(head(states.last_hidden_state), logits)
