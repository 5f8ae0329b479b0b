"""From documents to one flat file of tokens.

Every document is followed by the end token where the tokenizer has one. Character documents have none, and others may
go without: they are joined by one space, so that words do not run together. The workers are threads; order, and so the
file, do not depend on them.
"""

import hashlib
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, final

import numpy as np

from edlm.data.documents import Piece
from edlm.data.source import Source
from edlm.errors import UserError
from edlm.tokenization import TextError, Tokenizer, normalise_text8

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger(__name__)
BATCH_CHARACTERS = 1 << 19
BATCH_PIECES = 512
TOKENS, DOCUMENTS, META = "tokens.bin", "documents.bin", "meta.json"


@dataclass(frozen=True)
class Encoder:
    """How pieces become ids; shared by all workers."""

    tokenizer: Tokenizer
    normalise: bool = False
    marks_documents: bool = True

    @property
    def end_id(self) -> int | None:
        """What follows every document, if anything does."""
        return self.tokenizer.eos_id if self.marks_documents else None

    def encode_batch(self, pieces: list[Piece]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all pieces, and where within them documents end."""
        parts = [self._encode(piece) for piece in pieces]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return np.concatenate(parts), ends[[piece.is_last for piece in pieces]]

    def _encode(self, piece: Piece) -> np.ndarray:
        text = normalise_text8(piece.text) if self.normalise else piece.text
        try:
            ids = self.tokenizer.encode(text)
        except TextError as error:
            position = piece.offset + error.position
            raise TextError(error.character, position, error.remedy, where=piece.where) from error
        if self.end_id is not None:
            return np.append(ids, np.uint32(self.end_id)) if piece.is_last else ids
        joins_words = piece.is_first or self.normalise  # normalising strips the space at a cut
        return np.append(self.tokenizer.encode(" "), ids) if joins_words and len(ids) else ids


def pack(
    source: Source, encoder: Encoder, folder: Path, *, limit: int, num_workers: int, progress: bool | None
) -> None:
    """Write the tokens of `source`, the ends of its documents and a description of both into `folder`."""
    dtype = np.min_scalar_type(encoder.tokenizer.vocab_size)
    pieces = _noticing_marks(first_documents(source.pieces(), limit), encoder.tokenizer)
    with (folder / TOKENS).open("wb") as tokens, (folder / DOCUMENTS).open("wb") as documents:
        writer = _Writer(
            tokens, documents, dtype, skip=0 if encoder.end_id is not None else len(encoder.tokenizer.encode(" "))
        )
        with progress_bar(source, progress) as bar:
            for ids, ends, done in _encoded(pieces, encoder, num_workers or os.cpu_count() or 1):
                writer.write(ids, ends)
                bar.update(done - bar.n)
    if writer.num_tokens == 0:
        raise UserError(f"source {source.description!r} holds no text; name one that does")
    _write_meta(folder, source, encoder, writer, dtype)


def first_documents(pieces: Iterator[Piece], limit: int) -> Iterator[Piece]:
    """The pieces of the first `limit` documents; 0 means all."""
    num_ended = 0
    for piece in pieces:
        yield piece
        num_ended += piece.is_last
        if num_ended == limit and limit:
            return


def _noticing_marks(pieces: Iterator[Piece], tokenizer: Tokenizer) -> Iterator[Piece]:
    """The same pieces, with one warning where text spells out the end token: it may be a separator nobody named."""
    mark = tokenizer.decode([tokenizer.eos_id]) if tokenizer.eos_id is not None else ""
    for piece in pieces:
        if mark and mark in piece.text:
            logger.warning(
                "%s spells out %s, kept as plain text; document_separator can split there", piece.where, mark
            )
            mark = ""
        yield piece


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    num_characters = 0
    for piece in pieces:
        batch.append(piece)
        num_characters += len(piece.text)
        if num_characters >= BATCH_CHARACTERS or len(batch) == BATCH_PIECES:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _encoded(
    pieces: Iterable[Piece], encoder: Encoder, num_workers: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """The results of all batches in order, with only a few batches in memory at a time."""
    waiting: deque[tuple[Future[tuple[np.ndarray, np.ndarray]], int]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        try:
            for batch in _batches(pieces):
                if len(waiting) == 2 * num_workers:
                    future, done = waiting.popleft()
                    yield *future.result(), done
                waiting.append((pool.submit(encoder.encode_batch, batch), batch[-1].done))
            while waiting:
                future, done = waiting.popleft()
                yield *future.result(), done
        finally:
            pool.shutdown(cancel_futures=True)


@final
class _Writer:
    """Appends ids and document ends to their files and keeps count; `skip` drops the space that opens the stream."""

    def __init__(self, tokens: IO[bytes], documents: IO[bytes], dtype: np.dtype[Any], skip: int) -> None:
        self._tokens, self._documents, self._dtype, self._skip = tokens, documents, dtype, skip
        self._hash = hashlib.sha256()
        self.num_tokens = 0
        self.num_documents = 0

    def write(self, ids: np.ndarray, ends: np.ndarray) -> None:
        skip = min(self._skip, len(ids))
        self._skip -= skip
        data = ids[skip:].astype(self._dtype).tobytes()
        self._tokens.write(data)
        self._hash.update(data)
        self._documents.write((np.maximum(ends - skip, 0) + self.num_tokens).astype(np.int64).tobytes())
        self.num_tokens += len(ids) - skip
        self.num_documents += len(ends)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _write_meta(folder: Path, source: Source, encoder: Encoder, writer: _Writer, dtype: np.dtype[Any]) -> None:
    meta = {
        "source": source.description,
        "identity": source.identity,
        "tokenizer": encoder.tokenizer.fingerprint,
        "normalise": encoder.normalise,
        "dtype": dtype.name,
        "num_documents": writer.num_documents,
        "num_tokens": writer.num_tokens,
        "sha256": writer.sha256,
    }
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def read_meta(folder: Path) -> dict[str, Any] | None:
    """The description of a packed folder, or None where it is absent, unreadable or does not fit its files."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
        sizes = (folder / TOKENS).stat().st_size, (folder / DOCUMENTS).stat().st_size
        expected = meta["num_tokens"] * np.dtype(meta["dtype"]).itemsize, meta["num_documents"] * 8
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return meta if sizes == expected else None


def progress_bar(source: Source, progress: bool | None, action: str = "tokenising") -> "tqdm[Any]":
    """A bar on standard error, shown on a terminal only unless `progress` says otherwise."""
    from tqdm import tqdm

    is_shown = sys.stderr.isatty() if progress is None else progress
    description = f"{action} {source.description}"
    return tqdm(
        total=source.total, unit=source.total_unit, unit_scale=True, desc=description, disable=not is_shown, miniters=1
    )
