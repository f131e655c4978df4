"""Single images of any kind to ``uint8`` pixels ``(C, H, W)``, and back to PIL."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from nearkin.data.decoding import as_rgb


def is_image(sample: Any) -> bool:
    """Whether a sample is a PIL image, or ``uint8`` ``(C, H, W)`` with one or three channels."""
    if isinstance(sample, Image.Image):
        return True
    return (
        isinstance(sample, Tensor)
        and sample.dtype == torch.uint8
        and sample.ndim == 3
        and sample.shape[0] in (1, 3)
    )


def to_pixels(image: Image.Image | Tensor) -> Tensor:
    """Pixels ``uint8`` ``(C, H, W)``, upright; 8-bit grey keeps one channel, every other mode becomes RGB.

    >>> to_pixels(Image.new("L", (4, 2), 7)).shape
    torch.Size([1, 2, 4])
    """
    if isinstance(image, Tensor):
        return image
    image = ImageOps.exif_transpose(image)
    values = np.array(image if image.mode == "L" else as_rgb(image))
    return torch.from_numpy(values.reshape(*values.shape[:2], -1)).permute(2, 0, 1).contiguous()


def to_pil(image: Image.Image | Tensor) -> Image.Image:
    """A PIL image of ``uint8`` pixels ``(C, H, W)``, mode L or RGB."""
    if isinstance(image, Image.Image):
        return image
    values = image.permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)
