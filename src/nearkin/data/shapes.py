"""A data set of outlines, seen from any angle: computed when it is opened, no download."""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

from nearkin.data.drawn import check_settings, photographed, split_by_class, uniform
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet

VERSION = 1  # raise it when the pictures of a seed change
_HARMONICS = 6
_CHUNK = 4096


@registry.register("shapes")
def shapes(
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    difficulty: float = 1.0,
    num_classes: int = 600,
    images_per_class: int = 16,
    size: int = 32,
) -> DataSet:
    """Closed outlines, each class one of them, turned by any angle, bent, and partly covered.

    Where ``glyphs`` asks for strokes in about one position, this asks for a form in any: a class is the
    outline r(θ) = 1 + Σ_h a_h cos(hθ + φ_h), and what its pictures share is no pixel. Half of the classes are
    for testing, and a tenth of the others for validation.

    Args:
        root: Not used: there are no files.
        seed: Draws outlines, pictures and the split. The same seed gives the same pictures.
        difficulty: Scales how far an outline is bent and skewed, how much of it is covered, contrast and
            noise. At 0 a class differs by its angle alone.
        num_classes: Outlines.
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
    order = torch.arange(2, 2 + _HARMONICS)
    strength = torch.randn(num_classes, _HARMONICS, 2, generator=generator) * (0.45 / order.sqrt())[:, None]
    classes = torch.arange(num_classes).repeat_interleave(images_per_class)
    pictures = [
        _pictures(strength[chunk], size=size, difficulty=difficulty, generator=generator)
        for chunk in classes.split(_CHUNK)
    ]
    names = [f"shape {number}" for number in range(num_classes)]
    return split_by_class("shapes", torch.cat(pictures), names, seed=seed)


def _pictures(strength: Tensor, *, size: int, difficulty: float, generator: torch.Generator) -> Tensor:
    """A picture of every outline, given by the cosines and sines of its harmonics ``(N, H, 2)``."""
    count = len(strength)

    def draw(*shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        return uniform(count, *shape, low=low, high=high, generator=generator)

    bent = strength + 0.05 * difficulty * torch.randn(strength.shape, generator=generator)
    ramp = (torch.arange(size) + 0.5) / size * 2 - 1
    y, x = torch.meshgrid(ramp, ramp, indexing="ij")
    shift = 0.12 * difficulty * draw(2)
    x = x - shift[:, 0, None, None]
    y = y - shift[:, 1, None, None]
    x = x + 0.2 * difficulty * draw(1, 1) * y
    angle = torch.atan2(y, x) - math.pi * draw(1, 1)
    radius = torch.hypot(x, y) / (0.55 * torch.exp(0.15 * difficulty * draw(1, 1)))
    outline = torch.ones_like(radius)
    for harmonic in range(bent.shape[1]):
        turned = (harmonic + 2) * angle
        cosine, sine = bent[:, harmonic, 0, None, None], bent[:, harmonic, 1, None, None]
        outline = outline + cosine * turned.cos() + sine * turned.sin()
    drawing = torch.sigmoid((outline.clamp(min=0.15) - radius) * size / 4)
    towards = math.pi * draw(1, 1)
    covered = torch.hypot(x - 0.75 * towards.cos(), y - 0.75 * towards.sin())
    cover = torch.sigmoid((0.3 * min(difficulty, 2.0) * draw(1, 1, low=0.0) - covered) * size / 2)
    return photographed(drawing * (1 - cover), difficulty=difficulty, generator=generator)
