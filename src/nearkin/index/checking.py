"""What every store refuses, and how it tells an item that is there from a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nearkin.index.arrays import Matrix
from nearkin.index.items import NewItem
from nearkin.index.store import Change


def checked_vectors(items: Sequence[NewItem], vectors: Tensor, dimension: int) -> Matrix:
    """Unit rows, one per item, as an array.

    Raises:
        ValueError: There are too many or too few, one is no unit vector, or two items have one name.
    """
    matrix: Matrix = vectors.detach().to("cpu", torch.float32).contiguous().numpy()
    if matrix.shape != (len(items), dimension):
        raise ValueError(f"{len(items)} items need vectors ({len(items)}, {dimension}), not {matrix.shape}")
    if len(items) and not np.allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-3):
        raise ValueError("vectors must have length 1, and be finite")
    if len({item.name for item in items}) < len(items):
        raise ValueError("two of the items have the same name: each needs one of its own")
    return matrix


def checked_queries(vectors: Tensor, k: int, dimension: int) -> Tensor:
    """Queries ``(n, D)`` in float32 on the CPU.

    Raises:
        ValueError: They have another shape, or nothing is asked for.
    """
    if k < 1:
        raise ValueError(f"k={k} must be at least 1")
    queries = vectors.detach().to("cpu", torch.float32).contiguous()
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise ValueError(f"queries must be (n, {dimension}), not {tuple(queries.shape)}")
    return queries


def change_of(item: NewItem, known: Mapping[str, str]) -> Change:
    """What adding an item does, by the contents of the names that are there."""
    if item.name not in known:
        return "new"
    return "known" if known[item.name] == item.content else "changed"
