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
from collections.abc import Iterator, Sequence
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


def file_state(path: Path) -> dict[str, Any]:
    """What stands for a file's content in the cache: it is taken to be unchanged while its size and time are."""
    state = path.stat()
    return {"path": str(path.resolve()), "size": state.st_size, "mtime_ns": state.st_mtime_ns}


def read_pieces(path: Path, options: FileFormat) -> Iterator[Piece]:
    """The documents of one file; `done` counts bytes of the file as it is stored."""
    kind = ".jsonl" if kind_of(path) == ".json" else kind_of(path)
    if kind not in RECORDS:
        with _opened(path) as (raw, stream):
            yield from _read_text(path, raw, stream, options.document_separator)
        return
    for row in read_rows(path, kind, columns=[options.text_field]):
        text = _field(row.values, options.text_field, row.where)
        yield from whole_document(text, row.where, row.done)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file: a record of named fields, or whatever else a line of JSON holds."""

    values: Any
    where: str
    done: int


def read_rows(
    path: Path, kind: str, *, columns: Sequence[str] | None = None, header: Sequence[str] | None = None
) -> Iterator[Row]:
    """The rows of a file read as `kind`: .jsonl, .csv, .parquet, or else lines of text, each the field "line".

    Only Parquet can leave columns unread: it reads `columns`. A csv file without its own first row takes `header`.
    """
    with _opened(path) as (raw, stream):
        if kind == ".parquet":
            yield from _parquet_rows(path, raw, columns)
        elif kind in (".jsonl", ".ndjson"):
            yield from _jsonl_rows(path, raw, stream)
        elif kind == ".csv":
            yield from _csv_rows(path, raw, stream, header)
        else:
            yield from _line_rows(path, raw, stream)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The file as it is stored, whose position tells how far it has been read, and its content."""
    with _explaining_damage(path), path.open("rb") as raw, _decompressed(path, raw) as stream:
        yield raw, stream


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


def _line_rows(path: Path, raw: IO[bytes], stream: IO[bytes]) -> Iterator[Row]:
    """Lines end at a line feed and nothing else; blank ones count."""
    number, rest = 0, ""
    for text in _decoded(path, stream):
        *lines, rest = (rest + text).split("\n")
        for number, line in enumerate(lines, start=number + 1):  # noqa: B020
            yield Row({"line": line.removesuffix("\r")}, f"{path}, line {number}", raw.tell())
    if rest:
        yield Row({"line": rest}, f"{path}, line {number + 1}", raw.tell())


def _jsonl_rows(path: Path, raw: IO[bytes], stream: IO[bytes]) -> Iterator[Row]:
    for number, line in enumerate(stream, start=1):
        where = f"{path}, line {number}"
        try:
            record = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:  # also what is not UTF-8
            raise UserError(f"{where} is not JSON ({error}); write one JSON object per line") from error
        if record is not None:
            yield Row(record, where, raw.tell())


def _csv_rows(path: Path, raw: IO[bytes], stream: IO[bytes], header: Sequence[str] | None) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)  # the default refuses documents above 128 KB
    rows = csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), fieldnames=header)
    while True:
        where = f"{path}, line {rows.line_num + 1}"
        try:
            row = next(rows, None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{where} cannot be read as UTF-8 CSV ({error}); mend or convert the file") from error
        if row is None:
            return
        yield Row(row, where, raw.tell())


def _parquet_rows(path: Path, raw: IO[bytes], columns: Sequence[str] | None) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(f"{path} is a Parquet file, which needs pyarrow; run: pip install pyarrow") from error
    try:
        table = parquet.ParquetFile(raw)
        for column in columns or ():
            require_field(table.schema_arrow.names, column, str(path))
        size, num_rows, row = path.stat().st_size, max(table.metadata.num_rows, 1), 0
        for batch in table.iter_batches(batch_size=256, columns=columns):
            for record in batch.to_pylist():
                where, row = f"{path}, row {row}", row + 1
                yield Row(record, where, size * row // num_rows)
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
