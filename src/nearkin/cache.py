"""What nearkin keeps in the user's cache: everything there can be made again."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

from nearkin.registry import nearest_name

KINDS = {
    "activations": "outputs of cached trunks",
    "checked": "which images can be read",
    "content-hashes": "hashes of files",
    "glyphs": "the embedded data set, drawn",
    "models": "models of indexes on servers",
    "pseudo_labels": "names that a classifier gave",
    "texts": "embeddings of class names",
    "weights": "weights that were downloaded",
    "other": "whatever else lies there",
}
_GLYPHS = "glyphs"


@dataclass(frozen=True)
class CacheEntry:
    """One kind of things in the cache.

    Attributes:
        kind: One of :data:`KINDS`.
        places: Files and folders.
        files: How many files.
        size: Bytes.
        last_used: When one of them was written or, where the system keeps note, read, in seconds.
    """

    kind: str
    places: tuple[Path, ...]
    files: int
    size: int
    last_used: float

    @property
    def days_unused(self) -> float:
        """Days since the last use."""
        return max(time.time() - self.last_used, 0.0) / 86_400


def folder() -> Path:
    """The user's cache of nearkin."""
    return Path(user_cache_dir("nearkin"))


def entries() -> list[CacheEntry]:
    """What lies in the cache, by kind; kinds of which nothing is there are left out."""
    there: dict[str, list[Path]] = {}
    if folder().is_dir():
        for place in sorted(folder().iterdir()):
            there.setdefault(_kind(place), []).append(place)
    return [_entry(kind, there[kind]) for kind in KINDS if kind in there]


def clear(kind: str | None = None) -> int:
    """Remove one kind, or everything; returns the bytes that are free now.

    Raises:
        ValueError: There is no such kind.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind {kind[:100]}: {nearest_name(kind, list(KINDS))}")
    freed = 0
    for entry in entries():
        if kind in (None, entry.kind):
            for place in entry.places:
                if place.is_dir() and not place.is_symlink():
                    shutil.rmtree(place)
                else:
                    place.unlink(missing_ok=True)
            freed += entry.size
    return freed


def _kind(place: Path) -> str:
    if place.is_file() and place.name.startswith(_GLYPHS):
        return _GLYPHS
    return place.name if place.name in KINDS else "other"


def _entry(kind: str, places: list[Path]) -> CacheEntry:
    files = [
        file
        for place in places
        for file in ([place] if not place.is_dir() or place.is_symlink() else place.rglob("*"))
        if file.is_symlink() or not file.is_dir()
    ]
    stats = [file.lstat() for file in files]
    return CacheEntry(
        kind,
        tuple(places),
        len(files),
        sum(one.st_size for one in stats),
        max((max(one.st_mtime, one.st_atime) for one in stats), default=time.time()),
    )
