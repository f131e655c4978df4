"""Better lists from the same embeddings: the order changes, the cosines that are told do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from nearkin.evaluation.reranking import k_reciprocal, query_expansion
from nearkin.index.store import Nearest
from nearkin.registry import nearest_name, shortened

Rerank = Literal["k_reciprocal", "query_expansion"]
CANDIDATES = 100
"""So many hits, or four times as many as are asked for, k-reciprocal neighbours put into a new order."""

Search = Callable[[Tensor, int], Nearest]
"""Vectors ``(n, D)`` and k to the nearest items."""


def search_reranked(
    search: Search, vectors_of: Callable[[Tensor], Tensor], queries: Tensor, k: int, rerank: Rerank
) -> Nearest:
    """Search, and put what was found into another order.

    Args:
        search: The nearest items of any vectors.
        vectors_of: The vectors of items by their ids.
        queries: Unit rows ``(n, D)``.
        k: How many.
        rerank: ``k_reciprocal`` counts common neighbours among the candidates (Zhong et al., CVPR 2017);
            ``query_expansion`` searches again with the query moved towards its nearest (αQE, Radenović et
            al., TPAMI 2019).

    Raises:
        ValueError: There is no such way.
    """
    if rerank not in get_args(Rerank):
        hint = nearest_name(str(rerank), list(get_args(Rerank)))
        raise ValueError(f"rerank={shortened(rerank)}: {hint}")
    rows = [_one(search, vectors_of, query[None], k, rerank) for query in queries]
    if not rows:
        return search(queries, k)
    return Nearest(torch.cat([row.ids for row in rows]), torch.cat([row.similarities for row in rows]))


def _one(
    search: Search, vectors_of: Callable[[Tensor], Tensor], query: Tensor, k: int, rerank: Rerank
) -> Nearest:
    found = search(query, max(CANDIDATES, 4 * k) if rerank == "k_reciprocal" else k)
    near = found.ids[0][found.ids[0] >= 0]
    if not len(near):
        return Nearest(found.ids[:, :k], found.similarities[:, :k])
    if rerank == "query_expansion":
        ids = search(query_expansion(query, vectors_of(near)), k).ids
    else:
        order = k_reciprocal(query, vectors_of(near))[0].argsort(descending=True, stable=True)
        ids = torch.nn.functional.pad(near[order], (0, k), value=-1)[None, :k]
    there = ids >= 0
    similarities = torch.full(ids.shape, -torch.inf)
    similarities[there] = (vectors_of(ids[there]) @ query[0]).clamp(max=1.0)
    return Nearest(ids, similarities)
