"""A data set of textures, of which no two pictures show the same place: computed when opened, no download."""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

from nearkin.data.drawn import check_settings, photographed, split_by_class, uniform
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet

VERSION = 1  # raise it when the pictures of a seed change
_BANDS = 3
_NUMBERS = 5  # of a band: frequency, direction, narrowness in both, and weight
_CHUNK = 4096


@registry.register("textures")
def textures(
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    difficulty: float = 1.0,
    num_classes: int = 600,
    images_per_class: int = 16,
    size: int = 32,
) -> DataSet:
    """Random fields, each class a mixture of three oriented bands of frequencies; every picture a new draw.

    Where ``glyphs`` and ``shapes`` have an object, this has none: what the pictures of a class share is their
    statistics. A picture is noise whose spectrum is the class's, made sharper or softer by a curve that is
    the class's as well. Half of the classes are for testing, and a tenth of the others for validation.

    Args:
        root: Not used: there are no files.
        seed: Draws textures, pictures and the split. The same seed gives the same pictures.
        difficulty: Scales how far a picture's texture is turned and stretched, contrast and noise.
        num_classes: Textures.
        images_per_class: Pictures of each.
        size: Side of a picture in pixels.
    """
    check_settings(
        seed=seed,
        difficulty=difficulty,
        num_classes=num_classes,
        images_per_class=images_per_class,
        size=size,
    )
    generator = torch.Generator().manual_seed(seed)
    bands = torch.rand(num_classes, _BANDS, _NUMBERS, generator=generator)
    curves = torch.rand(num_classes, 2, generator=generator)
    classes = torch.arange(num_classes).repeat_interleave(images_per_class)
    pictures = [
        _pictures(bands[chunk], curves[chunk], size=size, difficulty=difficulty, generator=generator)
        for chunk in classes.split(_CHUNK)
    ]
    names = [f"texture {number}" for number in range(num_classes)]
    return split_by_class("textures", torch.cat(pictures), names, seed=seed)


def _pictures(
    bands: Tensor, curves: Tensor, *, size: int, difficulty: float, generator: torch.Generator
) -> Tensor:
    """A picture of every texture: noise through its spectrum, then through its curve."""
    count = len(bands)

    def draw(*shape: int) -> Tensor:
        return uniform(count, *shape, low=-1.0, high=1.0, generator=generator)

    turn = math.radians(8) * difficulty * draw(1, 1)
    stretch = torch.exp(0.08 * difficulty * draw(1, 1))
    along = torch.fft.fftfreq(size) * size
    fy, fx = torch.meshgrid(along, along, indexing="ij")
    frequency = torch.hypot(fx, fy) * stretch
    direction = torch.atan2(fy, fx) + turn
    power = torch.zeros(count, size, size)
    for place in range(bands.shape[1]):
        numbers = bands[:, place, :, None, None].unbind(1)
        centre = 1.5 + numbers[0] * (size / 4 - 1.5)
        width = 0.5 + numbers[2] * size / 16
        ring = torch.exp(-((frequency - centre) ** 2) / (2 * width**2))
        narrow = torch.exp(4 * numbers[3] * (torch.cos(2 * (direction - math.pi * numbers[1])) - 1))
        power += (0.2 + numbers[4]) * ring * narrow
    power[:, 0, 0] = 0
    noise = torch.randn(count, size, size, generator=generator)
    field = torch.fft.ifft2(torch.fft.fft2(noise) * power.sqrt()).real
    field = field / field.flatten(1).std(dim=1).clamp(min=1e-6)[:, None, None]
    sharpness, level = 0.5 + 3 * curves[:, 0, None, None], curves[:, 1, None, None] - 0.5
    drawing = torch.sigmoid(sharpness * (field - level))
    return photographed(drawing, difficulty=difficulty, generator=generator)
