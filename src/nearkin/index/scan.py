"""Exact search at the speed of memory: every vector is read once, in full or as bytes.

A single query is a product with every row, which reading the rows bounds; many queries are products of tiles,
in bf16 first where the processor has instructions for it (:mod:`nearkin.index.rough`).
As bytes (int8) a quarter is read: the cosines of rows of bytes choose candidates, whose similarities are then
computed from the float32 vectors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.nn.functional import pad

from nearkin.index.arrays import Codes, Matrix, Rows
from nearkin.index.rough import SEEN, Better, RoughTiles
from nearkin.processor import has_bf16

FEW = 8
"""Up to so many queries, each reads the vectors for itself; more share tiles."""
QUERIES_AT_A_TIME = 1024
ROWS_AT_A_TIME = 4096
ROWS_AT_A_TIME_IN_BF16 = 2048
FIRST_ROWS = 512
"""Of the first tile the best must be selected, which takes long; of others, what is better than these."""
CANDIDATES = 64
"""With int8, at least so many candidates per query are compared in float32."""
MANY = 4
"""Where a filter leaves less than one in so many rows, only these are read."""
_ROWS_AT_ONCE = 8192


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


def lengths_of(codes: Codes) -> NDArray[np.float32]:
    """The length of every row of bytes ``(N,)``; 1 where a row is zero.

    >>> lengths_of(np.array([[3, 4], [0, 0]], dtype=np.int8)).tolist()
    [5.0, 1.0]
    """
    squares = np.einsum("nd,nd->n", codes, codes, dtype=np.int32)
    lengths: NDArray[np.float32] = np.sqrt(np.maximum(squares, 1), dtype=np.float32)
    return lengths


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
    found = [_search_shares(matrix, some.numpy(), k, blocked) for some in queries.split(QUERIES_AT_A_TIME)]
    return _together(found)


def search_int8(
    codes: Codes,
    lengths: NDArray[np.float32],
    matrix: Matrix,
    queries: Tensor,
    k: int,
    *,
    allowed: Rows | None,
    blocked: Rows,
) -> Found:
    """The same by bytes: candidates by ``codes`` ``(N, D)``, their order by ``matrix`` ``(N, D)``.

    Args:
        codes: Of :func:`to_codes`.
        lengths: Of :func:`lengths_of` these.
        matrix: Unit rows ``(N, D)``.
        queries: Unit rows ``(n, D)``.
        k: How many.
        allowed: The only rows to find, ascending; ``None`` for all.
        blocked: Rows that are not to be found.
    """
    if allowed is not None and len(allowed) * MANY < len(codes):
        return _search_few_rows(matrix, queries, k, allowed, blocked)
    wanted = max(4 * k, CANDIDATES)
    if len(codes) <= wanted:
        return search_float32(matrix, queries, k, allowed=allowed, blocked=blocked)
    blocked = _all_blocked(len(codes), allowed, blocked)
    asked = to_codes(queries.numpy())
    if len(queries) <= FEW:
        found = [_best(_scaled_cosines(codes, lengths, one[None]), wanted, blocked) for one in asked]
    else:
        found = [
            _search_tiles(
                _tiles_of_bytes(codes, lengths, some), range(len(codes)), len(some), wanted, blocked
            )
            for some in np.split(asked, range(QUERIES_AT_A_TIME, len(asked), QUERIES_AT_A_TIME))
        ]
    return ordered(matrix, _together(found).rows, queries, k)


def ordered(matrix: Matrix, candidates: Tensor, queries: Tensor, k: int) -> Found:
    """The best ``k`` of every query's candidates ``(n, c)``, of which −1 is none, by their products."""
    found = []
    for rows, some in zip(candidates.split(64), queries.split(64), strict=True):
        vectors = matrix[rows.clamp(min=0).numpy()]
        products = torch.from_numpy(np.einsum("ncd,nd->nc", vectors, some.numpy()))
        similarities, order = products.masked_fill(rows < 0, -torch.inf).topk(min(k, rows.shape[1]))
        found.append(_padded(rows.gather(1, order), similarities, k))
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
    """``matrix @ query``, as fast as the matrix can be read: BLAS's product is slower."""
    products = np.empty(len(matrix), dtype=np.float32)

    def multiply(rows: slice) -> None:
        if hasattr(np, "vecdot"):
            np.vecdot(matrix[rows], query, out=products[rows])
        else:  # before NumPy 2.0; a fifth slower
            np.einsum("nd,d->n", matrix[rows], query, out=products[rows])

    _in_threads(multiply, len(matrix))
    return products


def _scaled_cosines(codes: Codes, lengths: NDArray[np.float32], query: Codes) -> NDArray[np.float32]:
    """The cosine of every row of bytes with that of the query ``(1, D)``, times the query's length."""
    import numkong  # noqa: PLC0415  (needed for int8 only)

    cosines = np.empty(len(codes), dtype=np.float32)

    def compare(rows: slice) -> None:
        products = numkong.cdist(query, codes[rows], metric="inner", out_dtype="float32")
        np.divide(np.asarray(products)[0], lengths[rows], out=cosines[rows])

    _in_threads(compare, len(codes))
    return cosines


def _search_shares(matrix: Matrix, queries: Matrix, k: int, blocked: Rows) -> Found:
    """Many queries: each thread searches its share of the rows, tile by tile."""
    threads = torch.get_num_threads()
    bounds = np.linspace(0, len(matrix), threads + 1).astype(int).tolist()

    def search(share: tuple[int, int]) -> Found:
        tiles = _products_of_tiles(matrix, queries)
        rough = RoughTiles(matrix, queries, ROWS_AT_A_TIME_IN_BF16) if has_bf16() else None
        return _search_tiles(tiles, range(*share), len(queries), k, blocked, rough=rough)

    with _one_thread_per_product():
        found = list(_threads(threads).map(search, pairwise(bounds)))
    similarities, order = torch.cat([part.similarities for part in found], dim=1).topk(k)
    return Found(torch.cat([part.rows for part in found], dim=1).gather(1, order), similarities)


def _products_of_tiles(matrix: Matrix, queries: Matrix) -> Callable[[slice], NDArray[np.float32]]:
    """Products of some rows at a time with many queries, in the same memory each time.

    By NumPy's BLAS, which on AMD's processors is far ahead of torch's, and elsewhere level with it.
    """
    memory = np.empty((min(ROWS_AT_A_TIME, len(matrix)), len(queries)), dtype=np.float32)

    def multiply(rows: slice) -> NDArray[np.float32]:
        here = matrix[rows]
        return np.matmul(here, queries.T, out=memory[: len(here)])

    return multiply


_PRODUCTS = Lock()


@contextmanager
def _one_thread_per_product() -> Iterator[None]:
    """Threads of ours share the rows: threads of BLAS beside them would only wait for each other.

    The number of BLAS's threads is the process's, so that one search after the other sets it.
    """
    with _PRODUCTS, _thread_pools().limit(limits=1, user_api="blas"):
        yield


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


def _tiles_of_bytes(
    codes: Codes, lengths: NDArray[np.float32], queries: Codes
) -> Callable[[slice], NDArray[np.float32]]:
    """Cosines of many queries with some rows of bytes at a time, times each query's length."""
    asked, rows_of_bytes = torch.from_numpy(queries), torch.from_numpy(codes)

    def compare(rows: slice) -> NDArray[np.float32]:
        products = torch._int_mm(rows_of_bytes[rows], asked.T)
        cosines: NDArray[np.float32] = (products / torch.from_numpy(lengths[rows])[:, None]).numpy()
        return cosines

    return compare


def _in_threads(work: Callable[[slice], None], count: int) -> None:
    """Share rows among threads, piece by piece as they come along; the work leaves Python's lock to others.

    This thread works as well: until another one has woken up, a good part is done.
    """
    bounds = [*range(0, count, _ROWS_AT_ONCE), count]
    pieces = deque(slice(*pair) for pair in pairwise(bounds))

    def work_on() -> None:
        while pieces:
            try:
                piece = pieces.popleft()
            except IndexError:  # another thread took the last one
                return
            work(piece)

    more = min(torch.get_num_threads(), len(pieces)) - 1
    others = [_threads(more).submit(work_on) for _ in range(more)]
    work_on()
    for other in others:
        other.result()


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="nearkin-scan", initializer=_use_one_thread)


def _use_one_thread() -> None:
    """What torch does in this thread it does alone; in others nothing changes."""
    torch.get_num_threads()  # which is when torch sets a thread's number, and not afterwards
    _thread_pools().limit(limits=1, user_api="openmp")


def _best(similarities: NDArray[np.float32], k: int, blocked: Rows) -> Found:
    """The largest of one query's similarities; those of blocked rows are overwritten."""
    if len(blocked):
        similarities[blocked] = -np.inf
    values, rows = torch.from_numpy(similarities)[None].topk(min(k, len(similarities)))
    return _padded(rows, values, k)


def _padded(rows: Tensor, similarities: Tensor, k: int) -> Found:
    """Rows ``(n, ≤ k)`` filled up to ``k``; rows that must not be found are −1."""
    rows = rows.masked_fill(similarities.isneginf(), -1)
    missing = k - rows.shape[1]
    return Found(pad(rows, (0, missing), value=-1), pad(similarities, (0, missing), value=-torch.inf))


def _together(parts: list[Found]) -> Found:
    return Found(torch.cat([part.rows for part in parts]), torch.cat([part.similarities for part in parts]))


def _search_tiles(
    tile_of: Callable[[slice], NDArray[np.float32]],
    rows: range,
    queries: int,
    k: int,
    blocked: Rows,
    *,
    rough: RoughTiles | None = None,
) -> Found:
    """Many queries, tile by tile (rows by queries), of which each query keeps its best so far."""
    best = _Best(queries, k)
    is_better = np.empty((min(ROWS_AT_A_TIME, len(rows)), queries), dtype=bool)
    second = min(rows.start + FIRST_ROWS, rows.stop)
    step = ROWS_AT_A_TIME if rough is None else rough.height
    bounds = [rows.start, *range(second, rows.stop, step), rows.stop]
    for start, end in pairwise(bounds):
        here = blocked[np.searchsorted(blocked, start) : np.searchsorted(blocked, end)] - start
        first = start == rows.start
        better = None
        if rough is not None and start - rows.start >= SEEN * k:
            better = rough.better(slice(start, end), best.worst, here)
        if better is None:
            tile = tile_of(slice(start, end))
            tile[here] = -np.inf
            # In the first tile every row is better than none, of which k are enough; later tiles hold few.
            if first:
                found = _largest(tile, k)
            else:
                found = np.flatnonzero(np.greater(tile, best.worst, out=is_better[: len(tile)]))
            places, asking = np.divmod(found, queries)
            better = Better(places + start, asking, tile.ravel()[found])
        if len(better.rows):
            best.add(better)
    return best.found()


def _largest(tile: NDArray[np.float32], k: int) -> Rows:
    """Places of every query's ``k`` largest, counted through the tile."""
    height, queries = tile.shape
    rows = np.argpartition(-tile.T, k, axis=1)[:, :k] if k < height else np.arange(height)[None]
    places: Rows = (rows * queries + np.arange(queries)[:, None]).ravel()
    return places


class _Best:
    """The best ``k`` rows so far of each of ``n`` queries, in no order."""

    def __init__(self, queries: int, k: int) -> None:
        self._values = np.full((queries, k), -np.inf, dtype=np.float32)
        self._rows = np.full((queries, k), -1)
        self.worst: NDArray[np.float32] = np.full(queries, -np.inf, dtype=np.float32)
        """What a row must exceed to be among a query's best."""

    def add(self, better: Better) -> None:
        """Take rows into account, each found by one asking query."""
        rows, asking, values = better
        queries, k = self._values.shape
        order = np.argsort(
            asking.astype(np.min_scalar_type(queries)), kind="stable"
        )  # of small numbers: fast
        counts = np.bincount(asking, minlength=queries)
        touched = np.flatnonzero(counts)
        counts = counts[touched]
        line = np.repeat(np.arange(len(touched)), counts)
        column = k + np.arange(len(asking)) - np.repeat(counts.cumsum() - counts, counts)
        all_values = np.full((len(touched), k + counts.max()), -np.inf, dtype=np.float32)
        all_rows = np.full(all_values.shape, -1)
        all_values[:, :k], all_rows[:, :k] = self._values[touched], self._rows[touched]
        all_values[line, column], all_rows[line, column] = values[order], rows[order]
        kept = np.argpartition(all_values, -k, axis=1)[:, -k:]
        self._values[touched] = np.take_along_axis(all_values, kept, axis=1)
        self._rows[touched] = np.take_along_axis(all_rows, kept, axis=1)
        self.worst[touched] = self._values[touched].min(axis=1)

    def found(self) -> Found:
        """Nearest first; −1 where there are fewer."""
        order = np.argsort(-self._values, axis=1)
        values = np.take_along_axis(self._values, order, axis=1)
        rows = np.where(np.isneginf(values), -1, np.take_along_axis(self._rows, order, axis=1))
        return Found(torch.from_numpy(rows), torch.from_numpy(values))
