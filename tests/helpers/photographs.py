"""A folder of small images, as somebody might have one."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image


def write_photos(folder: Path, *, seed: int) -> Path:
    """Twelve classes of six images, told apart by how bright they are."""
    generator = torch.Generator().manual_seed(seed)
    for label in range(12):
        (folder / f"class{label:02d}").mkdir(parents=True)
        for number in range(6):
            noise = torch.randint(0, 40, (20, 24), generator=generator, dtype=torch.uint8)
            picture = Image.fromarray((noise + 15 * label).numpy())
            picture.save(folder / f"class{label:02d}" / f"{number}.png")
    return folder
