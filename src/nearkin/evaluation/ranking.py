"""Where the positives of every query stand among the negatives, and what follows from it.

All retrieval scores follow from one count: how many negatives stand before a positive. A negative that is
as similar as the positive, up to the round-off of the product, stands before it: a duplicate image of
another class, or an embedding collapsed to a point, can therefore never lift a score by luck, and the
scores do not depend on the order of the rows or the size of the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nearkin.evaluation.similarity import Sides


@dataclass(frozen=True)
class Search:
    """Which queries search which gallery.

    Attributes:
        both: the two sides of the similarity.
        query_labels: ``(Q,)`` or, multi-hot, ``(Q, L)``.
        gallery_labels: ``(G,)`` or ``(G, L)``.
        own: ``(Q,)`` index of every query in the gallery, or None where queries are not in it.
    """

    both: Sides
    query_labels: Tensor
    gallery_labels: Tensor
    own: Tensor | None

    def choose(self, queries: Tensor) -> Search:
        """The same gallery, searched by some of the queries."""
        own = None if self.own is None else self.own[queries]
        return Search(self.both.choose(queries), self.query_labels[queries], self.gallery_labels, own)


class Ranking(NamedTuple):
    """What the list of every query says, each ``(Q,)``.

    Attributes:
        positives: R, the number of positives in the gallery; all else is meaningless where it is zero.
        first_rank: rank of the first positive, from one.
        r_precision: share of positives among the first R.
        average_precision_at_r: mean over the first R ranks of the precision there, zero where the item at
            that rank is a negative.
    """

    positives: Tensor
    first_rank: Tensor
    r_precision: Tensor
    average_precision_at_r: Tensor


def precisions(before: Tensor, query: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """R-precision and average precision at R of every query, ``(Q,)`` each.

    Args:
        before: ``(P,)`` negatives before each positive, the positives of a query in order and together.
        query: ``(P,)`` whose positive it is.
        start: ``(Q + 1,)`` where the positives of each query begin.
    """
    place = torch.arange(1, len(query) + 1, device=query.device) - start[query]
    rank = place + before
    dtype = precision_dtype(query.device)
    positives = start.diff()
    counted = (rank <= positives[query]).to(dtype)
    found, precision = torch.zeros(2, len(positives), dtype=dtype, device=query.device)
    found.index_add_(0, query, counted)
    precision.index_add_(0, query, counted * place / rank)
    return found / positives.clamp(min=1), precision / positives.clamp(min=1)


def precision_dtype(device: torch.device) -> torch.dtype:
    """What precisions are added up in: float64 does not exist on every device."""
    return torch.float32 if device.type == "mps" else torch.float64
