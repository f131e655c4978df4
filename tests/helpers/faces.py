"""Drawings of people: faces as in ORL's folders, and passers-by as several cameras see them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def draw_face(person: int, number: int, size: tuple[int, int] = (23, 28)) -> Image.Image:
    """A grey face: what a person looks like does not change, where it looks and how bright it is does."""
    rng = np.random.default_rng([person, 7])
    width, eyes, gap, mouth, hair = rng.uniform(0.6, 1, 5)
    tone = int(rng.integers(90, 220))
    moved = np.random.default_rng([person, number])
    dx, dy, light = moved.uniform(-1, 1), moved.uniform(-1, 1), moved.uniform(0.9, 1.1)
    picture = Image.new("L", size, 30)
    draw = ImageDraw.Draw(picture)
    x, y = size[0] / 2 + dx, size[1] / 2 + dy
    draw.ellipse([x - 9 * width, y - 12, x + 9 * width, y + 12], fill=int(min(255, tone * light)))
    draw.rectangle(
        [x - 9 * width, y - 13, x + 9 * width, y - 13 + 7 * (hair - 0.4)], fill=int(255 * hair) // 3
    )
    for side in (-1, 1):
        middle = x + side * 5 * gap
        draw.ellipse([middle - 2 * eyes, y - 4, middle + 2 * eyes, y - 4 + 3 * eyes], fill=10)
    draw.line([x - 6 * mouth, y + 6, x + 6 * mouth, y + 6 + 4 * (mouth - 0.8)], fill=20, width=2)
    return picture


def write_faces(folder: Path, people: int = 14, images: int = 6) -> Path:
    """ORL's layout: a folder ``s1``, ``s2``, … per person with ``1.pgm``, ``2.pgm``, …."""
    for person in range(1, people + 1):
        (folder / f"s{person}").mkdir(parents=True)
        for number in range(1, images + 1):
            draw_face(person, number).save(folder / f"s{person}" / f"{number}.pgm")
    return folder


def draw_passer_by(person: int, camera: int, number: int) -> Image.Image:
    """A figure of coloured head, coat and trousers; each camera has a light of its own."""
    colours = np.random.default_rng([person, 3]).integers(40, 256, (3, 3))
    light = np.array([(1.0, 0.9, 0.8), (0.75, 0.9, 1.0), (0.8, 0.8, 0.7)])[camera % 3]
    rng = np.random.default_rng([person, camera, number])
    pixels = np.full((24, 24, 3), 60.0 + 25 * camera)
    left = 8 + int(rng.integers(-2, 3))
    for part, (top, bottom) in enumerate(((3, 7), (7, 15), (15, 22))):
        pixels[top:bottom, left : left + 8] = colours[part]
    pixels = pixels * light + rng.normal(0, 6, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
