"""What an index costs: queries per second, and what int8 and approximate search miss."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearkin.index.scan import search_float32
from nearkin.index.store import Nearest

if TYPE_CHECKING:
    from nearkin.index.index import Index


@dataclass(frozen=True)
class SearchQuality:
    """One way to search, beside the exact one.

    Attributes:
        queries_per_second: One query after the other.
        recall: Share of the k nearest, by exact float32 search, that it finds.
        recall_at_1: Share of the labelled queries whose first hit has their label; ``None`` without labels.
    """

    queries_per_second: float
    recall: float
    recall_at_1: float | None


@dataclass(frozen=True)
class IndexEvaluation:
    """What :meth:`nearkin.Index.evaluate` measured.

    Attributes:
        items: In the index.
        dimension: D, the size of an embedding.
        queries: Items that were searched for; none is found by itself.
        k: Hits per query.
        exact: Search as the index does it, in float32 or int8.
        float32: Exact search in float32, to compare with.
        approximate: Approximate search; ``None`` where it was not asked for.
    """

    items: int
    dimension: int
    queries: int
    k: int
    exact: SearchQuality
    float32: SearchQuality
    approximate: SearchQuality | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def evaluate(index: Index, *, queries: int, k: int, approximate: bool, seed: int) -> IndexEvaluation:
    """Search for some of the items among all others."""
    ids = index.store.ids()
    if len(ids) < 2:
        raise ValueError(f"{index.path} has {len(ids)} items: there is nothing to find")
    chosen = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))[:queries]]
    asked = _Asked(index, chosen, k)
    exact = asked.measure(index.store.search)
    near = None
    if approximate:
        index.store.search(asked.vectors[:1], k, approximate=True)  # makes the graph, if need be
        near = asked.measure(lambda row, count: index.store.search(row, count, approximate=True))
    plain = exact if index.precision == "float32" else asked.measure(asked.in_float32)
    return IndexEvaluation(len(ids), index.store.dimension, len(chosen), k, exact, plain, near)


class _Asked:
    """Queries, and what they should find."""

    def __init__(self, index: Index, ids: Tensor, k: int) -> None:
        self.ids, self.k = ids, min(k, len(index) - 1)
        self.vectors = index.vectors(ids)
        self._index = index
        self._all_ids = index.store.ids()
        self._matrix = index.vectors(self._all_ids).numpy()
        items = index.items()
        self._labels = {item.id: item.label for item in items}
        found = self.in_float32(self.vectors, self.k + 1)
        self._expected = [self._others(row, own) for row, own in zip(found.ids, ids.tolist(), strict=True)]

    def in_float32(self, rows: Tensor, count: int) -> Nearest:
        """Exact search in float32, whatever the index does."""
        nothing = torch.empty(0, dtype=torch.long).numpy()
        found = search_float32(self._matrix, rows, count, allowed=None, blocked=nothing)
        return Nearest(self._all_ids[found.rows], found.similarities)

    def measure(self, search: Callable[[Tensor, int], Nearest]) -> SearchQuality:
        """Search for one query after the other."""
        search(self.vectors[:1], self.k + 1)
        begin = time.perf_counter()
        found = [search(row[None], self.k + 1).ids[0] for row in self.vectors]
        seconds = time.perf_counter() - begin
        others = [self._others(row, own) for row, own in zip(found, self.ids.tolist(), strict=True)]
        hits = [len({*a} & {*b}) for a, b in zip(others, self._expected, strict=True)]
        right = [
            self._labels[a[0]] == self._labels[own]
            for a, own in zip(others, self.ids.tolist(), strict=True)
            if a and self._labels[own] is not None
        ]
        return SearchQuality(
            len(found) / seconds,
            sum(hits) / (self.k * len(hits)),
            sum(right) / len(right) if right else None,
        )

    def _others(self, found: Tensor, own: int) -> list[int]:
        return [one for one in found.tolist() if one not in (own, -1)][: self.k]
