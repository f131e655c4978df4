"""Resizing with torchvision, in a file of its own so that nothing else waits for torchvision's import."""

from __future__ import annotations

import nearkin.torchvision_import  # noqa: F401  (must come before torchvision)

# isort: split
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode, functional


def resize(pixels: Tensor, size: tuple[int, int], interpolation: str) -> Tensor:
    """``uint8`` ``(C, H, W)`` to ``(C, *size)``, with antialiasing."""
    mode = InterpolationMode(interpolation)
    resized: Tensor = functional.resize_image(pixels, list(size), mode, antialias=True)
    return resized
