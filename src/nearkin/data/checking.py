"""Finding broken images before they stop a training, and leaving them out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearkin.data.decoding import BrokenImageError, ImageFiles, read_image
from nearkin.data.samples import DataSet, Samples, SampleSet
from nearkin.data.two_modalities import TwoModalities

Progress = Callable[[int, int], None]
"""Called with the number of images done and the number of all."""

_NOTED = 10


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be read.

    Attributes:
        name: Its name in the image set: the path below the root.
        path: Where it is.
        reason: Why, for a person.
    """

    name: str
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def check_images(
    images: SampleSet | DataSet, *, workers: int | None = None, progress: Progress | None = None
) -> list[BadImage]:
    """Decode every image to its last byte; returns those that fail, in order.

    Args:
        images: One split, or all splits of a data set.
        workers: Threads (decoding leaves the interpreter free); by default one per core.
        progress: Called with the images done and the number of all.
    """
    splits = [images] if isinstance(images, SampleSet) else _disjoint_splits(images)
    files = [own for split in splits if (own := image_files(split)) is not None]
    places = [(source, index) for source in files for index in range(len(source))]
    bad = []
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for done, found in enumerate(pool.map(_check, places), start=1):
            if found is not None:
                bad.append(found)
            if progress is not None:
                progress(done, len(places))
    return bad


def image_files(split: SampleSet) -> ImageFiles | None:
    """The image files of a split, each once; of two modalities, those of the first. ``None`` for others."""
    samples = split.samples.items(0)[0] if isinstance(split.samples, TwoModalities) else split.samples
    return samples if isinstance(samples, ImageFiles) else None


def _disjoint_splits(data_set: DataSet) -> list[SampleSet]:
    """Query and gallery are parts of the test split."""
    return [split for split in (data_set.train, data_set.validation, data_set.test) if split is not None]


def _check(place: tuple[ImageFiles, int]) -> BadImage | None:
    images, index = place
    try:
        read_image(images.path(index))
    except BrokenImageError as error:
        path = images.path(index)
        return BadImage(images.name(index), path, str(error).removeprefix(f"{path}: "))
    return None


def leave_out(data_set: DataSet, bad: Sequence[BadImage]) -> DataSet:
    """The data set without these images, and a note that says so.

    Raises:
        ValueError: A split would be left without an image.
    """
    if not bad:
        return data_set
    names = {image.name for image in bad}
    splits: dict[str, Any] = {
        split: _kept(getattr(data_set, split), names, f"{data_set.name}: no image of {split} can be read")
        for split in ("train", "validation", "test", "query", "gallery")
        if getattr(data_set, split) is not None
    }
    listed = "; ".join(f"{image.name}: {image.reason}" for image in bad[:_NOTED])
    more = f"; and {len(bad) - _NOTED} more" if len(bad) > _NOTED else ""
    note = f"left out {len(bad)} images that cannot be read: {listed}{more}"
    return replace(data_set, **splits, notes=(*data_set.notes, note))


def _kept(images: SampleSet, bad: set[str], complaint: str) -> SampleSet:
    kept = [index for index in range(len(images)) if _image_name(images.samples, index) not in bad]
    if not kept:
        raise ValueError(complaint)
    return images.select(kept)


def _image_name(samples: Samples, index: int) -> str:
    if isinstance(samples, TwoModalities):
        return samples.first.name(int(samples.pairs[index, 0]))
    return samples.name(index)
