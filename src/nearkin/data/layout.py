"""What the published data sets share: finding their files, checking their counts, saying what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearkin.data.decoding import ImageFiles
from nearkin.data.samples import DataSet, SampleSet


@dataclass(frozen=True)
class Labelled:
    """One line of a data set's lists: where an image is, what it shows, and which camera took it."""

    path: str
    label: str
    camera: int | None = None


def image_set(lines: Sequence[Labelled], root: Path) -> SampleSet:
    """The images of these lines, their paths relative to ``root``."""
    files = ImageFiles([line.path for line in lines], root)
    cameras = [line.camera for line in lines if line.camera is not None]
    return SampleSet(files, [line.label for line in lines], cameras=cameras or None)


def locate(
    name: str, root: str | os.PathLike[str] | None, places: Iterable[str], marker: str, how_to_get: str
) -> Path:
    """The folder with the file or folder ``marker``: ``root`` itself or one of the ``places`` below it.

    Raises:
        ValueError: No root was given.
        FileNotFoundError: It is in none of them; the message says what to fetch and where to put it.
    """
    if root is None:
        raise ValueError(f"{name} needs root=…, the folder that holds it")
    candidates = [Path(root), *(Path(root) / place for place in places)]
    for candidate in candidates:
        if (candidate / marker).exists():
            return candidate
    looked = " nor ".join(str(candidate) for candidate in candidates)
    raise FileNotFoundError(f"{name}: there is no {marker} in {looked}. {how_to_get}")


def notes_on_counts(
    splits: Mapping[str, SampleSet], published: Mapping[str, tuple[int, int]]
) -> tuple[str, ...]:
    """A note for every split whose number of images or classes is not the published one."""
    notes = []
    for split, (images, classes) in published.items():
        found = splits[split]
        if (len(found), found.num_classes) != (images, classes):
            notes.append(
                f"{split}: {len(found):,} images of {found.num_classes:,} classes here, "
                f"{images:,} of {classes:,} published"
            )
    return tuple(notes)


def published_data_set(
    name: str,
    root: Path,
    train: Sequence[Labelled],
    test: Sequence[Labelled],
    published: Mapping[str, tuple[int, int]],
) -> DataSet:
    """A data set with a training and a test half, with notes where it is not as published."""
    splits = {"train": image_set(train, root), "test": image_set(test, root)}
    return DataSet(name, **splits, notes=notes_on_counts(splits, published))
