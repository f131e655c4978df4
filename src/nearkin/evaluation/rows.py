"""Rank every query from its full row of similarities: for any labels, and for very large classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nearkin.evaluation.ranking import Ranking, Search, precision_dtype, precisions
from nearkin.evaluation.similarity import row_chunks

# Rows of similarities are ranked in chunks of at most this many entries (or one row at a time). All that is
# alive while a chunk is ranked takes up to 128 bytes per entry: 128 MiB.
ROW_ENTRIES = 2**20


def rank_by_rows(search: Search, *, only_first: bool) -> Ranking:
    """Rank with a chunk of full rows at a time; precisions are NaN where ``only_first`` is asked for."""
    ranking = _space_for(len(search.query_labels), search.both.queries)
    for rows in row_chunks(len(search.query_labels), len(search.gallery_labels), ROW_ENTRIES):
        # Results have a place of their own: kept between a chunk's large blocks, they would scatter the heap.
        for column, part in zip(ranking, _rank_chunk(search, rows, only_first), strict=True):
            column[rows] = part
    return ranking


def _space_for(queries: int, like: Tensor) -> Ranking:
    counts = torch.empty(2, queries, dtype=torch.long, device=like.device)
    precision = torch.empty(2, queries, dtype=precision_dtype(like.device), device=like.device)
    return Ranking(*counts, *precision)


def _rank_chunk(search: Search, rows: slice, only_first: bool) -> Ranking:
    both = search.both
    similarities = both.queries[rows] @ both.gallery.T
    positive = shares_label(search.query_labels[rows], search.gallery_labels)
    own = None if search.own is None else search.own[rows]
    return _rank_rows(
        similarities, positive, own, lambda row, item: both.tolerance(row + rows.start, item), only_first
    )


def rank_similarities(
    similarities: Tensor, positive: Tensor, own: Tensor | None, tolerance: float
) -> Ranking:
    """Rank rows of similarities ``(q, G)`` that are no inner products.

    Args:
        similarities: Overwritten.
        positive: ``(q, G)`` which items are positives of the query; overwritten.
        own: ``(q,)`` the query's own place among the items, which does not count.
        tolerance: How far similarities may be off.
    """
    return _rank_rows(
        similarities,
        positive,
        own,
        lambda row, _: torch.full_like(row, tolerance, dtype=torch.float32),
        False,
    )


def _rank_rows(
    similarities: Tensor,
    positive: Tensor,
    own: Tensor | None,
    tolerance: Callable[[Tensor, Tensor], Tensor],
    only_first: bool,
) -> Ranking:
    negative = ~positive
    each = torch.arange(len(similarities), device=similarities.device)
    if own is not None:
        positive[each, own] = False
        negative[each, own] = False
    positives = positive.sum(dim=1)
    longest = 1 if only_first else max(int(positives.max()), 1)
    nearest, item = similarities.masked_fill(~positive, -torch.inf).topk(longest, dim=1)
    thresholds = nearest - tolerance(each[:, None], item)
    del nearest, item, positive
    others = similarities.masked_fill_(~negative, -torch.inf)
    first_before = (others >= thresholds[:, :1]).sum(dim=1)
    if only_first:
        unknown = torch.full_like(thresholds[:, 0], torch.nan)
        return Ranking(positives, first_before + 1, unknown, unknown)
    # Beyond R negatives a positive is out of the first R, so more of them need not be counted.
    enough = max(min(longest, int(negative.sum(dim=1).max())), 1)
    before = _count_at_least(others.topk(enough, dim=1).values, thresholds)
    is_positive = torch.arange(longest, device=thresholds.device) < positives[:, None]
    start = torch.cat([positives.new_zeros(1), positives.cumsum(0)])
    found = precisions(before[is_positive], is_positive.nonzero()[:, 0], start)
    return Ranking(positives, first_before + 1, *found)


def shares_label(query_labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """``(Q, G)``: which pairs have the same label or, multi-hot, a common one."""
    if query_labels.ndim == 1:
        return query_labels[:, None] == gallery_labels
    return query_labels.float() @ gallery_labels.float().T > 0


def _count_at_least(descending: Tensor, thresholds: Tensor) -> Tensor:
    """How many entries of each row reach each threshold of that row."""
    ascending = descending.flip(1).contiguous()
    return descending.shape[1] - torch.searchsorted(ascending, thresholds.contiguous())
