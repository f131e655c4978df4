"""Rank every query from tiles of the similarity matrix, each used for its rows and for its columns.

With rows and columns sorted by class, all positives lie in a narrow band around the diagonal. The band
gives every positive a threshold; then each tile is compared with the thresholds of its rows and, where
the rows search among themselves, with those of its columns, so that only half of the tiles are computed.
Nothing is sorted but the positives, and no more than a tile and the band is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nearkin.evaluation.ranking import Ranking, Search, precisions
from nearkin.evaluation.similarity import CHUNK_ENTRIES, Sides

# A tile and its comparison stay in the cache of one processor; accelerators want longer work.
TILE_ON_CPU = 1024
TILE_ELSEWHERE = 4096

# Few rows at a time keep the band narrow.
BAND = 256

# So many rows of the gallery bound, for every query, how similar its R-th negative is at least.
SAMPLE = 1024


@dataclass(frozen=True)
class Positives:
    """The positives of every query, one after the other, the nearest of each query first.

    Attributes:
        start: ``(Q + 1,)`` where the positives of each query begin and those of the last one end.
        threshold: ``(P,)`` similarity from which on a negative stands before the positive.
        query: ``(P,)`` whose positive it is.
    """

    start: Tensor
    threshold: Tensor
    query: Tensor

    @property
    def count(self) -> Tensor:
        """``(Q,)`` positives per query."""
        return self.start.diff()

    def first(self) -> Tensor:
        """``(Q,)`` threshold of the nearest positive; queries without one get +inf."""
        return self._padded()[self.start[:-1]].masked_fill(self.count == 0, torch.inf)

    def lowest_above(self, bound: Tensor) -> Tensor:
        """``(Q,)`` the lowest threshold above the bound of the query; +inf if there is none."""
        at = self._search(torch.arange(len(bound), device=bound.device), bound)
        found = at > self.start[:-1]
        return self._padded()[(at - 1).clamp(min=0)].masked_fill(~found, torch.inf)

    def add_reached(self, tally: Tensor, query: Tensor, similarity: Tensor) -> None:
        """Count each negative in ``tally`` at the first positive that it stands before; there must be one."""
        at = self._search(query, similarity)
        tally.index_add_(0, at, torch.ones_like(at))

    def _padded(self) -> Tensor:
        return torch.cat([self.threshold, self.threshold.new_full((1,), -torch.inf)])

    def _search(self, query: Tensor, similarity: Tensor) -> Tensor:
        """Position of the first threshold of the query that the similarity reaches, or of its end."""
        threshold = self._padded()
        low, high = self.start[query], self.start[query + 1]
        for _ in range(int(self.count.max()).bit_length()):
            middle = (low + high) // 2
            beyond = (threshold[middle] > similarity) & (low < high)
            low = torch.where(beyond, middle + 1, low)
            high = torch.where(beyond, high, middle)
        return low


@dataclass(frozen=True)
class SortedSearch(Search):
    """A search with both sides sorted by class; symmetric if every row of the gallery is a query."""

    symmetric: bool

    @property
    def tile(self) -> int:
        """How many rows and columns a tile has."""
        return TILE_ON_CPU if self.query_labels.device.type == "cpu" else TILE_ELSEWHERE


class Thresholds(NamedTuple):
    """What negatives are compared with.

    Attributes:
        positives: Of every query.
        cut: ``(Q,)`` below which negatives need not be counted; ``None`` where only those before the first
            positive are.
    """

    positives: Positives
    cut: Tensor | None


class Counts(NamedTuple):
    """How many negatives were found before the first positive ``(Q,)``, and first before each ``(P,)``."""

    first_before: Tensor
    tally: Tensor


def rank_by_tiles(search: Search, *, only_first: bool) -> Ranking:
    """Rank from tiles; one integer label per row; precisions are NaN where ``only_first`` is asked for."""
    data, query_order = sorted_by_class(search)
    thresholds = thresholds_of(data, only_first=only_first)
    return ranking_of(thresholds, count_negatives(data, thresholds), query_order)


def sorted_by_class(search: Search) -> tuple[SortedSearch, Tensor]:
    """The search with both sides sorted by class, and the order of the queries in it."""
    both, own = search.both, search.own
    query_labels, query_order = search.query_labels.sort(stable=True)
    gallery_labels, gallery_order = search.gallery_labels.sort(stable=True)
    symmetric = own is not None and torch.equal(own[query_order], gallery_order)
    if own is not None:
        own = _inverse(gallery_order)[own[query_order]]
    queries = both.queries[query_order]
    shared = symmetric and both.queries is both.gallery
    gallery = queries if shared else both.gallery[gallery_order]
    both = Sides(queries, gallery, both.query_squares[query_order], both.gallery_squares[gallery_order])
    return SortedSearch(both, query_labels, gallery_labels, own, symmetric), query_order


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse


def thresholds_of(data: SortedSearch, *, only_first: bool) -> Thresholds:
    """From the positives of every query, and a sample of its negatives."""
    positives = _positives(data)
    if only_first:
        return Thresholds(positives, None)
    return Thresholds(positives, positives.lowest_above(_bound_on_negatives(data, positives.count)))


def count_negatives(data: SortedSearch, thresholds: Thresholds, *, share: int = 0, of: int = 1) -> Counts:
    """The negatives of one share of the tiles; the counts of all shares add up."""
    positives, cut = thresholds
    first = positives.first()
    first_before = torch.zeros_like(positives.count)
    tally = torch.zeros_like(positives.query)
    for stripe in _stripes(data, share, of):
        reaching = []
        for rows, columns, tile in stripe:
            both_ways = data.symmetric and rows != columns
            first_before[rows] += tile.count(first[rows, None], dim=1)
            if both_ways:
                first_before[columns] += tile.count(first[columns], dim=0)
            if cut is not None:
                column_cut = cut[columns] if both_ways else None
                reaching += tile.reaching(cut[rows], column_cut, rows.start, columns.start)
        if reaching:
            query, similarity = (torch.cat(column) for column in zip(*reaching, strict=True))
            positives.add_reached(tally, query, similarity)
    return Counts(first_before, tally)


def ranking_of(thresholds: Thresholds, counts: Counts, query_order: Tensor) -> Ranking:
    """What the counts of all tiles say, in the order that the queries had before they were sorted."""
    positives, cut = thresholds
    if cut is None:
        found = (torch.full_like(positives.first(), torch.nan),) * 2
    else:
        # Below the cut the negatives were not counted: there are at least R of them.
        beyond = positives.threshold < cut[positives.query]
        before = _running(counts.tally, positives).where(~beyond, positives.count[positives.query])
        found = precisions(before, positives.query, positives.start)
    back = _inverse(query_order)
    return Ranking(*(column[back] for column in (positives.count, counts.first_before + 1, *found)))


def _positives(data: SortedSearch) -> Positives:
    """Similarities of all positive pairs, from the band around the diagonal."""
    both = data.both
    found = []
    for rows, columns in _band(data):
        similarity = both.queries[rows] @ both.gallery[columns].T
        positive = data.query_labels[rows, None] == data.gallery_labels[columns]
        if data.own is not None:
            own = data.own[rows] - columns.start
            positive[torch.arange(len(own), device=own.device), own] = False
        query, item = positive.nonzero(as_tuple=True)
        threshold = similarity[query, item] - both.tolerance(query + rows.start, item + columns.start)
        found.append((query + rows.start, threshold))
    query, threshold = (torch.cat(column) for column in zip(*found, strict=True))
    threshold, order = threshold.sort(descending=True)
    query, regrouped = query[order].sort(stable=True)
    start = torch.searchsorted(query, torch.arange(len(both.queries) + 1, device=query.device))
    return Positives(start, threshold[regrouped], query)


def _band(data: SortedSearch) -> Iterator[tuple[slice, slice]]:
    """Rows, and the columns from the first to the last class among these rows."""
    begins = torch.searchsorted(data.gallery_labels, data.query_labels).tolist()
    ends = torch.searchsorted(data.gallery_labels, data.query_labels, right=True).tolist()
    start = 0
    while start < len(begins):
        stop = min(start + BAND, len(begins))
        width = max(ends[stop - 1] - begins[start], 1)
        stop = min(stop, start + max(CHUNK_ENTRIES // width, 1))
        yield slice(start, stop), slice(begins[start], max(ends[stop - 1], begins[start] + 1))
        start = stop


def _bound_on_negatives(data: SortedSearch, positives: Tensor) -> Tensor:
    """``(Q,)`` at least R negatives of the query are this similar: a positive below is beyond rank R."""
    size = min(max(SAMPLE, 8 * int(positives.max())), len(data.gallery_labels))
    # Evenly spaced and, in integers, surely distinct: a row counted twice would break the bound.
    sample = torch.arange(size, device=positives.device) * len(data.gallery_labels) // size
    columns, labels = data.both.gallery[sample].T, data.gallery_labels[sample]
    bounds = []
    for start in range(0, len(positives), data.tile):
        rows = slice(start, start + data.tile)
        similarity = data.both.queries[rows] @ columns
        similarity.masked_fill_(data.query_labels[rows, None] == labels, -torch.inf)
        place = positives[rows, None].clamp(1, size)
        bounds.append(similarity.topk(int(place.max()), dim=1).values.gather(1, place - 1))
    return torch.cat(bounds).squeeze(1)


class _Tile:
    """Space for one tile and for the comparisons with it, used again for every tile.

    Fresh memory for each tile would cost as much as the comparisons.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        self._buffers = like.new_empty(2, size * size)
        self._masks = torch.empty(2, -(-size * size // 8) * 8, dtype=torch.bool, device=like.device)

    def fill(self, queries: Tensor, gallery: Tensor) -> None:
        """Make this the tile of these rows and columns."""
        self.shape = (len(queries), len(gallery))
        area = len(queries) * len(gallery)
        self.similarity, self._scratch = self._buffers[:, :area].view(2, *self.shape)
        self._reached = self._masks[:, :area].view(2, *self.shape)
        # Masks are read eight entries at a time, beyond the end of an odd tile.
        self._lanes = self._masks[:, : -(-area // 8) * 8]
        self._lanes[:, area:] = False
        self._lanes = self._lanes.view(torch.int64)
        torch.mm(queries, gallery.T, out=self.similarity)

    def count(self, thresholds: Tensor, dim: int) -> Tensor:
        """How many entries along ``dim`` reach the thresholds."""
        # Ones and zeros as floats: comparison and sum are both vectorised, and exact for any tile.
        return torch.ge(self.similarity, thresholds, out=self._scratch).sum(dim=dim).long()

    def reaching(
        self, row_cut: Tensor, column_cut: Tensor | None, first_row: int, first_column: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Query and similarity of every entry that reaches the cut of its row, and of its column."""
        torch.ge(self.similarity, row_cut[:, None], out=self._reached[0])
        lanes = self._lanes[0]
        if column_cut is not None:
            torch.ge(self.similarity, column_cut, out=self._reached[1])
            lanes |= self._lanes[1]
        # Most lanes are empty, and eight entries are looked at for the price of one.
        found = lanes.nonzero().squeeze(1)
        lane, within = lanes[found].view(torch.bool).view(-1, 8).nonzero(as_tuple=True)
        position = found[lane] * 8 + within
        similarity = self.similarity.flatten()[position]
        row, column = position // self.shape[1], position % self.shape[1]
        if column_cut is None:
            return [(row + first_row, similarity)]
        by_row, by_column = similarity >= row_cut[row], similarity >= column_cut[column]
        return [
            (row[by_row] + first_row, similarity[by_row]),
            (column[by_column] + first_column, similarity[by_column]),
        ]


def _stripes(data: SortedSearch, share: int, of: int) -> Iterator[Iterator[tuple[slice, slice, _Tile]]]:
    """The tiles of one stripe of rows after the other: of every ``of`` stripes the one of this share."""
    tile = _Tile(data.tile, data.both.queries)
    for start in range(share * data.tile, len(data.query_labels), of * data.tile):
        yield _tiles(data, slice(start, min(start + data.tile, len(data.query_labels))), tile)


def _tiles(data: SortedSearch, rows: slice, tile: _Tile) -> Iterator[tuple[slice, slice, _Tile]]:
    """Rows, columns and their similarities with all positives at −inf."""
    ends = torch.stack([data.query_labels[rows.start], data.query_labels[rows.stop - 1]])
    begin = int(torch.searchsorted(data.gallery_labels, ends[0]))
    end = int(torch.searchsorted(data.gallery_labels, ends[1], right=True))
    for start in range(rows.start if data.symmetric else 0, len(data.gallery_labels), data.tile):
        columns = slice(start, min(start + data.tile, len(data.gallery_labels)))
        tile.fill(data.both.queries[rows], data.both.gallery[columns])
        if begin < columns.stop and columns.start < end:
            same = data.query_labels[rows, None] == data.gallery_labels[columns]
            tile.similarity.masked_fill_(same, -torch.inf)
        yield rows, columns, tile


def _running(tally: Tensor, positives: Positives) -> Tensor:
    """Running sum of the tally that begins anew with every query."""
    total = torch.cat([tally.new_zeros(1), tally.cumsum(0)])
    return total[1:] - total[positives.start[:-1]][positives.query]
