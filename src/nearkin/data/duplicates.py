"""Images that are in a data set more than once: the same file, or the same picture in another file."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image

from nearkin.data.content_hashes import content_hashes
from nearkin.data.decoding import BrokenImageError, ImageFiles, read_image
from nearkin.data.pixels import to_pil
from nearkin.data.samples import DataSet

Progress = Callable[[int, int], None]
_SIDE = 8
_LEAST_SPREAD = 8.0  # of grey levels; what is nearly of one colour looks like everything else that is


@dataclass(frozen=True)
class Copies:
    """Images that are alike.

    Attributes:
        names: Paths below the root.
        classes: The class of each.
        splits: The split of each: ``train``, ``validation`` or ``test``.
        identical: Whether the files are the same to the byte; else they show the same picture.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    splits: tuple[str, ...]
    identical: bool

    @property
    def problem(self) -> str:
        """What is wrong about it: ``across splits``, ``across classes``, or ``within a class``."""
        if len(set(self.splits)) > 1:
            return "across splits"
        return "across classes" if len(set(self.classes)) > 1 else "within a class"

    def __str__(self) -> str:
        what = "the same file" if self.identical else "the same picture"
        return f"{what} {self.problem}: " + ", ".join(self.names)


def find_copies(data_set: DataSet, *, progress: Progress | None = None) -> list[Copies]:
    """Images that occur more than once, those across splits and classes first.

    Files are compared by their bytes, and pictures by whether each of 8 × 8 places is brighter than the next
    one, which resizing and another quality do not change (a difference hash). Mirrored, cropped and edited
    copies are not found; an index of embeddings finds these.

    Args:
        data_set: Of image files; others have no copies to find.
        progress: Called with the images done and the number of all.
    """
    splits = {"train": data_set.train, "validation": data_set.validation, "test": data_set.test}
    places = [
        (split, samples.samples, index, samples.class_names[int(samples.labels[index])])
        for split, samples in splits.items()
        if samples is not None and isinstance(samples.samples, ImageFiles)
        for index in range(len(samples))
    ]
    places = [place for place in places if _is_there(place[1].path(place[2]))]
    files = [source.path(index) for _, source, index, _ in places]
    of_bytes = content_hashes(files)
    of_pictures: list[str | None] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, found in enumerate(pool.map(_picture_hash, files), start=1):
            of_pictures.append(found)
            if progress is not None:
                progress(done, len(files))
    groups: dict[str, list[int]] = {}
    for row, (own, picture) in enumerate(zip(of_bytes, of_pictures, strict=True)):
        groups.setdefault(own if picture is None else picture, []).append(row)
    copies = []
    for rows in groups.values():
        if len(rows) > 1:
            named = [(places[row][1].name(places[row][2]), places[row][3], places[row][0]) for row in rows]
            names, classes, of_splits = zip(*named, strict=True)
            copies.append(Copies(names, classes, of_splits, len({of_bytes[row] for row in rows}) == 1))
    order = ("across splits", "across classes", "within a class")
    return sorted(copies, key=lambda one: (order.index(one.problem), one.names))


def _is_there(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file to compare: not a link to nothing, nor one that may not be read."""
    return os.access(path, os.R_OK)


def _picture_hash(path: str | os.PathLike[str]) -> str | None:
    """Which of neighbouring places is brighter; ``None`` of what has no contrast or cannot be read."""
    try:
        image = to_pil(read_image(path)).convert("L")
    except BrokenImageError:
        return None
    small = np.asarray(image.resize((_SIDE + 1, _SIDE), Image.Resampling.BOX), dtype=np.int16)
    if small.std() < _LEAST_SPREAD:
        return None
    brighter = small[:, 1:] > small[:, :-1]
    return f"{np.packbits(brighter).tobytes().hex()} {round(image.width / image.height, 1)}"
