"""Tokenizers: text to ids and back, for 27 characters or for any byte-pair vocabulary.

The mask is not part of a vocabulary. Every model of ours uses `mask_id == tokenizer.vocab_size`, one past the real
tokens, and the causal model starts from the same id.

Raw text is only text: a special token spelled out inside it (`<|endoftext|>`) is encoded as ordinary characters, so no
document can forge an end of document. Corpora that mark documents that way name the mark as `document_separator`.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from edlm.errors import UserError

if TYPE_CHECKING:
    import tokenizers

CHARACTERS = " abcdefghijklmnopqrstuvwxyz"
EOS_CANDIDATES = ("<|endoftext|>", "</s>", "[SEP]")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
UNKNOWN = 255  # marks what is outside the 27 characters in the lookup tables

Ids = Sequence[int] | np.ndarray


class TextError(UserError):
    """Text that a tokenizer cannot represent; `position` counts characters from 0."""

    def __init__(self, character: str, position: int, remedy: str, *, where: str = "the text") -> None:
        super().__init__(f"{where} has {character!r} at character {position}, which the tokenizer lacks; {remedy}")
        self.character, self.position, self.remedy = character, position, remedy


class Tokenizer(Protocol):
    """What data preparation, sampling and scoring need to know about a vocabulary."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included; also the id of the mask."""

    @property
    def eos_id(self) -> int | None:
        """The id that ends a document, or None where there is no such id."""

    @property
    def unit(self) -> str:
        """What bits are counted per: "character" or "token"."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the ids."""

    def encode(self, text: str) -> np.ndarray:
        """The ids of `text`, no special token added; raises `TextError` for what cannot be represented."""

    def decode(self, ids: Ids) -> str:
        """The text of `ids`, special tokens spelled out."""

    def tokens(self) -> list[str]:
        """How the vocabulary spells each id; empty for an id that it leaves out."""

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json, enough for `load_tokenizer(folder)`."""


@final
class CharacterTokenizer:
    """The 27 symbols of text8: space is 0, a to z are 1 to 26. There is no end-of-document id."""

    vocab_size = len(CHARACTERS)
    eos_id = None
    unit = "character"
    fingerprint = hashlib.sha256(CHARACTERS.encode()).hexdigest()

    def __init__(self) -> None:
        self._symbols = np.frombuffer(CHARACTERS.encode(), dtype=np.uint8)
        self._id_of_byte = np.full(256, UNKNOWN, dtype=np.uint8)
        self._id_of_byte[self._symbols] = np.arange(self.vocab_size, dtype=np.uint8)

    def encode(self, text: str) -> np.ndarray:
        # "replace" keeps one byte per character, so that positions in the array are positions in the text.
        ids = self._id_of_byte[np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)]
        unknown = ids == UNKNOWN
        if unknown.any():
            position = int(unknown.argmax())
            raise TextError(text[position], position, "keep to a-z and space, or set normalise to map the text to them")
        return ids

    def decode(self, ids: Ids) -> str:
        ids = _checked(ids, self.vocab_size)
        return self._symbols[ids].tobytes().decode("ascii")

    def tokens(self) -> list[str]:
        return list(CHARACTERS)

    def save(self, folder: Path | str) -> None:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        vocabulary = {symbol: index for index, symbol in enumerate(CHARACTERS)}
        inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        inner.decoder = decoders.Fuse()
        _write(folder, inner, {"edlm_kind": "characters"})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharacterTokenizer)

    def __hash__(self) -> int:
        return hash(self.fingerprint)


@final
class BPETokenizer:
    """Any `tokenizers` vocabulary, with the token that ends a document."""

    unit = "token"

    def __init__(self, inner: "tokenizers.Tokenizer", eos: str | None = None) -> None:
        inner.no_truncation()
        inner.no_padding()
        serialised = inner.to_str()
        inner.encode_special_tokens = True  # special tokens inside raw text stay text
        vocabulary = inner.get_vocab(with_added_tokens=True)
        if eos is not None and eos not in vocabulary:
            raise UserError(f"end-of-document token {eos!r} is not in the vocabulary; name one that is")
        self._inner = inner
        self.eos = eos if eos is not None else next((e for e in EOS_CANDIDATES if e in vocabulary), None)
        self.eos_id: int | None = vocabulary[self.eos] if self.eos is not None else None
        self.vocab_size: int = 1 + max(vocabulary.values(), default=-1)
        self.fingerprint: str = hashlib.sha256(f"{serialised}\n{self.eos_id}".encode()).hexdigest()
        self._known_characters: set[str] = set()

    def encode(self, text: str) -> np.ndarray:
        remedy = "remove it or use a byte-level tokenizer such as bpe:4096"
        require_known(text, self._known_characters, self._loses, remedy)
        # The batch call releases the interpreter's lock and computes no offsets: threads scale, memory stays low.
        encoding = self._inner.encode_batch_fast([text], add_special_tokens=False)[0]
        return np.asarray(encoding.ids, dtype=np.uint32)

    def decode(self, ids: Ids) -> str:
        ids = _checked(ids, self.vocab_size)
        return str(self._inner.decode(ids.tolist(), skip_special_tokens=False))

    def tokens(self) -> list[str]:
        return [self._inner.id_to_token(id) or "" for id in range(self.vocab_size)]

    def save(self, folder: Path | str) -> None:
        settings = {"edlm_kind": "bpe", "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.eos}
        _write(folder, self._inner, settings)

    def _loses(self, character: str) -> bool:
        if "\ud800" <= character <= "\udfff":
            return True  # half of a surrogate pair is no character: no encoding can hold it
        if character.isspace():
            return False
        try:
            cleaner = self._inner.normalizer
            removed_on_purpose = cleaner is not None and not cleaner.normalize_str(character)
            return not removed_on_purpose and not self._inner.encode(character, add_special_tokens=False).ids
        except Exception:  # `tokenizers` raises bare Exceptions
            return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BPETokenizer) and other.fingerprint == self.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __getstate__(self) -> dict[str, Any]:
        return {"json": self._inner.to_str(), "eos": self.eos}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.__init__(Tokenizer.from_str(state["json"]), state["eos"])


def require_known(text: str, known: set[str], loses: Callable[[str], bool], remedy: str) -> None:
    """Refuse text with a character that a tokenizer `loses`; each new one is tried once on its own, then `known`.

    Some vocabularies drop what they do not know without a word.
    """
    new = set(text) - known
    if lost := {character for character in new if loses(character)}:
        position = next(index for index, character in enumerate(text) if character in lost)
        raise TextError(text[position], position, remedy)
    known |= new


def normalise_text8(text: str) -> str:
    """English text in the 27 characters of text8: lower case, digits spelled out, all else a space, runs collapsed.

    Accents are dropped from their letters (é becomes e), letters that are two in English are written so (æ becomes ae),
    and apostrophes split words (don't becomes don t). Leading and trailing spaces are removed.
    """
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text).translate(_LATIN_LETTERS)
        text = re.sub("[\u0300-\u036f]", "", decomposed)
    return " ".join(re.sub("[^\x00-\x7f]", " ", text).translate(_TEXT8_TABLE).split())


def _text8_table() -> dict[int, str]:
    table = {code: chr(code).lower() if chr(code).isalpha() else " " for code in range(128)}
    return table | {ord(str(digit)): f" {name} " for digit, name in enumerate(DIGITS)}


_TEXT8_TABLE = _text8_table()
# Letters without a decomposition in Unicode that English writes in plain ones.
_LATIN_LETTERS = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "ae", "œ": "oe", "Œ": "oe", "ø": "o", "Ø": "o", "ł": "l", "Ł": "l", "đ": "d", "Đ": "d"}
    | {"þ": "th", "Þ": "th", "ð": "d", "Ð": "d", "ı": "i"}
)


def train_bpe(texts: Iterable[str], vocab_size: int, eos: str = "<|endoftext|>") -> BPETokenizer:
    """A byte-level vocabulary learned from `texts`: any text survives the round trip.

    It is smaller than `vocab_size` where the texts have too few repeated pairs to fill it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + 1:
        raise UserError(f"vocab_size must be at least {len(alphabet) + 1} (256 bytes and {eos}), got {vocab_size}")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[eos], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    return BPETokenizer(inner, eos)


def _checked(ids: Ids, vocab_size: int) -> np.ndarray:
    array = np.asarray(ids, dtype=np.int64).reshape(-1)
    outside = array[(array < 0) | (array >= vocab_size)]
    if outside.size:
        hint = " (the mask: sample until none is left)" if outside[0] == vocab_size else ""
        raise UserError(f"id {outside[0]}{hint} is no token; ids run from 0 to {vocab_size - 1}")
    return array


def _write(folder: Path | str, inner: "tokenizers.Tokenizer", settings: dict[str, Any]) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(inner.to_str(pretty=True), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
