"""Approximate search: an HNSW graph of usearch over rows of bytes, made when asked for, never the truth.

Malkov and Yashunin, 2018, TPAMI, arXiv:1603.09320. The graph proposes candidates, whose similarities are then
computed from the float32 vectors. It lies in the folder as ``graph.usearch`` and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.atomic import atomic_path, write_json
from nearkin.index.arrays import Matrix, Rows
from nearkin.index.scan import Found, ordered
from nearkin.index.sources import Progress

CONNECTIVITY = 16
EXPANSION_ADD = 128
EXPANSION_SEARCH = 96
_ROWS_AT_A_TIME = 10_000


class Graph:
    """An HNSW graph over the rows of a matrix that grows at its end.

    Args:
        folder: Where it is kept between processes.
        dimension: D, the size of a vector.
    """

    def __init__(self, folder: Path, dimension: int) -> None:
        self._file = folder / "graph.usearch"
        self._note = folder / "graph.json"
        self._dimension = dimension
        self._generation = -1
        self._rows = 0
        self._graph: Any = None
        self._lock = threading.Lock()

    def search(
        self,
        matrix: Matrix,
        generation: int,
        queries: Tensor,
        k: int,
        *,
        removed: Rows,
        excluded: Rows,
    ) -> Found:
        """Probably the ``k`` rows with the largest products.

        Args:
            matrix: Unit rows ``(N, D)``.
            generation: Changes when rows do not only follow others, but are other vectors.
            queries: Unit rows ``(n, D)``.
            k: How many.
            removed: Rows that are not to be found, now and later.
            excluded: A few rows that are not to be found now.
        """
        graph = self._fitting(matrix, generation, removed)
        wanted = min(2 * k + len(excluded), len(graph))
        if not wanted:
            return ordered(matrix, torch.full((len(queries), k), -1), queries, k)
        found = graph.search(queries.numpy(), wanted)
        keys = np.asarray(found.keys, dtype=np.int64).reshape(len(queries), -1)
        outside = (keys < 0) | (keys >= len(matrix)) | np.isin(keys, excluded) | np.isin(keys, removed)
        return ordered(matrix, torch.from_numpy(np.where(outside, -1, keys)), queries, k)

    def make(self, matrix: Matrix, generation: int, *, removed: Rows, progress: Progress | None) -> None:
        """Let the graph have all rows, which takes minutes for a million of them.

        Args:
            matrix: As in :meth:`search`.
            generation: As there.
            removed: As there.
            progress: Called with the rows done and the number of all, where any are new.
        """
        self._fitting(matrix, generation, removed, progress)

    def _fitting(
        self, matrix: Matrix, generation: int, removed: Rows, progress: Progress | None = None
    ) -> Any:
        """The graph with all rows of the matrix in it but the removed ones."""
        with self._lock:
            if self._graph is None or self._generation != generation:
                self._read(generation, len(matrix))
            before = (self._rows, len(self._graph))
            for start in range(self._rows, len(matrix), _ROWS_AT_A_TIME):
                rows = np.arange(start, min(start + _ROWS_AT_A_TIME, len(matrix)))
                self._graph.add(rows, matrix[rows], threads=torch.get_num_threads())
                if progress is not None:
                    progress(start + len(rows), len(matrix))
            self._rows = max(self._rows, len(matrix))
            if len(removed):
                self._graph.remove(removed[self._graph.contains(removed)])
            if before != (self._rows, len(self._graph)):
                self._keep()
            return self._graph

    def _read(self, generation: int, count: int) -> None:
        """Take the graph on disk if it is of this generation and whole, else an empty one."""
        self._graph, self._generation, self._rows = self._empty(), generation, 0
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            whole = note["bytes"] == self._file.stat().st_size and note["rows"] <= count
            if whole and note["generation"] == generation:
                self._graph.load(str(self._file))
                self._rows = int(note["rows"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            self._graph, self._rows = self._empty(), 0

    def _empty(self) -> Any:
        from usearch.index import Index  # noqa: PLC0415  (needed for approximate search only)

        return Index(
            ndim=self._dimension,
            metric="cos",
            dtype="i8",
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            expansion_search=EXPANSION_SEARCH,
        )

    def _keep(self) -> None:
        """Write it for other processes; where that is impossible it is made again there."""
        with contextlib.suppress(OSError, RuntimeError):
            self._note.unlink(missing_ok=True)  # a note of another graph would be worse than none
            with atomic_path(self._file) as temporary:
                self._graph.save(str(temporary))
            size = self._file.stat().st_size
            note = {"generation": self._generation, "rows": self._rows, "bytes": size}
            write_json(self._note, note)
