"""A source of text: a stream of pieces with an identity that the cache can trust."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from edlm.data.detokenise import Detokeniser, detokeniser
from edlm.data.documents import Piece, whole_document


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
    only_split: str = ""
    """The one split that all of the source is, for text that is not to be trained on."""
    normalise_characters: bool = False
    """Whether the text must be normalised before the character tokenizer."""


def detokenised(source: Source, name: str) -> Source:
    """The source with every document passed, whole, through the detokeniser `name`."""
    function = detokeniser(name)
    return replace(
        source,
        description=f"{source.description}, detokenised by {name}",
        identity=source.identity | {"detokeniser": name},
        pieces=lambda: _each_document(source.pieces(), function),
    )


def _each_document(pieces: Iterator[Piece], function: Detokeniser) -> Iterator[Piece]:
    parts: list[str] = []
    for piece in pieces:
        parts.append(piece.text)
        if piece.is_last:
            yield from whole_document(function("".join(parts)), piece.where, piece.done)
            parts = []
