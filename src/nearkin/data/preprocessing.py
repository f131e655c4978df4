"""What the weights of a network expect of an image."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Preprocessing:
    """The input that a network's weights were trained on.

    It travels with the weights (``network.preprocessing``), so that a network is never fed the wrong
    mean, channel order or size.

    Args:
        size: Side of the square input in pixels.
        mean: Per-channel mean, in units of ``value_range``; its length is the number of channels.
        std: Per-channel standard deviation, in the same units.
        channel_order: ``"rgb"``, or ``"bgr"`` for weights that came from Caffe.
        value_range: What a white pixel is before the mean is taken off: 1 or 255.
        resize: Short side before the centre crop at evaluation; ``None`` where images have the right size.
        interpolation: How evaluation images are resized.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channel_order: Literal["rgb", "bgr"] = "rgb"
    value_range: float = 1.0
    resize: int | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    @property
    def channels(self) -> int:
        """Number of channels of the input: 1 for grey images, 3 for colour."""
        return len(self.mean)

    def normalize(self, images: Tensor, out: Tensor | None = None) -> Tensor:
        """``uint8`` images ``(…, C, H, W)`` in RGB to the numbers the network takes, float32, same shape.

        Args:
            images: On any device.
            out: Where the result goes, if there is a place for it already.
        """
        if images.dtype != torch.uint8:
            raise ValueError(f"preprocessing takes uint8 images, not {images.dtype}")
        if images.shape[-3] != self.channels:
            raise ValueError(
                f"the network takes {self.channels} channels, the images have {images.shape[-3]}"
            )
        if self.channel_order == "bgr":
            images = images.flip(-3)
        scale, shift = (values.to(images.device) for values in self.scale_and_shift)
        # In place, because this runs over every pixel of every image.
        result = images.float() if out is None else out.copy_(images)
        return result.mul_(scale).sub_(shift)

    @functools.cached_property
    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """What a ``uint8`` pixel is multiplied by, and what is taken off then; ``(C, 1, 1)`` each."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return self.value_range / 255 / std, mean / std
