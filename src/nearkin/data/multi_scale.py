"""Images at several scales, as N-pair's authors trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nearkin.data.preprocessing import Preprocessing
from nearkin.data.transform_registry import registry
from nearkin.data.transforms import CropTransform, RandomCrop, Transform, View, simple_crop, uniform


@dataclass(frozen=True)
class MultiScaleCrop:
    """The short side resized to one of several lengths, then a random square, mirrored at random.

    Args:
        crop: What is done at scale 1.
        scales: In units of its short side; each is as likely as the others.
    """

    crop: RandomCrop
    scales: tuple[float, ...]

    def __call__(self, height: int, width: int, seed: int) -> View:
        """Draw the view on an image of this size."""
        *_, which = uniform(4, seed)  # the crop itself draws the first three
        scale = self.scales[int(which * len(self.scales))]
        return replace(self.crop, resize=round(self.crop.resize * scale))(height, width, seed)


@registry.register("multi_scale")
def multi_scale(
    preprocessing: Preprocessing | None,
    train: bool = True,
    *,
    scales: Sequence[float] = (1.0, 1.25, 1.5),
    flip: float = 0.5,
    colour: float = 0.0,
    erase: float = 0.0,
    rand_augment: int = 0,
    magnitude: float = 0.3,
    scaled_decoding: bool | None = None,
) -> Transform:
    """``simple_crop`` at one of several scales, drawn anew for each image. Evaluation: a centre crop.

    The thesis (4.2) says that N-pair's authors transformed images at several scales and that it did not; it
    does not say which scales. These are ours.

    Args:
        preprocessing: The network's.
        train: Whether it is for training.
        scales: Short sides before the crop, in units of ``simple_crop``'s; 1 or larger.
        flip: Probability of mirroring; 0 where left and right matter, as in text.
        colour: Strength of random changes of colours, 0 to 1.
        erase: Probability that a random box is painted over.
        rand_augment: How many random operations are applied, as in RandAugment.
        magnitude: Strength of these operations, 0 to 1.
        scaled_decoding: See :class:`~nearkin.data.transforms.CropTransform`; by default in training only.
    """
    if not scales or any(not 1 <= scale < float("inf") for scale in scales):
        raise ValueError(f"scales={tuple(scales)} must be numbers of at least 1: the crop must fit in")
    plain = simple_crop(
        preprocessing,
        train,
        flip=flip,
        colour=colour,
        erase=erase,
        rand_augment=rand_augment,
        magnitude=magnitude,
        scaled_decoding=scaled_decoding,
    )
    if train and isinstance(plain, CropTransform) and isinstance(plain.view_of, RandomCrop):
        plain.view_of = MultiScaleCrop(plain.view_of, tuple(scales))
    return plain
