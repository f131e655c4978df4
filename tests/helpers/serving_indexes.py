"""Indexes to serve in tests, with a threshold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from indexed import picture_model

from nearkin.index import Index

RATE = SimpleNamespace(value=0.012, low=0.01, high=0.02)
THRESHOLD = SimpleNamespace(
    similarity=0.9, wanted_false_accept_rate=0.01, false_accept_rate=RATE, false_reject_rate=RATE
)


def build_index(photos: Path, folder: Path, seed: int = 0) -> Path:
    paths = sorted(photos.rglob("*.png"))
    prices = {str(path.relative_to(photos)): {"price": number} for number, path in enumerate(paths)}
    Index.build(picture_model(seed), photos, folder, metadata=prices).close()
    return folder


def open_index(folder: Path, threshold: Any = THRESHOLD) -> Index:
    index = Index.open(folder)
    index.model.threshold = threshold
    return index
