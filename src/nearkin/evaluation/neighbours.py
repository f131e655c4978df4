"""Exact nearest neighbours, a chunk of queries at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric, checked_embeddings, checked_metric
from nearkin.evaluation.similarity import row_chunks, sides


@torch.no_grad()
def nearest_neighbours(
    embeddings: Tensor, k: int, *, gallery: Tensor | None = None, metric: Metric = "cosine"
) -> tuple[Tensor, Tensor]:
    """The ``k`` nearest rows of the gallery for every row, nearest first.

    Exact; never holds more than a chunk of the similarity matrix. The order among equally similar rows
    is not defined.

    Args:
        embeddings: ``(N, D)`` queries of any float dtype.
        k: how many neighbours; at most the size of the gallery (one less without ``gallery``).
        gallery: ``(G, D)`` rows to search. Without it the rows search among themselves, and every row is
            kept out of its own list by its index, so duplicates of it are still found.
        metric: ``"cosine"`` or ``"euclidean"``.

    Returns:
        Similarities ``(N, k)``, in descending order (the cosine, or minus the Euclidean distance), and
        indices ``(N, k)`` into the gallery.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> similarities, indices = nearest_neighbours(points, 1)
    >>> indices.squeeze(1).tolist()
    [1, 0, 1]
    """
    metric = checked_metric(metric)
    embeddings = checked_embeddings(embeddings)
    searched = embeddings if gallery is None else checked_embeddings(gallery, "gallery")
    available = len(searched) - (gallery is None)
    if not 1 <= k <= available:
        raise ValueError(f"k={k} but each query can choose among {available} rows")
    both = sides(embeddings, None if gallery is None else searched, metric)
    similarities = both.queries.new_empty(len(embeddings), k)
    indices = torch.empty(len(embeddings), k, dtype=torch.long, device=embeddings.device)
    with torch.autocast(embeddings.device.type, enabled=False):
        for rows in row_chunks(len(embeddings), len(searched)):
            chunk = both.queries[rows] @ both.gallery.T
            if gallery is None:
                own = torch.arange(rows.start, rows.stop, device=chunk.device)
                chunk[own - rows.start, own] = -torch.inf
            similarities[rows], indices[rows] = chunk.topk(k, dim=1)
    if metric == "euclidean":
        return _by_distance(embeddings, searched.to(embeddings.dtype), indices)
    return similarities, indices


def _by_distance(embeddings: Tensor, gallery: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Minus the distances from differences, which keep the digits that ``x·y − x²/2 − y²/2`` loses."""
    distances = torch.empty(indices.shape, dtype=embeddings.dtype, device=embeddings.device)
    for rows in row_chunks(len(indices), indices.shape[1] * embeddings.shape[1]):
        distances[rows] = (embeddings[rows, None] - gallery[indices[rows]]).norm(dim=2)
    distances, order = distances.sort(dim=1, stable=True)
    return -distances, indices.gather(1, order)
