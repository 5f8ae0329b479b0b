"""Folders that are built once: locked while they are built, published by one rename, never seen half-written."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edlm.errors import UserError

logger = logging.getLogger(__name__)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNFINISHED = ".tmp"


def cache_folder(setting: str) -> Path:
    """The folder that `setting` names, or the default one."""
    if setting:
        return Path(setting).expanduser()
    root = os.environ.get("EDLM_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "edlm") / "data"


def key_of(parts: dict[str, Any]) -> str:
    """A short hash of everything that determines an entry's content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def get_or_build(cache: Path, name: str, *, is_whole: Callable[[Path], bool], build: Callable[[Path], None]) -> Path:
    """The folder `cache/name`, made by `build(temporary_folder)` unless a whole one is there.

    Of several processes that ask at once, one builds and the others wait for it. The kernel frees the lock of a process
    that dies, and the next one starts afresh.
    """
    final = cache / name
    if is_whole(final):
        return final
    with explaining_full_disk(cache), _locked(cache, name):
        if not is_whole(final):
            _remove_leftovers(cache)
            _build_and_publish(cache / (name + UNFINISHED), final, build)
    return final


def _build_and_publish(temporary: Path, final: Path, build: Callable[[Path], None]) -> None:
    shutil.rmtree(temporary, ignore_errors=True)  # of a dead process: we hold its lock
    temporary.mkdir(parents=True)
    try:
        build(temporary)
        for path in temporary.iterdir():
            _flush_to_disk(path)
        if final.exists():
            logger.warning("%s is damaged; it has been made again", final)
            shutil.rmtree(final)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _locked(cache: Path, name: str, *, wait: bool = True) -> Iterator[bool]:
    """Holds the lock of an entry. With `wait=False` yields False at once where another process holds it."""
    folder = cache / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        is_ours = _try_lock(file.fileno())
        if wait and not is_ours:
            logger.info("waiting for another process that prepares %s", cache / name)
            fcntl.flock(file, fcntl.LOCK_EX)
            is_ours = True
        yield is_ours


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_leftovers(cache: Path) -> None:
    """Remove what processes that died half-way have left: unfinished entries whose lock is free."""
    for unfinished in cache.glob("*" + UNFINISHED):
        with _locked(cache, unfinished.name.removesuffix(UNFINISHED), wait=False) as is_ours:
            if is_ours:
                shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def explaining_full_disk(cache: Path) -> Iterator[None]:
    """Turns what the operating system says about the cache into an error that names the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            remedy = "free some or set cache (or $EDLM_CACHE) to a larger disk"
            raise UserError(f"no room in {cache} ({error.strerror}); {remedy}") from error
        remedy = "set cache (or $EDLM_CACHE) to a folder you can write"
        raise UserError(f"cannot write to the cache {cache} ({error}); {remedy}") from error
