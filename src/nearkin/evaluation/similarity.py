"""Both metrics as one inner product, so that everything above knows only the matrix product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric, checked_together, unit_rows

# One chunk of the similarity matrix holds at most this many entries (64 MiB in float32).
CHUNK_ENTRIES = 2**24


@dataclass(frozen=True)
class Sides:
    """Queries and gallery such that ``queries @ gallery.T`` is the similarity ``(Q, G)``.

    Cosine: unit rows. Euclidean: ``−d²/2 = x·y − x²/2 − y²/2``, the two squares as two extra columns.

    Attributes:
        queries: ``(Q, E)``.
        gallery: ``(G, E)``.
        query_squares: ``(Q,)`` squared lengths, the scale of the round-off (one for cosine).
        gallery_squares: ``(G,)``.
    """

    queries: Tensor
    gallery: Tensor
    query_squares: Tensor
    gallery_squares: Tensor

    @property
    def round_off(self) -> float:
        """Two orders of summation of one inner product differ by less than this, per unit of length."""
        return float(torch.finfo(self.queries.dtype).eps * max(self.queries.shape[1], 16) ** 0.5)


def sides(queries: Tensor, gallery: Tensor | None, metric: Metric) -> Sides:
    """The two sides of the similarity; without ``gallery`` the queries search among themselves."""
    if gallery is not None:
        checked_together(queries, gallery)
        dtype = torch.promote_types(queries.dtype, gallery.dtype)
        queries, gallery = queries.to(dtype), gallery.to(dtype)
    if metric == "cosine":
        queries = unit_rows(queries)
        gallery = queries if gallery is None else unit_rows(gallery, "gallery embeddings")
        return Sides(queries, gallery, queries.new_ones(len(queries)), gallery.new_ones(len(gallery)))
    # Distances do not change with the origin, and lengths near the distances keep the digits.
    centre = (queries if gallery is None else gallery).mean(dim=0)
    queries = queries - centre
    gallery = queries if gallery is None else gallery - centre
    query_squares, gallery_squares = queries.square().sum(dim=1), gallery.square().sum(dim=1)
    return Sides(
        torch.cat([queries, -query_squares[:, None] / 2, queries.new_ones(len(queries), 1)], dim=1),
        torch.cat([gallery, gallery.new_ones(len(gallery), 1), -gallery_squares[:, None] / 2], dim=1),
        query_squares,
        gallery_squares,
    )


def row_chunks(rows: int, columns: int, entries: int = CHUNK_ENTRIES) -> Iterator[slice]:
    """Slices of rows such that a chunk of ``columns`` columns stays within ``entries``."""
    step = max(1, entries // max(columns, 1))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
