"""Better lists from the same embeddings: query expansion, whitening, k-reciprocal neighbours.

Each works for queries among themselves and for queries against a gallery, as in an index. None of them
knows a label; whether one helps on the data at hand is what :func:`reranked_scores` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.evaluation.inputs import checked_embeddings, checked_labels, checked_together, unit_rows
from nearkin.evaluation.neighbours import nearest_neighbours
from nearkin.evaluation.ranking import Ranking, Search
from nearkin.evaluation.retrieval import RetrievalScores, retrieval_scores, scores_of_ranking
from nearkin.evaluation.rows import rank_by_rows, rank_similarities, shares_label
from nearkin.evaluation.similarity import row_chunks, sides

Reranking = Literal["k_reciprocal", "query_expansion", "whitening"]

_SMALLEST_VARIANCE = 1e-6  # of the largest: what lies below is round-off and would be blown up
_ROUND_OFF = 1e-6


@torch.no_grad()
def query_expansion(
    queries: Tensor, gallery: Tensor | None = None, *, k: int = 10, alpha: float = 3.0
) -> Tensor:
    """Every query moved towards its nearest neighbours: ``q + Σ max(cos, 0)^α · x``, unit rows ``(Q, D)``.

    Radenović, Tolias, Chum. Fine-tuning CNN Image Retrieval with No Human Annotation. TPAMI 2019. With
    ``alpha=0`` it is the average query expansion of Chum et al. (ICCV 2007).

    Args:
        queries: ``(Q, D)``.
        gallery: ``(G, D)``; without it the queries are neighbours of each other, and none is its own.
        k: How many neighbours; all of them where there are fewer.
        alpha: How much more near neighbours count than far ones.

    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> query_expansion(points[:1], points[1:], k=1, alpha=0).round(decimals=3)
    tensor([[0.9490, 0.3160]])
    """
    if alpha < 0:
        raise ValueError(f"alpha={alpha} must be at least 0")
    queries, searched, available = _checked_sides(queries, gallery)
    similarity, item = nearest_neighbours(queries, min(_checked_k(k), available), gallery=gallery)
    weight = similarity.clamp(min=0).pow(alpha).to(queries.dtype)
    expanded = torch.empty_like(queries)
    for rows in row_chunks(len(queries), item.shape[1] * queries.shape[1]):
        near = searched[item[rows]].to(queries.dtype)
        expanded[rows] = queries[rows] + torch.einsum("qk,qkd->qd", weight[rows], near)
    return normalize(expanded, dim=1)


@dataclass(frozen=True)
class Whitening:
    """Decorrelates embeddings and gives every direction the same variance: PCA-whitening.

    Jégou, Chum. Negative Evidences and Co-occurrences in Image Retrieval: The Benefit of PCA and Whitening.
    ECCV 2012. Fitted on embeddings of other classes than those that are searched.

    Attributes:
        mean: ``(D,)`` what is taken off.
        projection: ``(D, E)`` principal components, each divided by its standard deviation.

    >>> points = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([9.0, 3, 1])
    >>> whitening = Whitening.fit(points)
    >>> whitening(points).shape
    torch.Size([500, 3])
    """

    mean: Tensor
    projection: Tensor

    @classmethod
    @torch.no_grad()
    def fit(cls, embeddings: Tensor, *, size: int | None = None) -> Whitening:
        """From ``(N, D)`` embeddings, which are taken at length 1.

        Args:
            embeddings: Of training or validation classes.
            size: How many directions are kept, those with the largest variance; by default all that have
                any.

        Raises:
            ValueError: There are fewer directions than that.
        """
        units = unit_rows(checked_embeddings(embeddings)).double()
        if len(units) < 2:
            raise ValueError("whitening needs at least two embeddings")
        mean = units.mean(dim=0)
        centred = units - mean
        variance, directions = torch.linalg.eigh(centred.T @ centred / (len(units) - 1))
        variance, directions = variance.flip(0), directions.flip(1)
        # Unit rows that differ by no more than round-off do not differ.
        kept = int((variance > _SMALLEST_VARIANCE * variance[0]).sum()) if variance[0] > _ROUND_OFF**2 else 0
        if size is not None and not 1 <= size <= kept:
            raise ValueError(f"size={size}: the embeddings vary in {kept} directions")
        if not kept:
            raise ValueError("whitening needs embeddings that differ")
        kept = size or kept
        projection = directions[:, :kept] / variance[:kept].sqrt()
        return cls(mean.to(embeddings.dtype), projection.to(embeddings.dtype))

    @torch.no_grad()
    def __call__(self, embeddings: Tensor) -> Tensor:
        """Whitened unit rows ``(N, E)`` of embeddings ``(N, D)``."""
        units = unit_rows(checked_embeddings(embeddings))
        if units.shape[1] != len(self.mean):
            raise ValueError(f"embeddings have {units.shape[1]} columns but whitening knows {len(self.mean)}")
        whitened: Tensor = (units - self.mean.to(units)) @ self.projection.to(units)
        return normalize(whitened, dim=1)


@torch.no_grad()
def k_reciprocal(
    queries: Tensor,
    gallery: Tensor | None = None,
    *,
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
) -> Tensor:
    """Similarities ``(Q, G)`` that count common neighbours: ``−(1 − weight) d_J − weight d``.

    Zhong, Zheng, Cao, Li. Re-ranking Person Re-identification with k-reciprocal Encoding. CVPR 2017. ``d`` is
    the squared Euclidean distance of unit rows, ``2 − 2 cos``, and ``d_J`` the Jaccard distance of the sets
    of k-reciprocal neighbours: those that have each other among their ``k1`` nearest, joined with the
    ``k1 / 2`` reciprocal neighbours of each where two thirds of these are in the set already (``R*`` in the
    paper), every member counting ``exp(−d)``, and averaged over the ``k2`` nearest.

    For many queries see :func:`k_reciprocal_rows`, which gives some rows at a time.

    Args:
        queries: ``(Q, D)``.
        gallery: ``(G, D)``, or the candidates of a search; without it the queries search among themselves.
        k1: Neighbours that may be reciprocal.
        k2: Over how many the sets are averaged; 1 for no averaging.
        weight: Of the distance itself, λ in the paper.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> k_reciprocal(points[:1], points[1:], k1=1, k2=1).argmax().item()
    0
    """
    return torch.cat([rows for _, rows in k_reciprocal_rows(queries, gallery, k1=k1, k2=k2, weight=weight)])


@torch.no_grad()
def k_reciprocal_rows(
    queries: Tensor,
    gallery: Tensor | None = None,
    *,
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
) -> Iterator[tuple[slice, Tensor]]:
    """:func:`k_reciprocal` in chunks: which queries, and their similarities ``(q, G)``."""
    if not 0 <= weight <= 1:
        raise ValueError(f"weight={weight} must lie between 0 and 1")
    _checked_k(k1, "k1"), _checked_k(k2, "k2")
    queries, searched, _ = _checked_sides(queries, gallery)
    units = queries if gallery is None else torch.cat([queries, searched.to(queries.dtype)])
    codes = _encoded(units, k1, k2)
    found = slice(0 if gallery is None else len(queries), None)
    for rows in row_chunks(len(queries), len(units)):
        jaccard = 1 - codes.overlap(rows)[:, found]
        distance = 2 - 2 * units[rows] @ units[found].T
        yield rows, -((1 - weight) * jaccard + weight * distance)


def _checked_sides(queries: Tensor, gallery: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Queries, what they search, and how many rows each of them can find."""
    queries = unit_rows(checked_embeddings(queries, "queries"), "queries")
    if gallery is None:
        return queries, queries, len(queries) - 1
    gallery = unit_rows(checked_embeddings(gallery, "gallery"), "gallery")
    checked_together(queries, gallery)
    return queries, gallery, len(gallery)


def _checked_k(k: int, name: str = "k") -> int:
    if k < 1:
        raise ValueError(f"{name}={k} must be at least 1")
    return k


@dataclass(frozen=True)
class _Codes:
    """Sparse non-negative rows ``(N, N)`` that add up to one, sorted by row and, once more, by column.

    Attributes:
        row_start: ``(N + 1,)`` where the entries of a row begin.
        column: ``(E,)`` of each entry.
        value: ``(E,)``.
        column_start: ``(N + 1,)`` where the entries of a column begin, of those sorted by column.
        row_of_column: ``(E,)``.
        value_of_column: ``(E,)``.
    """

    row_start: Tensor
    column: Tensor
    value: Tensor
    column_start: Tensor
    row_of_column: Tensor
    value_of_column: Tensor

    @classmethod
    def of(cls, row: Tensor, column: Tensor, value: Tensor, count: int) -> _Codes:
        """Entries in any order; those of one place are added."""
        key, place = (row * count + column).unique(return_inverse=True)
        value = value.new_zeros(len(key)).index_add_(0, place, value)
        row, column = key // count, key % count
        sums = value.new_zeros(count).index_add_(0, row, value)
        value = value / sums[row]
        by_column = column.argsort(stable=True)
        return cls(
            _starts(row, count),
            column,
            value,
            _starts(column, count),
            row[by_column],
            value[by_column],
        )

    @property
    def count(self) -> int:
        return len(self.row_start) - 1

    def overlap(self, rows: slice) -> Tensor:
        """``Σ min / Σ max`` of some rows with all rows, ``(q, N)``.

        As rows add up to one, Σ max is 2 − Σ min.
        """
        shared = self.value.new_zeros(rows.stop - rows.start, self.count)
        for number, row in enumerate(range(rows.start, rows.stop)):
            own = slice(int(self.row_start[row]), int(self.row_start[row + 1]))
            column = self.column[own]
            entry, which = _ranges(self.column_start[column], self.column_start[column + 1])
            smaller = torch.minimum(self.value_of_column[entry], self.value[own][which])
            shared[number].index_add_(0, self.row_of_column[entry], smaller)
        return shared / (2 - shared)

    def averaged(self, near: Tensor) -> _Codes:
        """Every row replaced by the mean of the rows in ``near`` ``(N, k)``."""
        of = near.flatten()
        entry, which = _ranges(self.row_start[of], self.row_start[of + 1])
        row = which // near.shape[1]
        return _Codes.of(row, self.column[entry], self.value[entry], self.count)


def _starts(sorted_or_not: Tensor, count: int) -> Tensor:
    sizes = sorted_or_not.bincount(minlength=count)
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def _ranges(start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """All positions of several ranges, one after the other, and of which range each is."""
    sizes = stop - start
    which = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
    before = sizes.cumsum(0) - sizes
    return torch.arange(len(which), device=sizes.device) - before[which] + start[which], which


def _encoded(units: Tensor, k1: int, k2: int) -> _Codes:
    """The k-reciprocal code of every row; a row is the first of its own neighbours."""
    count = len(units)
    near = torch.arange(count, device=units.device)[:, None]
    if count > 1:
        others = nearest_neighbours(units, min(max(k1, k2 - 1), count - 1))[1]
        near = torch.cat([near, others], dim=1)
    large = _reciprocal(near[:, : k1 + 1])
    small = _reciprocal(near[:, : round(k1 / 2) + 1])
    row, column = _joined(large, small)
    value = (2 * (units[row] * units[column]).sum(dim=1) - 2).exp()
    codes = _Codes.of(row, column, value, count)
    return codes if k2 == 1 else codes.averaged(near[:, :k2])


def _reciprocal(near: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of rows that have each other among their neighbours: sorted rows and columns ``(E,)``."""
    count = len(near)
    row = torch.arange(count, device=near.device).repeat_interleave(near.shape[1])
    column = near.flatten()
    key, mirrored = row * count + column, column * count + row
    kept = torch.isin(key, mirrored)
    key = key[kept].sort().values
    return key // count, key % count


def _joined(large: tuple[Tensor, Tensor], small: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """``R*``: the large sets with every member's small set of which at least two thirds is in them."""
    count = int(large[0].max()) + 1
    small_start = _starts(small[0], count)
    member_row, member = large
    entry, which = _ranges(small_start[member], small_start[member + 1])
    row, column = member_row[which], small[1][entry]
    inside = torch.isin(row * count + column, member_row * count + member)
    shared = torch.zeros_like(member).index_add_(0, which, inside.long())
    size = (small_start[1:] - small_start[:-1])[member]
    added = (3 * shared >= 2 * size)[which]
    key = torch.cat([member_row * count + member, (row * count + column)[added]]).unique()
    return key // count, key % count


def checked_rerankings(methods: Sequence[str]) -> tuple[Reranking, ...]:
    """The re-rankings of these names, each once; an unknown one is an error."""
    for method in methods:
        if method not in get_args(Reranking):
            raise ValueError(f"rerank={method!r} is unknown: choose {', '.join(get_args(Reranking))}")
    return tuple(dict.fromkeys(methods))  # type: ignore[arg-type]


@torch.no_grad()
def reranked_scores(
    method: Reranking,
    embeddings: Tensor,
    labels: Tensor,
    *,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    whitening: Whitening | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    per_query: bool = False,
) -> RetrievalScores:
    """Retrieval scores after re-ranking, to stand beside those of :func:`retrieval_scores`.

    Args:
        method: ``k_reciprocal``, ``query_expansion`` or ``whitening``, with their default values.
        embeddings: ``(N, D)`` queries.
        labels: ``(N,)`` integers.
        gallery: ``(G, D)``; without it the queries search among themselves.
        gallery_labels: ``(G,)``.
        whitening: Fitted on other classes, for ``whitening``.
        recall_at: The values of k.
        per_query: Keep the values of every query.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> reranked_scores("query_expansion", points, torch.tensor([0, 0, 1, 1])).recall_at[1]
    1.0
    """
    checked_rerankings([method])
    if method == "whitening":
        if whitening is None:
            raise ValueError("whitening is fitted on other classes first: give whitening=Whitening.fit(…)")
        return retrieval_scores(
            whitening(embeddings),
            labels,
            gallery=None if gallery is None else whitening(gallery),
            gallery_labels=gallery_labels,
            recall_at=recall_at,
            per_query=per_query,
        )
    embeddings = checked_embeddings(embeddings)
    labels = checked_labels(labels, len(embeddings), embeddings.device)
    own = torch.arange(len(labels), device=labels.device) if gallery is None else None
    found_labels = labels
    if gallery is not None and gallery_labels is not None:
        found_labels = checked_labels(gallery_labels, len(gallery), embeddings.device, "gallery_labels")
    if method == "query_expansion":
        both = sides(
            query_expansion(embeddings, gallery), embeddings if gallery is None else gallery, "cosine"
        )
        ranking = rank_by_rows(Search(both, labels, found_labels, own), only_first=False)
    else:
        parts = [
            rank_similarities(
                rows,
                shares_label(labels[which], found_labels),
                None if own is None else own[which],
                _ROUND_OFF,
            )
            for which, rows in k_reciprocal_rows(embeddings, gallery)
        ]
        ranking = Ranking(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
    return scores_of_ranking(ranking, recall_at, per_query=per_query)
