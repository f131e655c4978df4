"""What changed in a folder since somebody last looked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Changes:
    """Files, relative to a folder.

    Attributes:
        written: New or changed ones.
        removed: Those that are gone.
    """

    written: list[str]
    removed: list[str]


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
        return Changes(written, [file for file in before if file not in self._seen])

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
