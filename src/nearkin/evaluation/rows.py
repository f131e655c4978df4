"""Rank every query from its full row of similarities: for any labels, and for very large classes."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.evaluation.ranking import Ranking, Search, precisions
from nearkin.evaluation.similarity import row_chunks


def rank_by_rows(search: Search, *, only_first: bool) -> Ranking:
    """Rank with a chunk of full rows at a time; precisions are NaN where ``only_first`` is asked for."""
    # The chunk, its masks and two filled copies are alive together.
    chunks = row_chunks(len(search.query_labels), 4 * len(search.gallery_labels))
    parts = [_rank_chunk(search, rows, only_first) for rows in chunks]
    return Ranking(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _rank_chunk(search: Search, rows: slice, only_first: bool) -> Ranking:
    both = search.both
    similarities = both.queries[rows] @ both.gallery.T
    positive = shares_label(search.query_labels[rows], search.gallery_labels)
    negative = ~positive
    each = torch.arange(len(similarities), device=similarities.device)
    if search.own is not None:
        positive[each, search.own[rows]] = False
        negative[each, search.own[rows]] = False
    positives = positive.sum(dim=1)
    longest = 1 if only_first else max(int(positives.max()), 1)
    nearest, item = similarities.masked_fill(~positive, -torch.inf).topk(longest, dim=1)
    thresholds = nearest - both.tolerance(each[:, None] + rows.start, item)
    others = similarities.masked_fill_(~negative, -torch.inf)
    first_before = (others >= thresholds[:, :1]).sum(dim=1)
    if only_first:
        unknown = torch.full_like(nearest[:, 0], torch.nan)
        return Ranking(positives, first_before + 1, unknown, unknown)
    # Beyond R negatives a positive is out of the first R, so more of them need not be counted.
    before = _count_at_least(others.topk(longest, dim=1).values, thresholds)
    is_positive = torch.arange(longest, device=item.device) < positives[:, None]
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
