"""The transform for pairs of an image and a text: images are cropped and resized, texts stay as they are."""

from __future__ import annotations

from typing import Any

from nearkin.data.as_is import AsIs
from nearkin.data.preprocessing import Preprocessing
from nearkin.data.transform_registry import registry
from nearkin.data.transforms import resized_crop
from nearkin.data.two_modalities import EachModality

IMAGE_AND_TEXT = "image_and_text"


@registry.register(IMAGE_AND_TEXT)
def image_and_text(
    preprocessing: Preprocessing | None,
    train: bool = True,
    *,
    scale: tuple[float, float] = (0.5, 1.0),
    flip: float = 0.0,
) -> EachModality:
    """Of a pair, the image as ``resized_crop`` does it, and the text as it is.

    Args:
        preprocessing: That of the network for images.
        train: Whether it is for training.
        scale: Least and greatest area of the random box, as a fraction of the image's: most of it, since the
            text speaks of the whole image.
        flip: Probability of mirroring; none by default, since texts may speak of left and right.
    """
    keywords: dict[str, Any] = {"scale": scale, "flip": flip}
    return EachModality(first=resized_crop(preprocessing, train, **keywords), second=AsIs())
