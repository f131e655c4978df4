"""Recall@k, MAP@R, R-precision: how well the nearest neighbours are kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric, checked_embeddings, checked_labels, checked_metric
from nearkin.evaluation.ranking import Ranking, rank_by_chunks
from nearkin.evaluation.similarity import Sides, sides


@dataclass(frozen=True)
class PerQuery:
    """The scores of every query that has a positive, each ``(Q,)``, on the CPU.

    Attributes:
        indices: rows of ``embeddings`` these values belong to.
        positives: R, the number of positives in the gallery.
        first_rank: rank of the first positive, from one: Recall@k is ``first_rank <= k``.
        r_precision: share of positives among the first R.
        average_precision_at_r: the query's share of MAP@R.
    """

    indices: Tensor
    positives: Tensor
    first_rank: Tensor
    r_precision: Tensor
    average_precision_at_r: Tensor


@dataclass(frozen=True)
class RetrievalScores:
    """Mean retrieval scores over the queries; every score is in [0, 1].

    Attributes:
        recall_at: Recall@k for every k asked for: share of queries with a positive among the first k.
        map_at_r: mean average precision at R.
        r_precision: share of positives among the first R, R being the query's number of positives.
        precision_at_1: share of queries whose nearest neighbour is a positive.
        mean_reciprocal_rank: mean of one over the rank of the first positive.
        queries: number of queries the means are over.
        queries_without_positive: queries left out because the gallery holds no positive for them.
        per_query: the values behind the means, where asked for.
    """

    recall_at: dict[int, float]
    map_at_r: float
    r_precision: float
    precision_at_1: float
    mean_reciprocal_rank: float
    queries: int
    queries_without_positive: int
    per_query: PerQuery | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, float | int]:
        """One flat dictionary, ready for JSON, with names like ``recall_at_1``."""
        recalls = {f"recall_at_{k}": recall for k, recall in self.recall_at.items()}
        return recalls | {
            "map_at_r": self.map_at_r,
            "r_precision": self.r_precision,
            "precision_at_1": self.precision_at_1,
            "mean_reciprocal_rank": self.mean_reciprocal_rank,
            "queries": self.queries,
            "queries_without_positive": self.queries_without_positive,
        }


@torch.no_grad()
def retrieval_scores(
    embeddings: Tensor,
    labels: Tensor,
    *,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    metric: Metric = "cosine",
    per_query: bool = False,
) -> RetrievalScores:
    """Exact retrieval scores, over chunks of the similarity matrix.

    Every row is a query and searches all other rows, itself excluded by its index. With ``queries`` only
    the chosen rows are queries, still against all rows. With ``gallery`` every row (or the chosen ones)
    searches the gallery instead, as in In-Shop.

    Recall@k is the share of queries with at least one positive among the k nearest (Jégou et al., 2011,
    TPAMI; as used since Song et al., 2016, CVPR). MAP@R and R-precision follow Musgrave et al. (2020,
    ECCV, arXiv:2003.08505): with R positives for a query, R-precision is the share of positives among the
    first R, and MAP@R averages, over the first R ranks, the precision at the ranks that hold a positive.

    **Ties are counted against the model**: a negative as similar as a positive, up to the round-off of
    the inner product, ranks before it. A copy of an image under another label costs, never gains; an
    embedding that maps everything to one point scores near zero.

    Queries without a positive in the gallery are left out and counted. A ``k`` beyond the gallery asks
    for the whole gallery: the recall is one.

    Args:
        embeddings: ``(N, D)`` of any float dtype; half precision is computed in float32.
        labels: ``(N,)`` integers, or ``(N, L)`` multi-hot, where rows sharing a label are positives.
        recall_at: the values of k.
        queries: indices ``(Q,)`` or a boolean mask ``(N,)``: the rows that are queries.
        gallery: ``(G, D)``, searched instead of ``embeddings``; nothing is excluded.
        gallery_labels: labels of the gallery, of the same kind as ``labels``.
        metric: ``"cosine"`` or ``"euclidean"``.
        per_query: keep the values of every query.

    Raises:
        ValueError: for NaN or Inf, an all-zero row with the cosine, labels that do not fit, labels of one
            class only, or no query with a positive.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.5]])
    >>> scores = retrieval_scores(points, torch.tensor([0, 0, 1, 1]), recall_at=(1, 2))
    >>> scores.recall_at
    {1: 0.75, 2: 0.75}
    >>> scores.map_at_r
    0.75
    """
    metric = checked_metric(metric)
    ks = _checked_ks(recall_at)
    embeddings = checked_embeddings(embeddings)
    labels = checked_labels(labels, len(embeddings), embeddings.device)
    chosen = _chosen_rows(queries, len(embeddings), embeddings.device)
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels go together: give both or neither")
    if gallery is None or gallery_labels is None:
        gallery_labels, both, own = labels, sides(embeddings, None, metric), chosen
    else:
        gallery = checked_embeddings(gallery, "gallery")
        gallery_labels = checked_labels(gallery_labels, len(gallery), gallery.device, "gallery_labels")
        both, own = sides(embeddings, gallery, metric), None
    _refuse_senseless(labels[chosen], gallery_labels)
    searching = Sides(both.queries[chosen], both.gallery, both.query_squares[chosen], both.gallery_squares)
    with torch.autocast(embeddings.device.type, enabled=False):
        ranking = rank_by_chunks(searching, labels[chosen], gallery_labels, own)
    return _summary(ranking, chosen, ks, per_query)


def _summary(ranking: Ranking, chosen: Tensor, ks: list[int], per_query: bool) -> RetrievalScores:
    found = ranking.positives > 0
    used = int(found.sum())
    if used == 0:
        raise ValueError(f"none of the {len(found)} queries has a positive in the gallery: nothing to score")
    values = PerQuery(
        chosen[found].cpu(),
        ranking.positives[found].cpu(),
        ranking.first_rank[found].cpu(),
        ranking.r_precision[found].cpu().double(),
        ranking.average_precision_at_r[found].cpu().double(),
    )
    rank = values.first_rank
    return RetrievalScores(
        recall_at={k: float((rank <= k).double().mean()) for k in ks},
        map_at_r=float(values.average_precision_at_r.mean()),
        r_precision=float(values.r_precision.mean()),
        precision_at_1=float((rank == 1).double().mean()),
        mean_reciprocal_rank=float(rank.double().reciprocal().mean()),
        queries=used,
        queries_without_positive=len(found) - used,
        per_query=values if per_query else None,
    )


def _checked_ks(recall_at: Sequence[int]) -> list[int]:
    ks = [int(k) for k in recall_at]
    if any(k < 1 for k in ks) or any(k != asked for k, asked in zip(ks, recall_at, strict=True)):
        raise ValueError(f"recall_at={tuple(recall_at)} must hold integers from one")
    return ks


def _chosen_rows(queries: Tensor | None, rows: int, device: torch.device) -> Tensor:
    if queries is None:
        return torch.arange(rows, device=device)
    queries = torch.as_tensor(queries, device=device)
    if queries.ndim != 1 or queries.is_floating_point():
        raise ValueError("queries must be indices (Q,) or a boolean mask (N,) of rows of the embeddings")
    if queries.dtype == torch.bool:
        if len(queries) != rows:
            raise ValueError(f"queries is a mask of {len(queries)} rows but there are {rows} embeddings")
        queries = queries.nonzero().squeeze(1)
    if len(queries) == 0:
        raise ValueError("queries chooses no row")
    outside = queries[(queries < 0) | (queries >= rows)]
    if len(outside):
        raise ValueError(f"queries holds row {int(outside[0])} but there are {rows} embeddings")
    return queries.long()


def _refuse_senseless(labels: Tensor, gallery_labels: Tensor) -> None:
    if labels.ndim != gallery_labels.ndim or labels.shape[1:] != gallery_labels.shape[1:]:
        kinds = f"{tuple(labels.shape)} and {tuple(gallery_labels.shape)}"
        raise ValueError(f"labels and gallery_labels must be of one kind, not of shapes {kinds}")
    if bool((gallery_labels == labels[:1]).all()) and bool((labels == labels[:1]).all()):
        raise ValueError("all labels are of one class: every neighbour is right and no score means anything")
