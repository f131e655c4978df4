"""Re-identification: find the same person or vehicle, seen by another camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric, checked_embeddings, checked_labels, checked_metric
from nearkin.evaluation.similarity import Sides, row_chunks, sides


@dataclass(frozen=True)
class MatchesPerQuery:
    """The matches of every query that has one, each ``(Q,)``, on the CPU.

    Attributes:
        indices: rows of ``embeddings`` these values belong to.
        first_rank: rank of the first match, from one.
        average_precision: the query's share of the mean average precision.
    """

    indices: Tensor
    first_rank: Tensor
    average_precision: Tensor

    def scores(self, ranks: Sequence[int] = (1, 5, 10)) -> dict[str, Tensor]:
        """``(Q,)`` float64 values whose means are the scores, as ``mean_intervals`` takes them."""
        return {f"cmc_at_{k}": (self.first_rank <= k).double() for k in ranks} | {
            "mean_average_precision": self.average_precision
        }


@dataclass(frozen=True)
class ReidentificationScores:
    """Scores of a search across cameras; every score is in [0, 1].

    Attributes:
        cmc: share of queries whose identity is found among the first k, for every k asked for.
        mean_average_precision: mean over queries of the precision at each true match.
        queries: number of queries the means are over.
        queries_without_positive: queries left out because no other camera saw their identity.
        per_query: the values behind the means, where asked for.
    """

    cmc: dict[int, float]
    mean_average_precision: float
    queries: int
    queries_without_positive: int
    per_query: MatchesPerQuery | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, float | int]:
        """One flat dictionary, ready for JSON, with names like ``cmc_at_1``."""
        return {f"cmc_at_{k}": share for k, share in self.cmc.items()} | {
            "mean_average_precision": self.mean_average_precision,
            "queries": self.queries,
            "queries_without_positive": self.queries_without_positive,
        }


@torch.no_grad()
def reidentification_scores(
    embeddings: Tensor,
    labels: Tensor,
    cameras: Tensor,
    *,
    gallery: Tensor,
    gallery_labels: Tensor,
    gallery_cameras: Tensor,
    ranks: Sequence[int] = (1, 5, 10),
    metric: Metric = "cosine",
    per_query: bool = False,
) -> ReidentificationScores:
    """Cumulative match characteristic and mean average precision, the same camera excluded.

    As in Market-1501 (Zheng et al., 2015, ICCV): for each query the gallery images of the same identity
    *and* the same camera are taken out, since finding those is no achievement. The average precision is
    the mean, over the true matches, of the precision at their ranks. Ties count against the model, as in
    :func:`nearkin.evaluation.retrieval_scores`. Gallery rows with a negative label are junk, taken out for
    every query.

    Args:
        embeddings: ``(Q, D)`` queries.
        labels: ``(Q,)`` identities.
        cameras: ``(Q,)`` integers.
        gallery: ``(G, D)``.
        gallery_labels: ``(G,)``.
        gallery_cameras: ``(G,)``.
        ranks: the values of k for the CMC.
        metric: ``"cosine"`` or ``"euclidean"``.
        per_query: keep the values of every query, as :func:`nearkin.evaluation.bootstrap_intervals` needs.

    >>> query, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]])
    >>> scores = reidentification_scores(
    ...     query, torch.tensor([7]), torch.tensor([0]),
    ...     gallery=gallery, gallery_labels=torch.tensor([7, 3, 7]), gallery_cameras=torch.tensor([0, 1, 1]),
    ... )
    >>> scores.cmc[1], scores.mean_average_precision
    (1.0, 1.0)
    """
    metric = checked_metric(metric)
    embeddings, gallery = checked_embeddings(embeddings), checked_embeddings(gallery, "gallery")
    seen = [
        _integers(values, rows, name)
        for values, rows, name in (
            (labels, embeddings, "labels"),
            (cameras, embeddings, "cameras"),
            (gallery_labels, gallery, "gallery_labels"),
            (gallery_cameras, gallery, "gallery_cameras"),
        )
    ]
    if any(k < 1 for k in ranks):
        raise ValueError(f"ranks={tuple(ranks)} must hold integers from one")
    both = sides(embeddings, gallery, metric)
    with torch.autocast(embeddings.device.type, enabled=False):
        parts = [_score_chunk(both, rows, seen) for rows in row_chunks(len(embeddings), 4 * len(gallery))]
    first, average = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    found = first > 0
    if not found.any():
        raise ValueError(f"none of the {len(found)} queries has a match from another camera in the gallery")
    values = MatchesPerQuery(found.nonzero().squeeze(1), first[found], average[found].double())
    return ReidentificationScores(
        cmc={int(k): float((values.first_rank <= k).double().mean()) for k in ranks},
        mean_average_precision=float(values.average_precision.mean()),
        queries=len(values.indices),
        queries_without_positive=len(found) - len(values.indices),
        per_query=values if per_query else None,
    )


def _integers(values: Tensor, rows: Tensor, name: str) -> Tensor:
    checked = checked_labels(values, len(rows), rows.device, name)
    if checked.ndim != 1:
        raise ValueError(f"{name} must be one integer per row, not of shape {tuple(checked.shape)}")
    return checked


def _score_chunk(both: Sides, rows: slice, seen: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Rank of the first match (zero without any) and average precision of every query."""
    labels, cameras, gallery_labels, gallery_cameras = seen
    similarity = both.queries[rows] @ both.gallery.T
    same_label = labels[rows, None] == gallery_labels
    junk = (same_label & (cameras[rows, None] == gallery_cameras)) | (gallery_labels < 0)
    positive = same_label & ~junk
    matches = positive.sum(dim=1)
    longest = max(int(matches.max()), 1)
    nearest, item = similarity.masked_fill(~positive, -torch.inf).topk(longest, dim=1)
    each = torch.arange(rows.start, rows.stop, device=item.device)[:, None]
    thresholds = nearest - both.tolerance(each, item)
    others = similarity.masked_fill_(same_label | junk, -torch.inf).sort(dim=1).values
    before = others.shape[1] - torch.searchsorted(others, thresholds)
    place = torch.arange(1, longest + 1, device=item.device)
    rank = place + before
    counted = (place <= matches[:, None]).float()
    average = (counted * place / rank).sum(dim=1) / matches.clamp(min=1)
    return torch.where(matches > 0, rank[:, 0], 0), average
