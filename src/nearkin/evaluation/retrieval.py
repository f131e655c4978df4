"""Recall@k, MAP@R, R-precision: how many of the nearest neighbours are of the same class."""

from __future__ import annotations

import html
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isnan
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric, checked_embeddings, checked_labels, checked_metric
from nearkin.evaluation.ranking import Ranking, Search
from nearkin.evaluation.rows import rank_by_rows
from nearkin.evaluation.similarity import sides
from nearkin.evaluation.tiles import rank_by_tiles
from nearkin.extras import data_frame

if TYPE_CHECKING:
    import pandas as pd

# A query whose positives are more than this share of the gallery is ranked from its full row.
CROWDED = 1 / 32
# Tiles hold all positive pairs of their queries in memory: where these are more, queries are ranked in
# several passes over the gallery, unless a pass had fewer queries than fill a tile.
POSITIVE_PAIRS = 2**21
FEWEST_QUERIES = 1024
LARGEST_K = 2**31 - 1

Scores = TypeVar("Scores", bound="RecallScores")

_TITLES = {
    "precision_at_1": "Precision@1",
    "mean_reciprocal_rank": "mean reciprocal rank",
    "map_at_r": "MAP@R",
    "r_precision": "R-precision",
}


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

    def scores(self, recall_at: Sequence[int] = (1, 2, 4, 8)) -> dict[str, Tensor]:
        """``(Q,)`` float64 values whose means are the scores of the same names."""
        rank = self.first_rank
        return {f"recall_at_{k}": (rank <= k).double() for k in _checked_ks(recall_at)} | {
            "precision_at_1": (rank == 1).double(),
            "mean_reciprocal_rank": rank.double().reciprocal(),
            "map_at_r": self.average_precision_at_r,
            "r_precision": self.r_precision,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class RecallScores:
    """Scores that only ask where the first positive stands; every score is in [0, 1].

    Attributes:
        recall_at: Recall@k for every k asked for: share of queries with a positive among the first k.
        precision_at_1: share of queries whose nearest neighbour is a positive.
        mean_reciprocal_rank: mean of one over the rank of the first positive.
        queries: number of queries the means are over.
        queries_without_positive: queries left out because the gallery holds no positive for them.
    """

    recall_at: dict[int, float]
    precision_at_1: float
    mean_reciprocal_rank: float
    queries: int
    queries_without_positive: int

    def to_dict(self) -> dict[str, float | int]:
        """One flat dictionary, ready for JSON, with names like ``recall_at_1``."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        recalls = {f"recall_at_{k}": recall for k, recall in values.pop("recall_at").items()}
        values.pop("per_query", None)
        return recalls | values

    @classmethod
    def from_dict(cls: type[Scores], values: Mapping[str, Any]) -> Scores:
        """What :meth:`to_dict` wrote, or an older version of it.

        Keys that are no scores are ignored. A score that is missing is NaN, but Precision@1 and Recall@1,
        which are the same, stand in for each other.

        >>> RetrievalScores.from_dict({"recall_at_1": 0.5, "map_at_r": 0.25, "queries": 8, "epoch": 3})
        RetrievalScores(Recall@1 50.00 %, MAP@R 25.00 %, 8 queries)
        """
        matches = [(re.fullmatch(r"recall_at_(\d+)", key), value) for key, value in values.items()]
        recalls = {int(match[1]): float(value) for match, value in matches if match}
        known: dict[str, Any] = {"recall_at": recalls}
        for one in fields(cls):
            if one.name.startswith("queries"):
                known[one.name] = int(values.get(one.name, 0))
            elif one.name not in ("recall_at", "per_query"):
                missing = recalls.get(1, torch.nan) if one.name == "precision_at_1" else torch.nan
                known[one.name] = float(values.get(one.name, missing))
        if not recalls and "precision_at_1" in values:
            recalls[1] = known["precision_at_1"]
        return cls(**known)

    def to_pandas(self) -> pd.DataFrame:
        """A ``pandas.DataFrame`` with one row and the columns of :meth:`to_dict`: ``pandas.concat`` them."""
        return data_frame([self.to_dict()])

    def _shown(self) -> list[tuple[str, str]]:
        """Titles and values for people: the scores that are known, in per cent."""
        titles = {f"recall_at_{k}": f"Recall@{k}" for k in self.recall_at} | _TITLES
        return [
            (titles[name], f"{value:.4f}" if name == "mean_reciprocal_rank" else f"{100 * value:.2f} %")
            for name, value in self.to_dict().items()
            if name in titles and not isnan(value) and (name != "precision_at_1" or 1 not in self.recall_at)
        ]

    def __repr__(self) -> str:
        scores = ", ".join(f"{title} {value}" for title, value in self._shown() if title[0].isupper())
        without = f", {self.queries_without_positive:,} without a positive"
        left_out = without if self.queries_without_positive else ""
        return f"{type(self).__name__}({scores}, {self.queries:,} queries{left_out})"

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        left_out = f"{self.queries_without_positive:,}"
        counts = [("queries", f"{self.queries:,}"), ("queries without a positive", left_out)]
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(title)}</th>"
            f"<td style='text-align:right'>{html.escape(value)}</td></tr>"
            for title, value in self._shown() + counts
        )
        return f"<table>{rows}</table>"


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrievalScores(RecallScores):
    """Mean retrieval scores over the queries: those of :class:`RecallScores`, and over the first R ranks.

    Attributes:
        map_at_r: mean average precision at R.
        r_precision: share of positives among the first R, R being the query's number of positives.
        per_query: the values behind the means, where asked for.
    """

    map_at_r: float
    r_precision: float
    per_query: PerQuery | None = field(default=None, repr=False, compare=False)


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

    **Memory** does not depend on how large the classes are: beside at most four copies of the embeddings and
    of the gallery, and 200 bytes for each of their rows, less than 256 MiB is held at a time on a CPU, or 128
    bytes for each row of the gallery where that is more (more than two million rows).

    Args:
        embeddings: ``(N, D)`` of any float dtype; half precision is computed in float32.
        labels: ``(N,)`` integers, or ``(N, L)`` multi-hot, where rows sharing a label are positives.
        recall_at: the values of k, whole numbers from 1 to 2,147,483,647.
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
    ks = _checked_ks(recall_at)
    chosen, search = _checked_search(
        embeddings, labels, queries=queries, gallery=gallery, gallery_labels=gallery_labels, metric=metric
    )
    return scores_of_ranking(_rank(search, only_first=False), ks, chosen=chosen, per_query=per_query)


def scores_of_ranking(
    ranking: Ranking, recall_at: Sequence[int], *, chosen: Tensor | None = None, per_query: bool = False
) -> RetrievalScores:
    """The scores of a ranking, however it was made; ``chosen`` rows of the embeddings were the queries."""
    ks = _checked_ks(recall_at)
    if chosen is None:
        chosen = torch.arange(len(ranking.positives), device=ranking.positives.device)
    return scores_of_queries(_per_query(ranking, chosen), len(chosen), ks, per_query=per_query)


def scores_of_queries(
    values: PerQuery, asked: int, recall_at: Sequence[int], *, per_query: bool = False
) -> RetrievalScores:
    """The scores of ``asked`` queries by the values of those that have a positive."""
    return RetrievalScores(
        **_first_scores(values, asked, _checked_ks(recall_at)),
        map_at_r=float(values.average_precision_at_r.mean()),
        r_precision=float(values.r_precision.mean()),
        per_query=values if per_query else None,
    )


@torch.no_grad()
def recall_scores(
    embeddings: Tensor,
    labels: Tensor,
    *,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    metric: Metric = "cosine",
) -> RecallScores:
    """Recall@k, precision at 1 and the mean reciprocal rank alone: :func:`retrieval_scores` in less time.

    For a score after every epoch. Arguments, ties and errors as there.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.5]])
    >>> recall_scores(points, torch.tensor([0, 0, 1, 1])).recall_at[1]
    0.75
    """
    ks = _checked_ks(recall_at)
    chosen, search = _checked_search(
        embeddings, labels, queries=queries, gallery=gallery, gallery_labels=gallery_labels, metric=metric
    )
    values = _per_query(_rank(search, only_first=True), chosen)
    return RecallScores(**_first_scores(values, len(chosen), ks))


def _checked_search(
    embeddings: Tensor,
    labels: Tensor,
    *,
    queries: Tensor | None,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    metric: Metric,
) -> tuple[Tensor, Search]:
    """The rows that are queries, and what they search."""
    metric = checked_metric(metric)
    embeddings = checked_embeddings(embeddings)
    labels = checked_labels(labels, len(embeddings), embeddings.device)
    chosen = _chosen_rows(queries, len(embeddings), embeddings.device)
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels go together: give both or neither")
    if gallery is None or gallery_labels is None:
        search = Search(sides(embeddings, None, metric), labels, labels, torch.arange(len(labels)).to(chosen))
    else:
        gallery = checked_embeddings(gallery, "gallery")
        gallery_labels = checked_labels(gallery_labels, len(gallery), gallery.device, "gallery_labels")
        search = Search(sides(embeddings, gallery, metric), labels, gallery_labels, None)
    _refuse_senseless(labels[chosen], search.gallery_labels)
    return chosen, search if queries is None else search.choose(chosen)


def _rank(search: Search, *, only_first: bool) -> Ranking:
    """Each query the way that is cheap for it: tiles, unless a good part of the gallery are its positives."""
    with torch.autocast(search.query_labels.device.type, enabled=False):
        if search.query_labels.ndim == 2:
            return rank_by_rows(search, only_first=only_first)
        sizes = _class_sizes(search.query_labels, search.gallery_labels)
        crowded = sizes > min(CROWDED * len(search.gallery_labels), POSITIVE_PAIRS / FEWEST_QUERIES)
        if crowded.all():
            return rank_by_rows(search, only_first=only_first)
        passes = _passes(search.query_labels, sizes, (~crowded).nonzero().squeeze(1))
        if len(passes) == 1 and not crowded.any():
            return rank_by_tiles(search, only_first=only_first)
        some = crowded.nonzero().squeeze(1)
        parts = [rank_by_rows(search.choose(some), only_first=only_first)] if len(some) else []
        parts += [rank_by_tiles(search.choose(others), only_first=only_first) for others in passes]
    order = torch.cat([some, *passes]).argsort()
    return Ranking(*(torch.cat(columns)[order] for columns in zip(*parts, strict=True)))


def _passes(labels: Tensor, sizes: Tensor, queries: Tensor) -> list[Tensor]:
    """Some of the queries in parts with about as many positive pairs as may be held, by class."""
    queries = queries[labels[queries].argsort(stable=True)]
    pairs = sizes[queries].cumsum(0)
    number = (pairs - sizes[queries]) // POSITIVE_PAIRS
    return list(queries.split(number.unique_consecutive(return_counts=True)[1].tolist()))


def _class_sizes(labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """How many rows of the gallery have the label."""
    ascending = gallery_labels.sort().values
    return torch.searchsorted(ascending, labels, right=True) - torch.searchsorted(ascending, labels)


def _per_query(ranking: Ranking, chosen: Tensor) -> PerQuery:
    found = ranking.positives > 0
    if not found.any():
        raise ValueError(f"none of the {len(found)} queries has a positive in the gallery: nothing to score")
    return PerQuery(
        chosen[found].cpu(),
        ranking.positives[found].cpu(),
        ranking.first_rank[found].cpu(),
        ranking.r_precision[found].cpu().double(),
        ranking.average_precision_at_r[found].cpu().double(),
    )


def _first_scores(values: PerQuery, asked: int, ks: list[int]) -> dict[str, Any]:
    columns = values.scores(ks)
    return {
        "recall_at": {k: float(columns[f"recall_at_{k}"].mean()) for k in ks},
        "precision_at_1": float(columns["precision_at_1"].mean()),
        "mean_reciprocal_rank": float(columns["mean_reciprocal_rank"].mean()),
        "queries": len(values.indices),
        "queries_without_positive": asked - len(values.indices),
    }


def _checked_ks(recall_at: Sequence[int]) -> list[int]:
    wrong = f"recall_at={reprlib.repr(recall_at)} must hold whole numbers from 1 to {LARGEST_K:,}"
    try:
        ks = [int(k) for k in recall_at]
        whole = all(k == asked for k, asked in zip(ks, recall_at, strict=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(wrong) from error
    if not whole or not all(1 <= k <= LARGEST_K for k in ks):
        raise ValueError(wrong)
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
