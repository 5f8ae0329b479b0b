"""Reading documents from text, JSON Lines, CSV and Parquet files, compressed or not, with errors that say where."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from edlm.data.documents import DocumentCutter, Piece, whole_document
from edlm.errors import UserError

CHUNK = 1 << 20  # bytes read at a time
COMPRESSED = (".gz", ".xz", ".bz2", ".zip")
TEXT = (".txt", ".text", ".raw")
RECORDS = (".jsonl", ".ndjson", ".csv", ".parquet")
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile)


@dataclass(frozen=True)
class FileFormat:
    """The options that matter when a file is read."""

    text_field: str = "text"
    document_separator: str = ""


def kind_of(path: Path) -> str:
    """The suffix that decides the format: `.jsonl` for `a.jsonl.gz`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def data_files(folder: Path) -> list[Path]:
    """Every file of a known format below `folder`, sorted by path; hidden ones are left out."""
    files = (path for path in folder.rglob("*") if path.is_file() and kind_of(path) in TEXT + RECORDS)
    visible = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not visible:
        raise UserError(f"folder {folder} holds no data; expected files ending in {', '.join(TEXT + RECORDS)}")
    return sorted(visible, key=lambda path: path.relative_to(folder).as_posix())


def read_pieces(path: Path, options: FileFormat) -> Iterator[Piece]:
    """The documents of one file; `done` counts bytes of the file as it is stored."""
    kind = kind_of(path)
    with _explaining_damage(path), path.open("rb") as raw:
        if kind == ".parquet":
            yield from _read_parquet(path, raw, options.text_field)
            return
        with _decompressed(path, raw) as stream:
            if kind in (".jsonl", ".ndjson", ".json"):
                yield from _read_jsonl(path, raw, stream, options.text_field)
            elif kind == ".csv":
                yield from _read_csv(path, raw, stream, options.text_field)
            else:
                yield from _read_text(path, raw, stream, options.document_separator)


@contextmanager
def _explaining_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise UserError(f"{path} is damaged or cut short ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the file and its permissions") from error


@contextmanager
def _decompressed(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    suffix = path.suffix.lower()
    if suffix == ".zip":
        archive = zipfile.ZipFile(raw)
        members = [member for member in archive.namelist() if not member.endswith("/")]
        if len(members) != 1:
            raise UserError(f"{path} must hold exactly one file, holds {len(members)}; unpack it into a folder")
        with archive.open(members[0]) as stream:
            yield stream
        return
    openers: dict[str, Any] = {".gz": gzip.GzipFile, ".xz": lzma.LZMAFile, ".bz2": bz2.BZ2File}
    if suffix not in openers:
        yield raw
        return
    arguments = {"fileobj": raw} if suffix == ".gz" else {"filename": raw}
    with openers[suffix](mode="rb", **arguments) as stream:
        yield stream


def _read_text(path: Path, raw: IO[bytes], stream: IO[bytes], separator: str) -> Iterator[Piece]:
    cutter = DocumentCutter(str(path), separator)
    for text in _decoded(path, stream):
        yield from cutter.feed(text, raw.tell())
    yield from cutter.close(raw.tell())


def _decoded(path: Path, stream: IO[bytes]) -> Iterator[str]:
    """The text in chunks that never split a character; line ends stay as they are, a byte-order mark goes."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    num_read = 0
    while True:
        data = stream.read(CHUNK)
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            offset = num_read - pending + error.start
            raise UserError(f"{path} is not UTF-8 at byte {offset} ({error.reason}); convert it to UTF-8") from error
        yield text.removeprefix("\ufeff") if num_read == 0 else text
        num_read += len(data)
        if not data:
            return


def _read_jsonl(path: Path, raw: IO[bytes], stream: IO[bytes], field: str) -> Iterator[Piece]:
    for number, line in enumerate(stream, start=1):
        where = f"{path}, line {number}"
        try:
            record = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:  # also what is not UTF-8
            raise UserError(f"{where} is not JSON ({error}); write one JSON object per line") from error
        if record is not None:
            yield from whole_document(_field(record, field, where), where, raw.tell())


def _read_csv(path: Path, raw: IO[bytes], stream: IO[bytes], field: str) -> Iterator[Piece]:
    csv.field_size_limit(1 << 30)  # the default refuses documents above 128 KB
    rows = csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))
    while True:
        where = f"{path}, line {rows.line_num + 1}"
        try:
            row = next(rows, None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{where} cannot be read as UTF-8 CSV ({error}); mend or convert the file") from error
        if row is None:
            return
        yield from whole_document(_field(row, field, where), where, raw.tell())


def _read_parquet(path: Path, raw: IO[bytes], field: str) -> Iterator[Piece]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        table = parquet.ParquetFile(raw)
        require_field(table.schema_arrow.names, field, str(path))
        size, num_rows, row = path.stat().st_size, max(table.metadata.num_rows, 1), 0
        for batch in table.iter_batches(batch_size=256, columns=[field]):
            for text in batch.column(0).to_pylist():
                where, row = f"{path}, row {row}", row + 1
                yield from whole_document(require_text(text, field, where), where, size * row // num_rows)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is no readable Parquet file ({str(error).strip()}); fetch it again") from error


def _field(record: Any, field: str, where: str) -> str:
    if not isinstance(record, dict):
        raise UserError(f"{where} holds a {type(record).__name__}, not an object; write one JSON object per line")
    require_field([str(name) for name in record], field, where)
    return require_text(record[field], field, where)


def require_field(names: list[str], field: str, where: str) -> None:
    """Raise unless `field` is one of `names`."""
    if field not in names:
        # A CSV file without its header row would offer whole documents as names.
        known = ", ".join(name if len(name) <= 40 else name[:40] + "..." for name in names)
        raise UserError(f"{where} has no field {field!r}; set text_field to one of: {known or 'none'}")


def require_text(value: Any, field: str, where: str) -> str:
    """The value if it is text, else an error."""
    if not isinstance(value, str):
        raise UserError(f"{where}: field {field!r} holds {type(value).__name__}, not text; choose another text_field")
    return value
