"""A look at a few images of a data set: what they are decides which defaults fit."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from nearkin.data.pixels import is_image, to_pixels
from nearkin.data.samples import SampleSet

Kind = Literal["photographs", "small images", "drawings"]

_LOOKED_AT = 24  # images, spread over all of them
_SMALL = 48  # pixels; below that, little is left for a network that was made for photographs
_FEW_LEVELS = 8  # shades of grey; scanned ink and one-bit images have two


@dataclass(frozen=True)
class Look:
    """What some images of a sample set have in common.

    Attributes:
        height: Median, in pixels.
        width: Median, in pixels.
        colour: Whether any of them has colours.
        few_levels: Whether nearly all pixels are of a few shades, as in drawings and scanned text.
        samples: How many samples there are in all.
        classes: How many classes.
    """

    height: int
    width: int
    colour: bool
    few_levels: bool
    samples: int
    classes: int

    @property
    def kind(self) -> Kind:
        """Photographs, small images, or drawings of a few shades."""
        if self.few_levels and not self.colour:
            return "drawings"
        return "small images" if min(self.height, self.width) < _SMALL else "photographs"

    @property
    def short_side(self) -> int:
        """The smaller of the medians of height and width."""
        return min(self.height, self.width)

    def __str__(self) -> str:
        colours = "colour" if self.colour else "black and white" if self.few_levels else "grey"
        return (
            f"{self.samples:,} {colours} images of about {self.width} × {self.height} pixels "
            f"in {self.classes:,} classes"
        )


def look_at(samples: SampleSet) -> Look | None:
    """Decode a few images, spread over all of them; ``None`` where samples are not images.

    >>> from nearkin.data import ImageArray
    >>> pixels = torch.arange(3 * 60 * 80, dtype=torch.uint8).view(1, 3, 60, 80)
    >>> print(look_at(SampleSet(ImageArray(pixels), [0])))
    1 colour images of about 80 × 60 pixels in 1 classes
    """
    step = -(-len(samples) // _LOOKED_AT)
    seen: list[Tensor] = []
    for index in range(0, len(samples), step):
        sample = samples.samples[index]
        if not is_image(sample):
            return None
        seen.append(to_pixels(sample))
    return Look(
        height=round(median(one.shape[1] for one in seen)),
        width=round(median(one.shape[2] for one in seen)),
        colour=any(map(_has_colour, seen)),
        few_levels=all(map(_has_few_levels, seen)),
        samples=len(samples),
        classes=samples.num_classes,
    )


def _has_colour(pixels: Tensor) -> bool:
    return pixels.shape[0] == 3 and not (pixels == pixels[:1]).all()


def _has_few_levels(pixels: Tensor) -> bool:
    """Whether the most frequent shades make up nearly the whole image."""
    counts = torch.bincount(pixels[0].flatten().long(), minlength=256)
    return bool(counts.topk(_FEW_LEVELS).values.sum() >= 0.98 * counts.sum())
