"""Where the positives of every query stand among the negatives.

All retrieval scores follow from one count: how many negatives stand before a positive. A negative that is
as similar as the positive, up to the round-off of the product, stands before it: a duplicate image of
another class, or an embedding collapsed to a point, can therefore never lift a score by luck, and the
scores do not depend on the order of the rows or the size of the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.evaluation.similarity import Sides, row_chunks


@dataclass(frozen=True)
class Ranking:
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


def rank_by_chunks(both: Sides, query_labels: Tensor, gallery_labels: Tensor, own: Tensor | None) -> Ranking:
    """Rank with a chunk of full rows at a time; any labels.

    Args:
        both: the two sides of the similarity.
        query_labels: ``(Q,)`` or ``(Q, L)``.
        gallery_labels: ``(G,)`` or ``(G, L)``.
        own: ``(Q,)`` index of every query in the gallery, or None where queries are not in it.
    """
    # The chunk, its mask and two filled copies are alive together.
    parts = [
        _rank_chunk(both, rows, query_labels[rows], gallery_labels, None if own is None else own[rows])
        for rows in row_chunks(len(both.queries), 4 * len(both.gallery))
    ]
    return Ranking(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _rank_chunk(
    both: Sides, rows: slice, query_labels: Tensor, gallery_labels: Tensor, own: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    similarities = both.queries[rows] @ both.gallery.T
    positive = _shares_label(query_labels, gallery_labels)
    negative = ~positive
    if own is not None:
        each = torch.arange(len(own), device=own.device)
        positive[each, own] = False
        negative[each, own] = False
    positives = positive.sum(dim=1)
    longest = max(int(positives.max()), 1)
    nearest, which = similarities.masked_fill(~positive, -torch.inf).topk(longest, dim=1)
    lengths = both.query_squares[rows, None] + both.gallery_squares[which]
    thresholds = nearest - both.round_off / 2 * lengths
    others = similarities.masked_fill_(~negative, -torch.inf)
    first_before = (others >= thresholds[:, :1]).sum(dim=1)
    # Beyond R negatives a positive is out of the first R, so more of them need not be counted.
    before = _count_at_least(others.topk(longest, dim=1).values, thresholds)
    return positives, first_before + 1, *_precisions(before, positives)


def _shares_label(query_labels: Tensor, gallery_labels: Tensor) -> Tensor:
    if query_labels.ndim == 1:
        return query_labels[:, None] == gallery_labels
    return query_labels.float() @ gallery_labels.float().T > 0


def _count_at_least(descending: Tensor, thresholds: Tensor) -> Tensor:
    """How many entries of each row reach each threshold of that row."""
    ascending = descending.flip(1).contiguous()
    return descending.shape[1] - torch.searchsorted(ascending, thresholds.contiguous())


def _precisions(before: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """R-precision and average precision at R, from the negatives before the j-th positive."""
    place = torch.arange(1, before.shape[1] + 1, device=before.device)
    rank = place + before
    counts = (rank <= positives[:, None]) & (place <= positives[:, None])
    # Float64 does not exist on every device; these are sums of a few quotients of small integers.
    exact = torch.float32 if before.device.type == "mps" else torch.float64
    size = positives.clamp(min=1).to(exact)
    precision = torch.where(counts, place.to(exact) / rank.to(exact), 0.0)
    return counts.sum(dim=1) / size, precision.sum(dim=1) / size
