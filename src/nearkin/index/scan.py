"""Exact search at the speed of memory: every vector is read once, in full or as bytes.

A single query is a product with every row, which reading the rows bounds; many queries are products of tiles
that stay in the processor's cache. As bytes (int8) a quarter is read: the angles between rows of bytes choose
candidates, whose similarities are then computed from the float32 vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float32]
Codes = NDArray[np.int8]
Rows = NDArray[np.int64]

FEW = 8
"""Up to so many queries, each reads the vectors for itself; more share tiles."""
QUERIES_AT_A_TIME = 256
ROWS_AT_A_TIME = 2048
CANDIDATES = 64
"""With int8, at least so many candidates per query are compared in float32."""
MANY = 4
"""Where a filter leaves less than one in so many rows, only these are read."""
_ROWS_PER_THREAD = 8192


class Found(NamedTuple):
    """Rows ``(n, k)``, −1 where there are fewer than k, and similarities ``(n, k)``; nearest first."""

    rows: Tensor
    similarities: Tensor


def to_codes(vectors: Matrix) -> Codes:
    """Rows of bytes with (nearly) the directions of the vectors: each row uses the whole range.

    >>> to_codes(np.array([[0.6, -0.8]], dtype=np.float32)).tolist()
    [[95, -127]]
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    codes: Codes = np.rint(vectors * (127 / np.maximum(largest, 1e-30))).astype(np.int8)
    return codes


def search_float32(matrix: Matrix, queries: Tensor, k: int, *, allowed: Rows | None, blocked: Rows) -> Found:
    """The ``k`` rows with the largest products.

    Args:
        matrix: Unit rows ``(N, D)``.
        queries: Unit rows ``(n, D)``.
        k: How many.
        allowed: The only rows to find, ascending; ``None`` for all.
        blocked: Rows that are not to be found.
    """
    if allowed is not None and len(allowed) * MANY < len(matrix):
        return _search_few_rows(matrix, queries, k, allowed, blocked)
    blocked = _all_blocked(len(matrix), allowed, blocked)
    if len(queries) <= FEW:
        return _together([_best(_products(matrix, query), k, blocked) for query in queries.numpy()])
    rows = torch.from_numpy(matrix)
    return _together(
        [
            _search_tiles(partial(_product_of_tile, rows, some), len(rows), len(some), k, blocked)
            for some in queries.split(QUERIES_AT_A_TIME)
        ]
    )


def search_int8(
    codes: Codes, matrix: Matrix, queries: Tensor, k: int, *, allowed: Rows | None, blocked: Rows
) -> Found:
    """The same by bytes: candidates by ``codes`` ``(N, D)``, their order by ``matrix`` ``(N, D)``."""
    if allowed is not None and len(allowed) * MANY < len(codes):
        return _search_few_rows(matrix, queries, k, allowed, blocked)
    wanted = max(4 * k, CANDIDATES)
    if len(codes) <= wanted:
        return search_float32(matrix, queries, k, allowed=allowed, blocked=blocked)
    blocked = _all_blocked(len(codes), allowed, blocked)
    asked = to_codes(queries.numpy())
    if len(queries) <= FEW:
        found = [_best(_cosines(codes, one[None]), wanted, blocked) for one in asked]
    else:
        found = [
            _search_tiles(_tiles_of_bytes(codes, some), len(codes), len(some), wanted, blocked)
            for some in np.split(asked, range(QUERIES_AT_A_TIME, len(asked), QUERIES_AT_A_TIME))
        ]
    return ordered(matrix, _together(found).rows, queries, k)


def ordered(matrix: Matrix, candidates: Tensor, queries: Tensor, k: int) -> Found:
    """The best ``k`` of every query's candidates ``(n, c)``, of which −1 is none, by their products."""
    found = []
    for rows, query in zip(candidates, queries, strict=True):
        similarities = torch.from_numpy(matrix[rows.clamp(min=0).numpy()]) @ query
        similarities, order = similarities.masked_fill(rows < 0, -torch.inf).topk(min(k, len(rows)))
        found.append(_padded(rows[order], similarities, k))
    return _together(found)


_NONE: Rows = np.empty(0, dtype=np.int64)


def _search_few_rows(matrix: Matrix, queries: Tensor, k: int, allowed: Rows, blocked: Rows) -> Found:
    """Among few rows, which are copied together."""
    allowed = np.setdiff1d(allowed, blocked, assume_unique=True)
    found = search_float32(matrix[allowed], queries, k, allowed=None, blocked=_NONE)
    return Found(torch.from_numpy(np.append(allowed, -1))[found.rows], found.similarities)  # −1 stays −1


def _all_blocked(count: int, allowed: Rows | None, blocked: Rows) -> Rows:
    """Rows that are not to be found, whether they are blocked or not among those allowed."""
    if allowed is None:
        return blocked
    return np.union1d(np.setdiff1d(np.arange(count), allowed, assume_unique=True), blocked)


def _products(matrix: Matrix, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """``matrix @ query``, at the speed at which the matrix can be read: BLAS is slower than that."""
    products = np.empty(len(matrix), dtype=np.float32)

    def multiply(rows: slice) -> None:
        np.einsum("nd,d->n", matrix[rows], query, out=products[rows])

    _in_threads(multiply, len(matrix))
    return products


def _cosines(codes: Codes, query: Codes) -> NDArray[np.float32]:
    """The cosine of every row of bytes with that of the query ``(1, D)``."""
    import numkong  # noqa: PLC0415  (needed for int8 only)

    cosines = np.empty(len(codes), dtype=np.float32)

    def compare(rows: slice) -> None:
        angles = numkong.cdist(query, codes[rows], metric="angular", out_dtype="float32")
        np.subtract(1, np.asarray(angles)[0], out=cosines[rows])

    _in_threads(compare, len(codes))
    return cosines


def _product_of_tile(matrix: Tensor, queries: Tensor, rows: slice) -> Tensor:
    return queries @ matrix[rows].T


def _tiles_of_bytes(codes: Codes, queries: Codes) -> Callable[[slice], Tensor]:
    """Cosines of many queries with some rows of bytes at a time."""
    import numkong  # noqa: PLC0415

    packed = numkong.dots_pack(np.ascontiguousarray(queries))

    def compare(rows: slice) -> Tensor:
        return 1 - torch.from_numpy(np.asarray(numkong.angulars_packed(codes[rows], packed))).T

    return compare


def _in_threads(work: Callable[[slice], None], count: int) -> None:
    """Share rows among threads; the work leaves Python's lock to others."""
    parts = max(1, min(torch.get_num_threads(), count // _ROWS_PER_THREAD))
    bounds = np.linspace(0, count, parts + 1).astype(int).tolist()
    shares = [slice(*pair) for pair in pairwise(bounds)]
    if parts == 1:
        work(shares[0])
    else:
        list(_threads(parts).map(work, shares))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="nearkin-scan")


def _best(similarities: NDArray[np.float32], k: int, blocked: Rows) -> Found:
    """The largest of one query's similarities; those of blocked rows are overwritten."""
    if len(blocked):
        similarities[blocked] = -np.inf
    values, rows = torch.from_numpy(similarities).topk(min(k, len(similarities)))
    return _padded(rows, values, k)


def _padded(rows: Tensor, similarities: Tensor, k: int) -> Found:
    """One query's rows, filled up to ``k``; rows that must not be found are −1."""
    missing = k - len(rows)
    rows = torch.cat([rows.masked_fill(similarities.isneginf(), -1), rows.new_full((missing,), -1)])
    similarities = torch.cat([similarities, similarities.new_full((missing,), -torch.inf)])
    return Found(rows[None], similarities[None])


def _together(parts: list[Found]) -> Found:
    return Found(torch.cat([part.rows for part in parts]), torch.cat([part.similarities for part in parts]))


def _search_tiles(
    tile_of: Callable[[slice], Tensor], count: int, queries: int, k: int, blocked: Rows
) -> Found:
    """Many queries, tile by tile, of which each query keeps its best so far."""
    rows = torch.full((queries, k), -1)
    best = torch.full((queries, k), -torch.inf)
    for start in range(0, count, ROWS_AT_A_TIME):
        tile = tile_of(slice(start, min(start + ROWS_AT_A_TIME, count)))
        here = blocked[np.searchsorted(blocked, start) : np.searchsorted(blocked, start + tile.shape[1])]
        if len(here):
            tile[:, torch.from_numpy(here - start)] = -torch.inf
        # After the first tiles most hold nothing better for most queries.
        better = (tile.amax(dim=1) > best[:, -1]).nonzero().squeeze(1)
        if not len(better):
            continue
        values, places = tile[better].topk(min(k, tile.shape[1]), dim=1)
        values = torch.cat([best[better], values], dim=1)
        places = torch.cat([rows[better], places + start], dim=1)
        best[better], order = values.topk(k, dim=1)
        rows[better] = places.gather(1, order)
    return Found(rows.masked_fill(best.isneginf(), -1), best)
