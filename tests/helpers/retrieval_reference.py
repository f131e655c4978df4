"""Slow, plain references: one query at a time, one item at a time, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def naive_similarities(queries: Tensor, gallery: Tensor, metric: str) -> list[list[float]]:
    queries, gallery = queries.double(), gallery.double()
    if metric == "cosine":
        queries = queries / queries.norm(dim=1, keepdim=True)
        gallery = gallery / gallery.norm(dim=1, keepdim=True)
        return (queries @ gallery.T).tolist()
    return (-(queries[:, None] - gallery[None]).norm(dim=2)).tolist()


def naive_list(similarities: list[float], positive: list[bool | None]) -> list[bool]:
    """Items in order, True for a positive; None (the query itself) is left out; a tie favours negatives."""
    items = [
        (round(s, 9), is_positive)
        for s, is_positive in zip(similarities, positive, strict=True)
        if is_positive is not None
    ]
    return [is_positive for _, is_positive in sorted(items, key=lambda item: (-item[0], item[1]))]


def naive_scores(
    queries: Tensor,
    labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    metric: str,
    ks: tuple[int, ...],
) -> dict[str, float] | None:
    """The scores by their definitions, or None where no query has a positive."""
    searched, searched_labels = (queries, labels) if gallery is None else (gallery, gallery_labels)
    assert searched_labels is not None
    rows = []
    left_out = 0
    for q, similarities in enumerate(naive_similarities(queries, searched, metric)):
        positive = [
            None if gallery is None and q == g else _positive(labels[q], searched_labels[g])
            for g in range(len(searched))
        ]
        ordered = naive_list(similarities, positive)
        R = sum(ordered)
        if R == 0:
            left_out += 1
            continue
        rank = 1 + ordered.index(True)
        hits = [sum(ordered[:n]) / n if ordered[n - 1] else 0.0 for n in range(1, R + 1)]
        rows.append(
            {f"recall_at_{k}": float(rank <= k) for k in ks}
            | {
                "map_at_r": sum(hits) / R,
                "r_precision": sum(ordered[:R]) / R,
                "precision_at_1": float(ordered[0]),
                "mean_reciprocal_rank": 1 / rank,
            }
        )
    if not rows:
        return None
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    return means | {"queries": len(rows), "queries_without_positive": left_out}


def _positive(first: Tensor, second: Tensor) -> bool:
    return bool((first == second).item()) if first.ndim == 0 else bool((first.bool() & second.bool()).any())


def lattice(rows: int, dim: int, generator: torch.Generator) -> Tensor:
    """Small integers: many exact duplicates and exact ties, no near ties, no zero row."""
    points = torch.randint(-2, 3, (rows, dim), generator=generator).float()
    points[:, 0] = points[:, 0].where(points.any(dim=1), torch.ones(rows))
    return points
