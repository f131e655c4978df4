"""Two sample sets as one, for learning from training and validation classes together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nearkin.data.decoding import ImageFiles
from nearkin.data.samples import UNKNOWN, ImageArray, Samples, SampleSet


def join(first: SampleSet, second: SampleSet) -> SampleSet:
    """All samples of two sets without a common class; those of ``second`` are numbered after the others.

    >>> pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> gulls, wrens = (SampleSet(ImageArray(pixels), [name] * 2) for name in ("gull", "wren"))
    >>> both = join(wrens, gulls)
    >>> both.labels.tolist(), both.class_names
    ([0, 0, 1, 1], ('wren', 'gull'))
    """
    cameras = None
    if first.cameras is not None and second.cameras is not None:
        cameras = torch.cat([first.cameras, second.cameras])
    pairs = None
    if first.pairs is not None and second.pairs is not None:
        pairs = first.pairs.joined_with(second.pairs)
    after = torch.where(second.is_labelled, second.labels + first.num_classes, UNKNOWN)
    labels = torch.cat([first.labels, after])
    return SampleSet(
        join_samples(first.samples, second.samples),
        labels,
        (*first.class_names, *second.class_names),
        cameras=cameras,
        pairs=pairs,
    )


def join_samples(first: Samples, second: Samples) -> Samples:
    """Of the same kind as the two where that can be, since transforms are faster on kinds they know."""
    joined = getattr(first, "joined", None)
    if joined is not None and type(first) is type(second):  # a kind of samples that knows how
        together: Samples = joined(second)
        return together
    if isinstance(first, ImageArray) and isinstance(second, ImageArray):
        if first.pixels.shape[1:] == second.pixels.shape[1:]:
            return ImageArray(torch.cat([first.pixels, second.pixels]), _names(first) + _names(second))
    elif isinstance(first, ImageFiles) and isinstance(second, ImageFiles):
        root = Path(os.path.commonpath([first.root.absolute(), second.root.absolute()]))
        paths = [files.path(i).absolute() for files in (first, second) for i in range(len(files))]
        return ImageFiles([os.path.relpath(path, root) for path in paths], root)
    return _Listed([(images, index) for images in (first, second) for index in range(len(images))])


def _names(images: Samples) -> list[str]:
    return [images.name(index) for index in range(len(images))]


class _Listed:
    """Samples of any kinds, one after the other."""

    def __init__(self, places: list[tuple[Samples, int]]) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Any:
        images, place = self._places[index]
        return images[place]

    def select(self, indices: Sequence[int]) -> Samples:
        return _Listed([self._places[index] for index in indices])

    def name(self, index: int) -> str:
        images, place = self._places[index]
        return images.name(place)
