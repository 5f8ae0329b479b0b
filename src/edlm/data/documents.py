"""Documents as a stream of pieces: small ones whole, giant ones cut, so that memory stays flat at any size.

The cuts depend on the text alone, never on read sizes or workers. A cut falls before a line break (or else a space)
that follows a visible character: there a GPT-2 style tokenizer would start a new word anyway, so the ids are those of
the uncut text. Only a run of more than `PIECE` characters without a space is cut in the middle.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

PIECE = 1 << 16  # characters
LINE_BREAKS = "\r\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """A document or a part of one."""

    text: str
    is_first: bool
    is_last: bool
    where: str
    """For error messages: the file, and the line where that helps."""
    offset: int = 0
    """Characters of `where` before this piece."""
    done: int = 0
    """How far the source has been read, in the units of its total."""


def whole_document(text: str, where: str, done: int) -> Iterator[Piece]:
    """The pieces of a document at hand; an empty one has none."""
    if 0 < len(text) <= PIECE:
        yield Piece(text, True, True, where, 0, done)
    elif text:
        cutter = DocumentCutter(where)
        yield from cutter.feed(text, done)
        yield from cutter.close(done)


@final
class DocumentCutter:
    """Cuts one text, fed in chunks, into documents at `separator` and giant documents into pieces.

    Line breaks beside a separator belong to it. Empty documents vanish.
    """

    def __init__(self, where: str, separator: str = "") -> None:
        self.where = where
        self.separator = separator
        self._buffer = ""
        self._position = 0  # of the buffer's start within the text
        self._is_first = True

    def feed(self, text: str, done: int) -> Iterator[Piece]:
        """The pieces that are certain now that `text` has come in."""
        text = self._buffer + text
        *complete, rest = text.split(self.separator) if self.separator else [text]
        for self._buffer in complete:
            yield from self._finish(done)
            self._position += len(self.separator)
        self._buffer = rest
        # A separator may have begun at the buffer's end: what could be part of it is not cut yet.
        yield from self._advance(done, reserve=len(self.separator))

    def close(self, done: int) -> Iterator[Piece]:
        """The pieces left at the end of the text."""
        yield from self._finish(done)

    def _advance(self, done: int, reserve: int) -> Iterator[Piece]:
        if self._is_first and self.separator:
            self._skip(len(self._buffer) - len(self._buffer.lstrip(LINE_BREAKS)))
        start = 0
        while len(self._buffer) - start > PIECE + reserve:
            stop = _cut_point(self._buffer, start)
            yield Piece(self._buffer[start:stop], self._is_first, False, self.where, self._position + start, done)
            self._is_first = False
            start = stop
        self._skip(start)

    def _finish(self, done: int) -> Iterator[Piece]:
        yield from self._advance(done, reserve=0)
        text = self._buffer.rstrip(LINE_BREAKS) if self.separator else self._buffer
        if text or not self._is_first:
            yield Piece(text, self._is_first, True, self.where, self._position, done)
        self._skip(len(self._buffer))
        self._is_first = True

    def _skip(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._position += count


def _cut_point(text: str, start: int) -> int:
    limit = start + PIECE
    for blank in ("\n", " "):
        at = text.rfind(blank, start + 1, limit + 1)
        while at > start and text[at - 1].isspace():
            at = text.rfind(blank, start + 1, at)
        if at > start:
            return at
    return limit
