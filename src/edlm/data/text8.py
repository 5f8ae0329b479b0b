"""The official text8: 100,000,000 characters, split 90M / 5M / 5M."""

import hashlib
import zipfile
from pathlib import Path
from typing import IO

from edlm.data.cache import get_or_build
from edlm.errors import UserError

URL = "http://mattmahoney.net/dc/text8.zip"
SIZE = 100_000_000
MD5 = "3bea1919949baf155f99411df5fada7e"  # of the unpacked file; published beside it, and no matter of secrecy


def text8_path(cache: Path) -> Path:
    """The official file in the cache, downloaded on first use."""
    for name in ("text8", "text8.zip", "text8.xz", "text8.gz"):
        if (cache / name).is_file():
            return cache / name
    is_whole = lambda folder: (folder / "text8").is_file()  # noqa: E731
    return get_or_build(cache, "text8-official", is_whole=is_whole, build=_download) / "text8"


def _download(folder: Path) -> None:
    archive = folder / "text8.zip"
    _fetch(archive, cache=folder.parent)
    _unpack(archive, folder / "text8")
    archive.unlink()


def _fetch(archive: Path, cache: Path) -> None:
    import http.client
    import urllib.error
    import urllib.request

    from tqdm import tqdm

    try:
        with urllib.request.urlopen(URL, timeout=10) as answer, archive.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0) or None
            with tqdm(total=total, unit="B", unit_scale=True, desc="text8.zip", disable=None) as bar:
                while chunk := answer.read(1 << 16):
                    file.write(chunk)
                    bar.update(len(chunk))
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        remedy = f"put the file at {cache / 'text8'} (or text8.zip there), or use text8:PATH"
        raise UserError(f"cannot download {URL} ({error}); {remedy}") from error


def _unpack(archive: Path, text: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as members, members.open("text8") as packed, text.open("wb") as file:
            size, digest = _copy(packed, file)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise UserError(f"the download from {URL} is no archive with text8 in it ({error}); try again") from error
    if (size, digest) != (SIZE, MD5):
        raise UserError(f"the download from {URL} is not text8: {size} bytes, md5 {digest}, expected {MD5}; try again")


def _copy(packed: IO[bytes], file: IO[bytes]) -> tuple[int, str]:
    digest, size = hashlib.md5(usedforsecurity=False), 0
    while chunk := packed.read(1 << 20):
        digest.update(chunk)
        size += file.write(chunk)
    return size, digest.hexdigest()
