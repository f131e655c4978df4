"""Which folders below a root are classes, and what lies there that is not read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nearkin.data.decoding import IMAGE_SUFFIXES

UNREAD_SUFFIXES = frozenset(
    {".arw", ".avif", ".cr2", ".cr3", ".dng", ".eps", ".heic", ".heif", ".ico", ".j2k", ".jfif", ".jp2"}
    | {".jxl", ".jxr", ".nef", ".orf", ".psd", ".raf", ".raw", ".rw2", ".svg", ".tga"}
)
"""Names of image files that are not read, so that the user is told of them."""

MOST_OTHER_ENTRIES = 200_000
SPLIT_FOLDERS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
"""What the folders of splits may be called."""


@dataclass
class Found:
    """What a walk over a folder found.

    Attributes:
        images: The sorted paths of the images directly in each folder; all paths are below the root.
        tops: The folders directly in the root, sorted.
        loose: Number of images directly in the root.
        unread: Number of files that look like images of a kind that is not read, by suffix.
        closed: Folders that could not be opened.
    """

    images: dict[str, list[str]] = field(default_factory=dict)
    tops: list[str] = field(default_factory=list)
    loose: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    closed: list[str] = field(default_factory=list)

    def notes(self) -> Iterator[str]:
        """What the reader of a result should know of files that are not read."""
        if self.loose:
            yield f"{self.loose:,} images are not read: they lie outside any class folder"
        if self.unread:
            kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in self.unread.most_common())
            yield f"{self.unread.total():,} files are not read: {kinds}"
        if self.closed:
            yield f"{len(self.closed):,} folders could not be opened: {some(self.closed)}"


def walk(root: Path, *, most_other_entries: int = MOST_OTHER_ENTRIES) -> Found:
    """Look through a folder for images.

    Links are followed, but into no folder twice.

    Raises:
        ValueError: More than ``most_other_entries`` folders and files are no images, and most are not.
    """
    found = Found()
    number_of_images = others = 0
    for top, directory, files in _directories(root, found):
        others += 1
        for file in files:
            suffix = Path(file).suffix.lower()
            if suffix in IMAGE_SUFFIXES:
                number_of_images += 1
                if top is None:
                    found.loose += 1
                else:
                    found.images.setdefault(directory, []).append(f"{directory}/{file}")
            else:
                others += 1
                found.unread.update([suffix] if suffix in UNREAD_SUFFIXES else [])
        if others > most_other_entries and others > number_of_images:
            raise ValueError(
                f"{root}: stopped at {root / directory} after {others:,} folders and files that are no "
                f"images and {number_of_images:,} images: this is not a folder "
                "with one folder of images per class"
            )
    for paths in found.images.values():
        paths.sort()
    return found


def _directories(root: Path, found: Found) -> Iterator[tuple[str | None, str, list[str]]]:
    """(top folder, folder below the root, its visible files), starting with the root's own files."""

    def closed(error: OSError) -> None:
        found.closed.append(str(error.filename))

    _, folders, files = next(os.walk(root, followlinks=True), (None, [], []))
    found.tops = sorted(name for name in folders if not name.startswith("."))
    yield None, "", _visible(files)
    # A link that leads back to the root or into another top folder would make its images two classes.
    seen = {os.path.realpath(root), *(os.path.realpath(root / top) for top in found.tops)}
    for top in found.tops:
        for directory, inner, files in os.walk(root / top, followlinks=True, onerror=closed):
            real = os.path.realpath(directory)
            if real in seen and Path(directory) != root / top:
                inner.clear()
                continue
            seen.add(real)
            inner[:] = sorted(_visible(inner))
            yield top, Path(directory).relative_to(root).as_posix(), _visible(files)


def _visible(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]


def classes_of(found: Found) -> tuple[dict[str, list[str]], list[str]]:
    """The images of every class, by its name, and notes.

    A class is a folder that directly holds images, and its name is its path below the root
    (``Fruit/Apple``). Where every top folder has its images in one folder, at the same place below it
    (``Apple/images``), the class is called as the top folder (``Apple``). A top folder without an image is a
    class without images.
    """
    below: dict[str, list[str]] = {top: [] for top in found.tops}
    for directory in found.images:
        below[PurePosixPath(directory).parts[0]].append(directory)
    places = {directory.partition("/")[2] for directory in found.images} - {""}
    one_each = all(len(directories) <= 1 for directories in below.values())
    classes: dict[str, list[str]] = {}
    for top, directories in below.items():
        if not directories:
            classes[top] = []
        for directory in directories:
            classes[top if one_each and len(places) <= 1 else directory] = found.images[directory]
    several = [f"{top} ({len(folders)})" for top, folders in below.items() if len(folders) > 1]
    notes = []
    if several:
        notes.append(
            "every folder that directly holds images is a class of its own, named by its path; folders with "
            f"several such folders: {some(several)}"
        )
    return dict(sorted(classes.items())), notes


def labels_below(files: Sequence[str]) -> list[str | None]:
    """The labels of files by the folders that they lie in, below what all of these have in common.

    The folders of splits are no part of a label. ``None`` for a file that lies in no folder.

    >>> labels_below(["images/001.Albatross/1.jpg", "images/002.Auk/1.jpg"])
    ['001.Albatross', '002.Auk']
    >>> labels_below(["train/cat/1.jpg", "test/cat/2.jpg", "cat/1.jpg", "1.jpg"])
    ['train/cat', 'test/cat', 'cat', None]
    >>> labels_below(["train/cat/1.jpg", "test/dog/2.jpg"]), labels_below(["cat/1.jpg", "cat/2.jpg"])
    (['cat', 'dog'], ['cat', 'cat'])
    """
    folders = [file.split("/")[:-1] for file in files]
    splits = {name for names in SPLIT_FOLDERS.values() for name in names}
    shortest = min((len(parts) for parts in folders), default=0)
    skipped = 0
    while skipped < shortest - 1:  # at least one folder stays
        names = {parts[skipped] for parts in folders}
        if len(names) > 1 and not all(name.lower() in splits for name in names):
            break
        skipped += 1
    return ["/".join(parts[skipped:]) or None for parts in folders]


def files_below(folder: Path) -> list[str]:
    """The images in a folder and below, as paths relative to it, in order; links are followed once.

    Hidden ones are left out, among them the ``._`` files that a Mac puts beside others.
    """
    found: list[str] = []
    seen: set[str] = set()
    for directory, inner, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(directory)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        below = Path(directory).relative_to(folder)
        found += [
            (below / file).as_posix()
            for file in sorted(files)
            if not file.startswith(".") and Path(file).suffix.lower() in IMAGE_SUFFIXES
        ]
    return found


def some(names: list[str], shown: int = 5) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
