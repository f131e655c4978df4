"""A model and pictures for tests of indexes: small, quick, and different enough to be told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from nearkin import data, networks
from nearkin.model import Model
from nearkin.networks import Embedder


def picture_model(seed: int = 0) -> Model:
    """A network of small colour images; eight numbers per embedding."""
    network = networks.build("convnet", channels=3, size=16, width=4, embedding_dim=8, seed=seed)
    made = data.transforms.build("resized_crop", preprocessing=network.preprocessing, train=False)
    return Model([Embedder(network.eval(), made, made, transform_spec={"name": "resized_crop"})])


def write_pictures(folder: Path, *, classes: int = 4, each: int = 5, seed: int = 0) -> Path:
    """One folder per class, whose pictures share a colour."""
    numbers = np.random.default_rng(seed)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True, exist_ok=True)
        colour = numbers.integers(30, 225, 3)
        for number in range(each):
            pixels = colour + numbers.integers(-30, 30, (20, 24, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"class{label}" / f"{number}.png")
    return folder
