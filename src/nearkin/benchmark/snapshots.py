"""What changed in a folder since somebody last looked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_FIRST_AND_LAST = {"recipe.toml": -2, "run.json": -1, "result.json": 1}


@dataclass(frozen=True)
class Changes:
    """Files, relative to a folder.

    Attributes:
        written: New or changed ones, in an order to copy them in (see :func:`in_safe_order`).
        removed: Those that are gone; to be removed from a copy last, or one that is broken off may keep
            neither the old checkpoints nor the new.
    """

    written: list[str]
    removed: list[str]


def in_safe_order(files: Iterable[str]) -> list[str]:
    """The order in which a copy of a run may be broken off: what it is comes first, its result last.

    >>> in_safe_order(["a/checkpoint/step-1", "a/recipe.toml", "a/result.json", "a/run.json", "a/log"])
    ['a/recipe.toml', 'a/run.json', 'a/checkpoint/step-1', 'a/log', 'a/result.json']
    """
    return sorted(files, key=lambda file: _FIRST_AND_LAST.get(PurePosixPath(file).name, 0))


class Snapshot:
    """Remembers the files of a folder; hidden ones, which are locks and files being written, do not count.

    Args:
        folder: Looked through to the bottom.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int, int]] = {}

    def changes(self) -> Changes:
        """What changed since the last call."""
        before, self._seen = self._seen, self._look()
        written = [file for file, mark in self._seen.items() if before.get(file) != mark]
        return Changes(in_safe_order(written), [file for file in before if file not in self._seen])

    def forget(self, file: str) -> None:
        """Report this file as changed the next time."""
        self._seen.pop(file, None)

    def _look(self) -> dict[str, tuple[int, int, int]]:
        marks = {}
        for path in sorted(self._folder.rglob("*")):
            relative = path.relative_to(self._folder)
            if any(part.startswith(".") for part in relative.parts):
                continue
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # replaced or removed in this moment
            if path.is_file():
                marks[relative.as_posix()] = status.st_mtime_ns, status.st_size, status.st_ino
        return marks
