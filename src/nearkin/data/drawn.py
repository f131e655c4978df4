"""What the data sets that are computed as pictures share: checks, light and noise, and the split."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.data.samples import DataSet, ImageArray, SampleSet
from nearkin.data.seeding import refuse_wrong_seed

TEST_SHARE = 0.5
VALIDATION_SHARE = 0.05
MOST_DIFFICULT = 100.0


def check_settings(
    *, seed: int, difficulty: float, num_classes: int, images_per_class: int, size: int
) -> None:
    """Refuse what cannot be drawn.

    Raises:
        ValueError: It names the keyword and what it must be.
    """
    refuse_wrong_seed(seed)
    if not 0 <= difficulty <= MOST_DIFFICULT:  # NaN neither
        raise ValueError(f"difficulty={difficulty} must lie between 0 and {MOST_DIFFICULT:g}")
    if num_classes < 4:
        raise ValueError(f"num_classes={num_classes} must be at least 4, to be split")
    if images_per_class < 2:
        raise ValueError(f"images_per_class={images_per_class}: a query needs another picture to find")
    if size < 8:
        raise ValueError(f"size={size} must be at least 8 pixels")


def uniform(*shape: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Random numbers between two."""
    return torch.rand(*shape, generator=generator) * (high - low) + low


def photographed(drawing: Tensor, *, difficulty: float, generator: torch.Generator) -> Tensor:
    """Drawings with values in [0, 1] under random contrast, light and noise.

    Args:
        drawing: ``(N, size, size)``.
        difficulty: Scales contrast, light and noise; 0 leaves the drawing.
        generator: All randomness comes from here.

    Returns:
        ``uint8`` pictures ``(N, 1, size, size)``.
    """
    count, size = len(drawing), drawing.shape[-1]

    def draw(*shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        return uniform(count, *shape, low=low, high=high, generator=generator)

    contrast = 1 - (0.45 * difficulty * draw(1, 1, low=0.0)).clamp(max=0.85)
    level = 0.5 + (1 - contrast) / 2 * draw(1, 1)
    ramp = torch.linspace(-1, 1, size)
    slope = 0.1 * difficulty * draw(2)
    light = slope[:, 0, None, None] * ramp + slope[:, 1, None, None] * ramp[:, None]
    noise = torch.randn(drawing.shape, generator=generator) * (0.08 * difficulty * draw(1, 1, low=0.0))
    picture = level + contrast * (drawing - 0.5) + light + noise
    return (picture * 255).round_().clamp_(0, 255).to(torch.uint8).unsqueeze_(1)


def split_by_class(name: str, pictures: Tensor, class_names: list[str], *, seed: int) -> DataSet:
    """Half of the classes for testing and a tenth of the others for validation, at random.

    Args:
        name: What the data set is called.
        pictures: ``(N, 1, size, size)``, class by class, the same number of each.
        class_names: The classes.
        seed: Draws the split.
    """
    each = len(pictures) // len(class_names)
    labels = torch.arange(len(class_names)).repeat_interleave(each)
    names = [f"{one}, picture {number}" for one in class_names for number in range(each)]
    everything = SampleSet(ImageArray(pictures, names), labels, class_names)
    order = torch.randperm(len(class_names), generator=torch.Generator().manual_seed(seed))
    test = round(TEST_SHARE * len(class_names))
    validation = max(1, round(VALIDATION_SHARE * len(class_names)))
    return DataSet(
        name=name,
        train=everything.of_classes(order[test + validation :]),
        validation=everything.of_classes(order[test : test + validation]),
        test=everything.of_classes(order[:test]),
    )
