"""A tokenizer as scoring needs it: nothing of a text is lost without a word.

Two things differ from a tokenizer that prepares data. Special tokens spelled out in a text are read as such, since a
sampler wrote them as tokens. And text that would become "unknown", or nothing, is refused: its probability would be
that of another text.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from edlm.errors import UserError
from edlm.tokenization import BPETokenizer, Ids, require_known

if TYPE_CHECKING:
    import tokenizers

REMEDY = "use a model with a byte-level vocabulary"


@final
class StrictTokenizer:
    """The vocabulary of a model from elsewhere, as far as the model has rows for it."""

    unit = "token"

    def __init__(self, inner: "tokenizers.Tokenizer", num_rows: int, unknown: Mapping[str, int]) -> None:
        """`num_rows` of the model's embedding may be more than the tokens (padding), or less (tokens added later)."""
        from tokenizers import Tokenizer

        self._plain = BPETokenizer(Tokenizer.from_str(inner.to_str()))
        self._inner, self._unknown = inner, dict(unknown)
        inner.no_truncation()
        inner.no_padding()
        self.vocab_size = min(self._plain.vocab_size, num_rows)
        self.eos_id, self.fingerprint = self._plain.eos_id, self._plain.fingerprint
        self._known: set[str] = set()

    def encode(self, text: str) -> np.ndarray:
        require_known(text, self._known, self._loses, REMEDY)
        ids = self._ids(text)
        if any(id in ids and spelling not in text for spelling, id in self._unknown.items()):
            raise UserError(f"the tokenizer lacks tokens for a part of {text[:40]!r}; {REMEDY}")
        if max(ids, default=0) >= self.vocab_size:
            raise UserError("the tokenizer has more tokens than its model; one of them is wrong")
        return np.asarray(ids, dtype=np.uint32)

    def decode(self, ids: Ids) -> str:
        return self._plain.decode(ids)

    def tokens(self) -> list[str]:
        return self._plain.tokens()[: self.vocab_size]

    def save(self, folder: Path | str) -> None:
        self._plain.save(folder)

    def _loses(self, character: str) -> bool:
        try:
            ids = self._ids(character)
        except Exception:  # `tokenizers` raises bare Exceptions
            return True
        return bool(set(ids) & set(self._unknown.values())) or not (ids or character.isspace())

    def _ids(self, text: str) -> list[int]:
        return list(self._inner.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def unknown_tokens(tokenizer: Any) -> dict[str, int]:
    """Spelling and id of what stands for unknown text; a tokenizer file may declare one that its settings do not."""
    inner = getattr(tokenizer.backend_tokenizer, "model", None)
    spellings = {tokenizer.unk_token, getattr(inner, "unk_token", None)} - {None}
    vocabulary = tokenizer.get_vocab()
    return {spelling: vocabulary[spelling] for spelling in spellings if spelling in vocabulary}
