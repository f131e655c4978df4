"""Random changes of an image's pixels for training: colours, erased boxes, and RandAugment's operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ERASED_AREA = (0.02, 0.2)  # of the image
_ERASED_RATIO = (0.3, 3.3)  # height to width
_HUE_SHARE = 0.25  # of the strength of the other colour changes
_MIX = 0x9E3779B97F4A7C15  # keeps these draws apart from the crop's, which has the same seed

Operation = Callable[[Any, Tensor, float, int], Tensor]


@dataclass(frozen=True)
class Augmentation:
    """Pixels to other pixels, as a function of a seed and nothing else.

    Args:
        colour: Strength of random changes of brightness, contrast, saturation and hue, 0 to 1.
        erase: Probability that a random box is painted over with the image's mean colour (Zhong, Zheng, Kang,
            Li, Yang. Random Erasing Data Augmentation. AAAI 2020).
        rand_augment: How many random operations are applied one after the other (Cubuk, Zoph, Shlens, Le.
            RandAugment. CVPR Workshops 2020).
        magnitude: Strength of these operations, 0 to 1.
    """

    colour: float = 0.0
    erase: float = 0.0
    rand_augment: int = 0
    magnitude: float = 0.3

    def __post_init__(self) -> None:
        for name in ("colour", "erase", "magnitude"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must lie between 0 and 1")
        if not 0 <= self.rand_augment <= 16:
            raise ValueError(f"rand_augment={self.rand_augment} must be a number of operations from 0 to 16")

    def __bool__(self) -> bool:
        return bool(self.colour or self.erase or self.rand_augment)

    def __call__(self, pixels: Tensor, seed: int) -> Tensor:
        """``uint8`` ``(C, H, W)`` to the same shape."""
        generator = torch.Generator().manual_seed((seed ^ _MIX) & (2**63 - 1))

        def draw(low: float = 0.0, high: float = 1.0) -> float:
            return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

        for _ in range(self.rand_augment):
            operation = _OPERATIONS[int(draw() * len(_OPERATIONS))]
            pixels = operation(_functions(), pixels, self.magnitude, 1 if draw() < 0.5 else -1)
        if self.colour:
            pixels = self._coloured(pixels, draw)
        if self.erase and draw() < self.erase:
            pixels = _erased(pixels, draw)
        return pixels

    def _coloured(self, pixels: Tensor, draw: Callable[..., float]) -> Tensor:
        functions, reach = _functions(), (1 - self.colour, 1 + self.colour)
        pixels = functions.adjust_brightness(pixels, draw(*reach))
        pixels = functions.adjust_contrast(pixels, draw(*reach))
        if pixels.shape[0] == 3:
            pixels = functions.adjust_saturation(pixels, draw(*reach))
            hue = 0.5 * _HUE_SHARE * self.colour
            pixels = functions.adjust_hue(pixels, draw(-hue, hue))
        return pixels


def _functions() -> Any:
    """Torchvision's operations on tensors, which are slow to import."""
    import nearkin.torchvision_import  # noqa: F401, PLC0415  (must come before torchvision)

    # isort: split
    from torchvision.transforms.v2 import functional  # noqa: PLC0415

    return functional


def _erased(pixels: Tensor, draw: Callable[..., float]) -> Tensor:
    _, height, width = pixels.shape
    area = draw(*_ERASED_AREA) * height * width
    ratio = math.exp(draw(*map(math.log, _ERASED_RATIO)))
    box_height = min(max(1, round(math.sqrt(area * ratio))), height)
    box_width = min(max(1, round(math.sqrt(area / ratio))), width)
    top, left = int(draw() * (height - box_height + 1)), int(draw() * (width - box_width + 1))
    mean = pixels.float().mean(dim=(1, 2), keepdim=True).round().to(torch.uint8)
    pixels = pixels.clone()
    pixels[:, top : top + box_height, left : left + box_width] = mean
    return pixels


def _turned(functions: Any, pixels: Tensor, strength: float, sign: int) -> Tensor:
    return functions.rotate(pixels, sign * 30 * strength)  # type: ignore[no-any-return]


def _sheared(functions: Any, pixels: Tensor, strength: float, sign: int) -> Tensor:
    shear = [math.degrees(math.atan(0.3 * strength)) * sign, 0.0]
    return functions.affine(pixels, 0.0, [0, 0], 1.0, shear)  # type: ignore[no-any-return]


def _shifted(functions: Any, pixels: Tensor, strength: float, sign: int) -> Tensor:
    shift = [round(sign * 0.3 * strength * pixels.shape[2]), 0]
    return functions.affine(pixels, 0.0, shift, 1.0, [0.0, 0.0])  # type: ignore[no-any-return]


def _brighter(functions: Any, pixels: Tensor, strength: float, sign: int) -> Tensor:
    return functions.adjust_brightness(pixels, 1 + sign * 0.9 * strength)  # type: ignore[no-any-return]


def _contrasted(functions: Any, pixels: Tensor, strength: float, sign: int) -> Tensor:
    return functions.adjust_contrast(pixels, 1 + sign * 0.9 * strength)  # type: ignore[no-any-return]


def _sharpened(functions: Any, pixels: Tensor, strength: float, sign: int) -> Tensor:
    return functions.adjust_sharpness(pixels, 1 + sign * 0.9 * strength)  # type: ignore[no-any-return]


def _posterized(functions: Any, pixels: Tensor, strength: float, sign: int) -> Tensor:
    return functions.posterize(pixels, 8 - round(4 * strength))  # type: ignore[no-any-return]


def _equalized(functions: Any, pixels: Tensor, strength: float, sign: int) -> Tensor:
    return functions.equalize(pixels)  # type: ignore[no-any-return]


_OPERATIONS: tuple[Operation, ...] = (
    _turned,
    _sheared,
    _shifted,
    _brighter,
    _contrasted,
    _sharpened,
    _posterized,
    _equalized,
)
