"""What makes two pictures of one character differ: pose, warp, stroke, light, noise and clutter."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def distort(
    masks: Tensor, clutter: Tensor, *, size: int, difficulty: float, generator: torch.Generator
) -> Tensor:
    """One random picture of each mask.

    Args:
        masks: ``uint8`` ``(N, side, side)``, the characters, 255 is ink.
        clutter: ``uint8`` ``(N, side, side)``, other characters, of which parts show at the edge.
        size: Side of the pictures in pixels.
        difficulty: Scales every deviation from a clean drawing; 0 leaves the clean drawing.
        generator: All randomness comes from here.

    Returns:
        ``uint8`` pictures ``(N, 1, size, size)``.
    """

    def uniform(*shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        return torch.rand(len(masks), *shape, generator=generator) * (high - low) + low

    ink = _change_stroke(masks.float() / 255, 0.6 * difficulty * uniform(1, 1, low=-0.7))
    warp = 0.055 * difficulty * torch.randn(len(masks), 2, 4, 4, generator=generator)
    shown = _sample(
        ink,
        size=size,
        angle=math.radians(10) * difficulty * uniform(),
        zoom=torch.exp(0.12 * difficulty * uniform(2)),
        shear=0.14 * difficulty * uniform(),
        shift=0.09 * difficulty * uniform(2),
        warp=F.interpolate(warp, size=(size, size), mode="bicubic", align_corners=True),
    )
    direction = math.pi * uniform()
    distance = uniform(low=1.1, high=1.6)
    fragments = _sample(
        clutter.float() / 255,
        size=size,
        angle=math.pi * uniform(),
        zoom=torch.exp(0.3 * uniform(2)),
        shear=torch.zeros(len(masks)),
        shift=torch.stack([distance * direction.cos(), distance * direction.sin()], dim=1),
        warp=torch.zeros(1, 2, 1, 1),
    )
    fragments *= (0.55 * difficulty * uniform(1, 1, low=0.0)).clamp(max=1)
    drawing = torch.maximum(shown, fragments)

    contrast = 1 - (0.35 * difficulty * uniform(1, 1, low=0.0)).clamp(max=0.85)
    dark_ink = uniform(1, 1, low=0.0) < min(0.25 * difficulty, 0.5)
    contrast = torch.where(dark_ink, -contrast, contrast)
    level = 0.5 + (1 - contrast.abs()) / 2 * uniform(1, 1)
    slope = 0.07 * difficulty * uniform(2)
    ramp = torch.linspace(-1, 1, size)
    light = slope[:, 0, None, None] * ramp + slope[:, 1, None, None] * ramp[:, None]
    noise = torch.randn(drawing.shape, generator=generator) * (0.06 * difficulty * uniform(1, 1, low=0.0))
    picture = level + contrast * (drawing - 0.5) + light + noise
    return (picture * 255).round_().clamp_(0, 255).to(torch.uint8).unsqueeze_(1)


def _change_stroke(ink: Tensor, weight: Tensor) -> Tensor:
    """Thicker strokes where ``weight`` is positive, thinner where negative; 1 is a pixel on each side."""
    ink = ink.unsqueeze(1)
    thick = F.max_pool2d(ink, kernel_size=3, stride=1, padding=1)
    thin = -F.max_pool2d(-ink, kernel_size=3, stride=1, padding=1)
    target = torch.where(weight.unsqueeze(1) > 0, thick, thin)
    return torch.lerp(ink, target, weight.abs().clamp(max=1).unsqueeze(1)).squeeze(1)


def _sample(
    ink: Tensor, *, size: int, angle: Tensor, zoom: Tensor, shear: Tensor, shift: Tensor, warp: Tensor
) -> Tensor:
    """Masks ``(N, side, side)`` through an affine map and a displacement field ``(N, 2, size, size)``."""
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([torch.stack([cos, -sin], dim=1), torch.stack([sin, cos], dim=1)], dim=1)
    skew = torch.eye(2).repeat(len(ink), 1, 1)
    skew[:, 0, 1] = shear
    matrix = rotation @ skew / zoom.unsqueeze(1)
    offset = -(matrix @ shift.unsqueeze(2))
    grid = F.affine_grid(torch.cat([matrix, offset], dim=2), [len(ink), 1, size, size], align_corners=False)
    grid = grid + warp.permute(0, 2, 3, 1)
    return F.grid_sample(ink.unsqueeze(1), grid, align_corners=False).squeeze(1)
