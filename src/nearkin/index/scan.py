"""Exact search at the speed of memory: every vector is read once, in full or as bytes.

A single query is a product with every row, which reading the rows bounds; many queries are products of tiles
that stay in the processor's cache. As bytes (int8) a quarter is read: the angles between rows of bytes choose
candidates, whose similarities are then computed from the float32 vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
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
    parts = [queries[i : i + QUERIES_AT_A_TIME] for i in range(0, len(queries), QUERIES_AT_A_TIME)]
    return _together([_search_tiles(torch.from_numpy(matrix), part, k, blocked) for part in parts])


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
    candidates = [
        _best(-angles, wanted, blocked).rows for angles in _angles(codes, to_codes(queries.numpy()))
    ]
    return ordered(matrix, torch.cat(candidates), queries, k)


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
    parts = min(torch.get_num_threads(), 1 + len(matrix) // _ROWS_PER_THREAD)
    products = np.empty(len(matrix), dtype=np.float32)
    bounds = np.linspace(0, len(matrix), parts + 1).astype(int)

    def multiply(part: int) -> None:
        rows = slice(bounds[part], bounds[part + 1])
        np.einsum("nd,d->n", matrix[rows], query, out=products[rows])

    if parts == 1:
        multiply(0)
    else:
        list(_threads(parts).map(multiply, range(parts)))
    return products


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


def _search_tiles(matrix: Tensor, queries: Tensor, k: int, blocked: Rows) -> Found:
    """Many queries: products of tiles, of which each query keeps its best so far."""
    rows = torch.full((len(queries), k), -1)
    best = torch.full((len(queries), k), -torch.inf)
    for start in range(0, len(matrix), ROWS_AT_A_TIME):
        tile = queries @ matrix[start : start + ROWS_AT_A_TIME].T
        here = blocked[np.searchsorted(blocked, start) : np.searchsorted(blocked, start + tile.shape[1])]
        if len(here):
            tile[:, torch.from_numpy(here - start)] = -torch.inf
        better = (tile.amax(dim=1) > best[:, -1]).nonzero().squeeze(1)
        if not len(better):
            continue
        values, places = tile[better].topk(min(k, tile.shape[1]), dim=1)
        values = torch.cat([best[better], values], dim=1)
        places = torch.cat([rows[better], places + start], dim=1)
        best[better], order = values.topk(k, dim=1)
        rows[better] = places.gather(1, order)
    return Found(rows.masked_fill(best.isneginf(), -1), best)


def _angles(codes: Codes, queries: Codes) -> Iterator[NDArray[np.float32]]:
    """One minus the cosine of every row of bytes, for one query after the other."""
    import numkong  # noqa: PLC0415  (needed for int8 only)

    for start in range(0, len(queries), FEW):
        some = np.ascontiguousarray(queries[start : start + FEW])
        yield from np.asarray(numkong.cdist(some, codes, metric="angular", out_dtype="float32"))
