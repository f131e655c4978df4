"""The model of an index on a server: its files travel in parts, and are kept in the user's cache."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nearkin import cache
from nearkin.model import Model

_FOLDER = "models"
_WHOLE = "card.json"  # the last file that a model writes
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)?")
_FINGERPRINT = re.compile(r"[0-9a-f]{16,128}")


class Part(NamedTuple):
    """Some bytes of a file: the path below the model's folder, which part of it, and the bytes."""

    file: str
    number: int
    data: bytes


def parts_of(model: Model, size: int) -> Iterator[Part]:
    """The files of a model, in parts of ``size`` bytes."""
    with tempfile.TemporaryDirectory(prefix="nearkin-") as folder:
        saved = model.save(Path(folder) / _FOLDER)
        for path in sorted(path for path in saved.rglob("*") if path.is_file()):
            name = path.relative_to(saved).as_posix()
            with path.open("rb") as file:
                number = 0
                while (data := file.read(size)) or number == 0:
                    yield Part(name, number, data)
                    number += 1


def fetched(fingerprint: str, fetch: Callable[[], Iterable[Part]]) -> Path:
    """A folder with the model of a fingerprint: the one in the cache, or one that is fetched now.

    Args:
        fingerprint: Of the model.
        fetch: Gives the parts, those of a file in order.

    Raises:
        ValueError: The server has no model, or one whose files lie elsewhere than in a model's folder.
    """
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ValueError(f"{fingerprint[:40]!r} is no fingerprint of a model: the index is damaged")
    folder = cache.folder() / _FOLDER / fingerprint
    if (folder / _WHOLE).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        for part in fetch():
            _append(temporary, part)
        if not (temporary / _WHOLE).is_file():
            raise ValueError(f"the server holds no whole model of fingerprint {fingerprint[:12]}")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            temporary.rename(folder)
        except OSError:  # another process has just fetched it
            if not (folder / _WHOLE).is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _append(folder: Path, part: Part) -> None:
    # The server may be a stranger's: nothing is written outside of the folder.
    if not _FILE.fullmatch(part.file):
        raise ValueError(f"{part.file[:60]!r} is no file of a model: the index is damaged")
    path = folder / part.file
    path.parent.mkdir(exist_ok=True)
    with path.open("wb" if part.number == 0 else "ab") as file:
        file.write(part.data)
