from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def _smooth_pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A colourful image without sharp edges, so that JPEG keeps it almost as it is: uint8 (H, W, 3)."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        np.sin(x / width * random.uniform(2, 9) + random.uniform(0, 6))
        * np.cos(y / height * random.uniform(2, 9) + random.uniform(0, 6))
        for _ in range(3)
    ]
    return (127 + 110 * np.stack(waves, axis=-1)).round().astype(np.uint8)


@pytest.fixture(scope="session")
def smooth_pixels() -> Callable[..., np.ndarray]:
    """Make a smooth image: uint8 (H, W, 3)."""
    return _smooth_pixels


@pytest.fixture
def save_image(tmp_path: Path) -> Callable[..., Path]:
    """Write a smooth image of a given size below ``tmp_path`` and return its path."""

    def save(name: str, height: int = 60, width: int = 80, seed: int = 0, **keywords: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".jpg":
            keywords = {"quality": 95, "subsampling": 0} | keywords
        Image.fromarray(_smooth_pixels(height, width, seed)).save(path, **keywords)
        return path

    return save


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered in the user's cache folder stays inside the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
