"""Downloads that go on where they stopped and are not used before their checksum is right."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes of all (0 if the server does not say)."""

_BLOCK = 1 << 20


def download(
    url: str, path: str | os.PathLike[str], *, md5: str, progress: Progress | None = None, timeout: float = 60
) -> Path:
    """Fetch a file unless it is there. What was fetched before an interruption is kept and continued.

    Args:
        url: ``http`` or ``https``.
        path: Where the file goes; while it is incomplete, its name ends in ``.part``.
        md5: What the publisher says the file's MD5 is.
        progress: Called with the bytes done and the bytes of all.
        timeout: Seconds of silence after which the connection is given up.

    Raises:
        ConnectionError: The server cannot be reached, or breaks off.
        ValueError: The file is complete and its checksum is wrong; it is removed.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"cannot download {url}: only http and https")
    path = Path(path)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        _fetch_rest(url, part, progress, timeout)
    except OSError as error:
        raise ConnectionError(f"download of {url} stopped ({error}); run again to go on from here") from error
    found = _md5(part)
    if found != md5:
        part.unlink()
        raise ValueError(f"{url}: the checksum is {found} and should be {md5}; the file was removed")
    part.replace(path)
    return path


def _fetch_rest(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})  # noqa: S310
    try:
        response = urllib.request.urlopen(request, timeout=timeout)  # noqa: S310
    except urllib.error.HTTPError as error:
        if done and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is here; the checksum will tell
        raise
    with response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            done = 0  # the server starts from the beginning, and so do we
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else 0
        with part.open("ab" if done else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
    if done < total:
        raise OSError(f"{done:,} of {total:,} bytes came")


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
