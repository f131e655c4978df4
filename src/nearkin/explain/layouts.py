"""Where the points of a 2-D picture lie: a few named layouts, or anybody's file."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass
from math import radians
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

_PROXY_TURN = 14.0
"""Degrees by which a proxy stands beside the middle of its class, so that it is not hidden behind it."""


@dataclass(frozen=True)
class Layout:
    """Points of the plane and their classes.

    Attributes:
        points: ``(N, 2)``.
        labels: ``(N,)``, numbered from 0.
        names: What is written beside each point; may be empty.
        proxies: ``(C, 2)``, where a proxy loss has its proxies.
    """

    points: Tensor
    labels: Tensor
    names: tuple[str, ...]
    proxies: Tensor

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.proxies)


def on_circle(degrees: Tensor) -> Tensor:
    """Points of the unit circle ``(N, 2)`` from their angles ``(N,)``."""
    angles = torch.deg2rad(degrees)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def _triplet(anchor: float, positive: float, negative: float, proxies: tuple[float, float]) -> Layout:
    return Layout(
        on_circle(torch.tensor([anchor, positive, negative])),
        torch.tensor([0, 0, 1]),
        ("a", "p", "n"),
        on_circle(torch.tensor(proxies)),
    )


def _near() -> Layout:
    """Anchor, positive and a negative a little less similar than the positive: semi-hard."""
    return _triplet(90.0, 132.0, 45.0, (158.0, 8.0))


def _hard() -> Layout:
    """The negative lies between anchor and positive."""
    return _triplet(115.0, 50.0, 86.0, (140.0, 15.0))


def _easy() -> Layout:
    """The positive near, the negative far away: nothing to learn for losses with a margin."""
    return _triplet(100.0, 125.0, -60.0, (150.0, -25.0))


def _crowd() -> Layout:
    """An anchor with two positives, between two other classes."""
    degrees = torch.tensor([90.0, 128.0, 52.0, 22.0, -18.0, 158.0, 200.0])
    return Layout(
        on_circle(degrees),
        torch.tensor([0, 0, 0, 1, 1, 2, 2]),
        ("a", "p", "p", "n", "n", "n", "n"),
        on_circle(torch.tensor([106.0, 2.0, 182.0])),
    )


def _clusters(images_per_class: int = 7, spread: float = 38.0, seed: int = 0) -> Layout:
    """Three classes that run into each other; the toy set of the animations."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([90.0, 210.0, 330.0])
    labels = torch.arange(3).repeat_interleave(images_per_class)
    degrees = centres[labels] + spread * torch.randn(len(labels), generator=generator)
    return Layout(on_circle(degrees), labels, ("",) * len(labels), on_circle(centres + 40))


_NAMED = {"triplet": _near, "hard": _hard, "easy": _easy, "crowd": _crowd, "clusters": _clusters}


def names() -> list[str]:
    """The named layouts.

    >>> names()
    ['triplet', 'hard', 'easy', 'crowd', 'clusters']
    """
    return list(_NAMED)


def find(text: str | os.PathLike[str]) -> Layout:
    """A layout by its name, or from a CSV or JSON file.

    Raises:
        ValueError: where it is neither, or the file cannot be understood.

    >>> find("triplet").names
    ('a', 'p', 'n')
    """
    if str(text) in _NAMED:
        return _NAMED[str(text)]()
    if Path(text).suffix.lower() not in (".csv", ".json"):
        raise ValueError(
            f"layout {str(text)!r} must be one of {', '.join(names())}, or a .csv or .json file of points"
        )
    return read(text)


def read(path: str | os.PathLike[str]) -> Layout:
    """Points from a file: CSV with a header, or a JSON list of objects.

    Each row has ``x``, ``y`` and ``label`` (any text), and may have a ``name`` to be written beside it. A row
    with ``kind`` "proxy" is where the class's proxy stands; a class without one gets it beside its middle.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no layout {file}")
    text = file.read_text(encoding="utf-8-sig")
    rows = json.loads(text) if file.suffix.lower() == ".json" else list(csv.DictReader(text.splitlines()))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{file} must be a list of objects with x, y and label")
    entries = [_entry(row, f"{file}, point {number}") for number, row in enumerate(rows, start=1)]
    samples = [entry for entry in entries if not entry[3]]
    if not samples:
        raise ValueError(f"{file} has no points")
    classes = {label: number for number, label in enumerate(dict.fromkeys(e[1] for e in samples))}
    points = torch.tensor([place for place, *_ in samples])
    labels = torch.tensor([classes[label] for _, label, *_ in samples])
    proxies = default_proxies(points, labels)
    for place, label, _, is_proxy in entries:
        if is_proxy:
            if label not in classes:
                raise ValueError(f"{file}: class {label!r} has a proxy but no points")
            proxies[classes[label]] = torch.tensor(place)
    return Layout(points, labels, tuple(name for _, _, name, _ in samples), proxies)


def _entry(row: dict[str, Any], where: str) -> tuple[tuple[float, float], str, str, bool]:
    """Place, label, name and whether it is a proxy."""
    missing = [column for column in ("x", "y", "label") if row.get(column) in (None, "")]
    if missing:
        raise ValueError(f"{where} has no {', '.join(missing)}")
    try:
        place = (float(row["x"]), float(row["y"]))
    except ValueError:
        raise ValueError(f"{where}: x={row['x']!r}, y={row['y']!r} must be numbers") from None
    kind = row.get("kind") or "sample"
    if kind not in ("sample", "proxy"):
        raise ValueError(f"{where}: kind={kind!r} must be one of: sample, proxy")
    return place, str(row["label"]), str(row.get("name") or ""), kind == "proxy"


def default_proxies(points: Tensor, labels: Tensor) -> Tensor:
    """A proxy per class ``(C, 2)`` beside the direction of its mean, on the unit circle."""
    counts = labels.bincount().unsqueeze(1)
    sums = points.new_zeros(len(counts), 2).index_add_(0, labels, points)
    return turned(normalize(sums / counts, dim=1), _PROXY_TURN)


def turned(points: Tensor, degrees: float) -> Tensor:
    """Points ``(..., 2)`` turned about the origin."""
    angle = torch.tensor(radians(degrees))
    turn = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).view(2, 2)
    return points @ turn.to(points.dtype)
