"""Files that survive an interruption: lines that are only ever appended, and files that are replaced whole."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from edlm.errors import UserError


@final
class LineStore:
    """JSON lines behind a first line that says what they belong to; what is there already is kept and continued.

    A process killed while it wrote leaves an unfinished last line, which is dropped on opening.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.rows: list[dict[str, Any]] = []
        lines = whole_lines(path)
        if not lines:
            self._write([{"settings": settings}])
            return
        require_same(path, json.loads(lines[0]).get("settings"), json.loads(json.dumps(settings)))
        self.rows = [json.loads(line) for line in lines[1:]]

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows and put them on disk."""
        self._write(rows)
        self.rows += rows

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        with writing(self.path) as path, path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())


def whole_lines(path: Path) -> list[str]:
    """The finished lines of a file; an unfinished last one is cut off the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    try:
        lines = whole.decode("utf-8").split("\n")[:-1]  # splitlines would also cut at separators inside a text
        for line in lines:
            if not isinstance(json.loads(line), dict):
                raise ValueError("a line is no JSON object")
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and it will be made again") from error
    return lines


def require_same(path: Path, stored: Any, wanted: dict[str, Any]) -> None:
    """Refuse to continue a file that was begun with other settings, naming the first that differs."""
    if not isinstance(stored, dict):
        raise UserError(f"{path} does not begin with its settings; remove it or choose another folder")
    for key in sorted(stored.keys() | wanted.keys()):
        if stored.get(key) != wanted.get(key):
            change = f"{key} is {stored.get(key)!r} there and {wanted.get(key)!r} now"
            raise UserError(f"{path} was begun with other settings: {change}; choose another folder or remove the file")


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Turns what the operating system says about a file into an error that names the remedy."""
    try:
        yield path
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another folder") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is either the old one or all of the new one, never half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with writing(path):
            partial.write_bytes(content)
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def require_folder(flag: str, path: Path) -> None:
    """Make a folder, or refuse, before the work is done, one that could not be written to after it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{os.getpid()}.probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UserError(f"{flag} {path} cannot be written ({error.strerror}); choose another folder") from error
