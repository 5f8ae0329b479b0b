"""A source of text: a stream of pieces with an identity that the cache can trust."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from edlm.data.documents import Piece


@dataclass(frozen=True)
class Source:
    """Text to tokenise. `identity` changes whenever the text may have; `pieces` starts reading from the beginning."""

    description: str
    identity: dict[str, Any]
    pieces: Callable[[], Iterator[Piece]] = field(repr=False)
    total: int | None = None
    """How much there is to read, for the progress bar: bytes or documents."""
    total_unit: str = "B"
    own_split: str = ""
    """The amount that validation and test each take when the user names none."""
    own_split_needs: int = 0
    """The fewest tokens for which `own_split` makes sense."""
    normalise_characters: bool = False
    """Whether the text must be normalised before the character tokenizer."""
