"""A recipe for tests, where a fixture of one test is not enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def small_values(glyphs_root: Path) -> dict[str, Any]:
    """Plain values of a recipe that trains in about a second."""
    return {
        "data": {
            "name": "glyphs",
            "root": str(glyphs_root),
            "num_classes": 60,
            "images_per_class": 8,
            "size": 16,
        },
        "network": {"name": "convnet", "size": 16, "width": 4, "embedding_dim": 16},
        "sampler": {"batch_size": 40},
        "training": {"epochs": 2},
    }
