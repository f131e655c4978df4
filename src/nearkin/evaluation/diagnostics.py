"""What the scores do not say: which classes fail, what they are taken for, and how the space looks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric, checked_embeddings, checked_labels, checked_metric, unit_rows
from nearkin.evaluation.neighbours import nearest_neighbours
from nearkin.evaluation.retrieval import PerQuery, RetrievalScores, retrieval_scores
from nearkin.evaluation.similarity import row_chunks


@dataclass(frozen=True)
class ClassScores:
    """One class: its label, number of images, Recall@1 and MAP@R."""

    label: int
    images: int
    recall_at_1: float
    map_at_r: float


@dataclass(frozen=True)
class Confusion:
    """Images of class ``label`` whose nearest neighbour is of class ``taken_for``, and their share."""

    label: int
    taken_for: int
    images: int
    share: float


@dataclass(frozen=True)
class LabelDoubt:
    """An image none of whose neighbours has its label.

    Attributes:
        index: row of the embeddings.
        label: its label.
        suggested: the most frequent label among its neighbours.
        agreement: share of the neighbours that have the suggested label; near one, the label is doubtful.
    """

    index: int
    label: int
    suggested: int
    agreement: float


@dataclass(frozen=True)
class Hubness:
    """Whether a few images are everybody's neighbours (Radovanović et al., 2010, JMLR).

    Attributes:
        neighbours: k of the neighbour lists that were counted.
        skewness: of the number of lists an image is in; zero is even, above about two is much.
        never_found: share of images that are in no list.
        largest: the most lists that one image is in.
        hubs: rows of the images in the most lists, the largest first.
    """

    neighbours: int
    skewness: float
    never_found: float
    largest: int
    hubs: list[int]


@dataclass(frozen=True)
class Space:
    """The geometry of the embedding, in Euclidean distances (of unit rows where the metric is the cosine).

    Attributes:
        intra_class_distance: mean over all pairs within a class.
        inter_class_distance: mean over all pairs of class means.
        density: the first over the second (Roth et al., 2020, ICML, arXiv:2002.08473), lower is tighter;
            None where all class means coincide.
        effective_dimension: ``(Σλ)² / Σλ²`` over the variances along the principal axes: D where all
            directions are used alike, one where all points lie on a line, zero where they coincide.
    """

    intra_class_distance: float
    inter_class_distance: float
    density: float | None
    effective_dimension: float


@dataclass(frozen=True)
class Diagnostics:
    """Everything :func:`diagnostics` finds.

    Attributes:
        retrieval: the retrieval scores, with their values per query.
        space: distances, density and dimension.
        hubness: how evenly images are found.
        classes: every class with a positive, the worst Recall@1 first.
        confusions: the most frequent confusions, the largest share first.
        label_doubts: images whose neighbours all disagree, the most doubtful first.
        label_doubts_found: how many there are in all.
    """

    retrieval: RetrievalScores
    space: Space
    hubness: Hubness
    classes: list[ClassScores] = field(repr=False)
    confusions: list[Confusion] = field(repr=False)
    label_doubts: list[LabelDoubt] = field(repr=False)
    label_doubts_found: int

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries and lists, ready for JSON."""
        return {
            "retrieval": self.retrieval.to_dict(),
            "space": asdict(self.space),
            "hubness": asdict(self.hubness),
            "classes": [asdict(one) for one in self.classes],
            "confusions": [asdict(one) for one in self.confusions],
            "label_doubts": [asdict(one) for one in self.label_doubts],
            "label_doubts_found": self.label_doubts_found,
        }


@torch.no_grad()
def diagnostics(
    embeddings: Tensor,
    labels: Tensor,
    *,
    recall_at: tuple[int, ...] = (1, 2, 4, 8),
    neighbours: int = 10,
    most: int = 20,
    metric: Metric = "cosine",
) -> Diagnostics:
    """Look behind the scores of one labelled set.

    Args:
        embeddings: ``(N, D)`` of any float dtype, at least three rows.
        labels: ``(N,)`` integers.
        recall_at: the values of k for the retrieval scores.
        neighbours: length of the neighbour lists for hubness and doubtful labels; all other images where
            there are fewer.
        most: how many confusions, hubs and doubtful labels to list.
        metric: ``"cosine"`` or ``"euclidean"``.

    >>> points = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> found = diagnostics(points, torch.arange(40) % 4)
    >>> found.space.effective_dimension < 8
    True
    """
    metric = checked_metric(metric)
    embeddings = checked_embeddings(embeddings)
    labels = checked_labels(labels, len(embeddings), embeddings.device)
    if labels.ndim != 1:
        raise ValueError("diagnostics speak of classes: labels must be (N,), not multi-hot")
    if neighbours < 1 or most < 1:
        raise ValueError(f"neighbours={neighbours} and most={most} must be at least one")
    retrieval = retrieval_scores(embeddings, labels, recall_at=recall_at, metric=metric, per_query=True)
    _, found = nearest_neighbours(embeddings, min(neighbours, len(embeddings) - 1), metric=metric)
    found, numbers = found.cpu(), labels.cpu()
    assert retrieval.per_query is not None
    doubts = label_doubts(found, numbers)
    return Diagnostics(
        retrieval=retrieval,
        space=_space(unit_rows(embeddings) if metric == "cosine" else embeddings, labels),
        hubness=_hubness(found, most),
        classes=_class_scores(retrieval.per_query, numbers),
        confusions=_confusions(found[:, 0], numbers, most),
        label_doubts=doubts[:most],
        label_doubts_found=len(doubts),
    )


def _class_scores(values: PerQuery, labels: Tensor) -> list[ClassScores]:
    classes, index, images = labels[values.indices].unique(return_inverse=True, return_counts=True)
    columns = torch.stack([(values.first_rank == 1).double(), values.average_precision_at_r], dim=1)
    means = torch.zeros(len(classes), 2, dtype=torch.float64).index_add_(0, index, columns) / images[:, None]
    rows = zip(classes.tolist(), images.tolist(), *means.T.tolist(), strict=True)
    return sorted((ClassScores(*row) for row in rows), key=lambda one: (one.recall_at_1, one.map_at_r))


def _confusions(nearest: Tensor, labels: Tensor, most: int) -> list[Confusion]:
    classes, number, images = labels.unique(return_inverse=True, return_counts=True)
    wrong = number != number[nearest]
    pairs, times = (number[wrong] * len(classes) + number[nearest][wrong]).unique(return_counts=True)
    ours, theirs = pairs // len(classes), pairs % len(classes)
    found = [
        Confusion(int(classes[a]), int(classes[b]), int(n), int(n) / int(images[a]))
        for a, b, n in zip(ours, theirs, times, strict=True)
    ]
    return sorted(found, key=lambda one: (-one.share, -one.images, one.label, one.taken_for))[:most]


def _hubness(found: Tensor, most: int) -> Hubness:
    lists = torch.bincount(found.flatten(), minlength=len(found))
    centred = lists.double() - lists.double().mean()
    deviation = centred.square().mean().sqrt()
    skewness = centred.pow(3).mean() / deviation.pow(3) if deviation > 0 else 0.0
    return Hubness(
        neighbours=found.shape[1],
        skewness=float(skewness),
        never_found=float((lists == 0).double().mean()),
        largest=int(lists.max()),
        hubs=lists.argsort(descending=True, stable=True)[:most].tolist(),
    )


def label_doubts(found: Tensor, labels: Tensor) -> list[LabelDoubt]:
    """Images with no neighbour of their label, those whose neighbours agree most first.

    Args:
        found: ``(N, k)`` rows of the neighbours.
        labels: ``(N,)`` integers.
    """
    around = labels[found]
    _, number, images = labels.unique(return_inverse=True, return_counts=True)
    # The only image of its class cannot have a neighbour of its label.
    alone = ((around != labels[:, None]).all(dim=1) & (images[number] > 1)).nonzero().squeeze(1)
    suggested = around[alone].mode(dim=1).values
    agreement = (around[alone] == suggested[:, None]).double().mean(dim=1)
    order = agreement.argsort(descending=True, stable=True)
    columns = (alone, labels[alone], suggested, agreement)
    return [LabelDoubt(*row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]


def _space(points: Tensor, labels: Tensor) -> Space:
    with torch.autocast(points.device.type, enabled=False):
        intra, inter = _intra_class_distance(points, labels), _inter_class_distance(points, labels)
        return Space(intra, inter, intra / inter if inter > 0 else None, _effective_dimension(points))


def _intra_class_distance(points: Tensor, labels: Tensor) -> float:
    """Mean over all pairs of one class; classes of one size are computed together."""
    _, number, images = labels.unique(return_inverse=True, return_counts=True)
    by_class = number.argsort(stable=True)
    begin = images.cumsum(0) - images
    total, pairs = 0.0, 0
    for size in images[images > 1].unique().tolist():
        begins = begin[images == size]
        for chunk in row_chunks(len(begins), size * max(size, points.shape[1])):
            rows = begins[chunk, None] + torch.arange(size, device=points.device)
            members = points[by_class[rows]]
            total += _sum_of_distances(members)
            pairs += len(members) * size * (size - 1)
    return total / pairs


def _inter_class_distance(points: Tensor, labels: Tensor) -> float:
    _, number, images = labels.unique(return_inverse=True, return_counts=True)
    means = points.new_zeros(len(images), points.shape[1]).index_add_(0, number, points) / images[:, None]
    return _sum_of_distances(means[None]) / (len(means) * (len(means) - 1))


def _sum_of_distances(groups: Tensor) -> float:
    """Over all ordered pairs within each group of ``(G, S, D)``."""
    count, size, _ = groups.shape
    parts = (torch.cdist(groups[:, rows], groups) for rows in row_chunks(size, count * size))
    return sum(float(part.sum(dim=(1, 2)).double().sum()) for part in parts)


def _effective_dimension(points: Tensor) -> float:
    centred = points - points.mean(dim=0)
    # Σλ and Σλ² are the trace and the squared norm of the covariance: no eigenvalues needed.
    covariance = centred.T @ centred
    squared_norm = float(covariance.square().sum())
    return float(covariance.trace()) ** 2 / squared_norm if squared_norm > 0 else 0.0
