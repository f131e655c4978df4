"""Files that are either whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_UNFINISHED = ".unfinished-"


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that becomes ``path`` if the block succeeds, and vanishes if not.

    The data is flushed to disk before the move, so that a power cut leaves the old file or the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{_UNFINISHED}{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def is_unfinished(path: Path) -> bool:
    """Whether this is what :func:`atomic_path` has not moved into its place, or never will."""
    return path.name.startswith(_UNFINISHED)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes were writing, in a folder that nobody else writes to."""
    for leftover in folder.rglob(f"{_UNFINISHED}*"):
        leftover.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON atomically: keys in order, one per line, no NaN (it is not JSON)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
