"""NMI, AMI and pairwise F1: whether clusters found without labels are the classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric, checked_embeddings, checked_labels, checked_metric, unit_rows
from nearkin.evaluation.kmeans import kmeans

Average = Literal["arithmetic", "geometric"]


@dataclass(frozen=True)
class ClusteringScores:
    """How well clusters agree with classes; one is perfect.

    Attributes:
        nmi: normalised mutual information, in [0, 1]; rises with the number of clusters even by chance.
        ami: the same adjusted for chance: zero for a random assignment, below zero for a worse one.
        f1: harmonic mean of precision and recall over pairs of points, in [0, 1].
        clusters: number of clusters asked of k-means.
        average: which mean of the two entropies normalises NMI and AMI.
        assignment: ``(N,)`` cluster of every point, on the CPU, where asked for.
    """

    nmi: float
    ami: float
    f1: float
    clusters: int
    average: Average
    assignment: Tensor | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, float | int | str]:
        """One flat dictionary, ready for JSON."""
        return {
            "nmi": self.nmi,
            "ami": self.ami,
            "f1": self.f1,
            "clusters": self.clusters,
            "average": self.average,
        }


@torch.no_grad()
def clustering_scores(
    embeddings: Tensor,
    labels: Tensor,
    *,
    clusters: int | None = None,
    average: Average = "arithmetic",
    metric: Metric = "cosine",
    seed: int = 0,
    restarts: int = 3,
    keep_assignment: bool = False,
) -> ClusteringScores:
    """Cluster the embeddings with k-means and compare the clusters with the classes.

    The protocol of Song et al. (2016, CVPR, arXiv:1511.06452): as many clusters as classes, then NMI and
    the F1 of pairs. Papers differ in the mean that normalises the mutual information:
    ``"arithmetic"`` is scikit-learn's default since 0.22, ``"geometric"`` is ``I / √(H·H')``, the older one.

    Args:
        embeddings: ``(N, D)`` of any float dtype.
        labels: ``(N,)`` integers.
        clusters: number of clusters; the number of classes by default.
        average: ``"arithmetic"`` or ``"geometric"``.
        metric: ``"cosine"`` clusters the unit rows, ``"euclidean"`` the rows as they are.
        seed: of k-means.
        restarts: runs of k-means, of which the tightest counts.
        keep_assignment: keep the clusters, as :func:`nearkin.evaluation.clustering_intervals` needs them.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> clustering_scores(points, torch.tensor([0, 0, 1, 1])).nmi
    1.0
    """
    metric = checked_metric(metric)
    embeddings = checked_embeddings(embeddings)
    labels = checked_labels(labels, len(embeddings), embeddings.device)
    if labels.ndim != 1:
        raise ValueError("clustering compares clusters with classes: labels must be (N,), not multi-hot")
    classes = len(labels.unique())
    if classes == 1:
        raise ValueError("all labels are of one class: there is nothing to tell apart")
    points = unit_rows(embeddings) if metric == "cosine" else embeddings
    clusters = classes if clusters is None else clusters
    found = kmeans(points, clusters, seed=seed, restarts=restarts)
    assignment = found.assignment.cpu()
    nmi, ami, f1 = agreement(labels.cpu(), assignment, average=average)
    return ClusteringScores(nmi, ami, f1, clusters, average, assignment if keep_assignment else None)


def agreement(
    labels: Tensor, assignment: Tensor, *, average: Average = "arithmetic"
) -> tuple[float, float, float]:
    """NMI, AMI and pairwise F1 of two ways ``(N,)`` to divide the same points."""
    if average not in _MEANS:
        raise ValueError(f"average={average!r} is unknown: choose {' or '.join(_MEANS)}")
    return _table_agreement(*_contingency(labels.cpu(), assignment.cpu()), average)


def agreement_without_each_class(labels: Tensor, assignment: Tensor, average: Average) -> Tensor:
    """``(C, 3)``: NMI, AMI and F1 of the points that are left when one class is taken out, for every class.

    From the table of classes and clusters: the points are counted once.
    """
    (label, group, size), classes, groups = _contingency(labels, assignment)
    scores = []
    for removed in range(len(classes)):
        gone, left = label == removed, label != removed
        remaining = groups.index_add(0, group[gone], -size[gone])
        number = (remaining > 0).cumsum(0) - 1
        shared = (label[left] - (label[left] > removed).long(), number[group[left]], size[left])
        others = torch.cat([classes[:removed], classes[removed + 1 :]])
        scores.append(_table_agreement(shared, others, remaining[remaining > 0], average))
    return torch.tensor(scores, dtype=torch.float64)


def _table_agreement(
    shared: tuple[Tensor, Tensor, Tensor], classes: Tensor, groups: Tensor, average: Average
) -> tuple[float, float, float]:
    if len(classes) == len(groups) == 1:
        return 1.0, 1.0, 1.0
    total = classes.sum()
    information = _information(shared, total, classes, groups)
    mean_entropy = _MEANS[average](_entropy(classes), _entropy(groups))
    expected = _expected_information(classes, groups)
    nmi = float(information / mean_entropy) if mean_entropy > 0 else 0.0
    # Equal divisions are perfect even where chance could not do worse.
    margin = mean_entropy - expected
    ami = float((information - expected) / margin) if abs(margin) > 1e-12 else float(nmi > 1 - 1e-12)
    return min(max(nmi, 0.0), 1.0), ami, _pair_f1(shared[2], classes, groups)


_MEANS: dict[Average, Callable[[Tensor, Tensor], Tensor]] = {
    "arithmetic": lambda first, second: (first + second) / 2,
    "geometric": lambda first, second: (first * second).sqrt(),
}


def _contingency(labels: Tensor, assignment: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    """Classes, clusters and points of every class-cluster pair that occurs; sizes of both."""
    _, label, classes = labels.unique(return_inverse=True, return_counts=True)
    _, group, groups = assignment.unique(return_inverse=True, return_counts=True)
    pair, size = (label * len(groups) + group).unique(return_counts=True)
    return (pair // len(groups), pair % len(groups), size.double()), classes.double(), groups.double()


def _entropy(sizes: Tensor) -> Tensor:
    share = sizes / sizes.sum()
    return -(share * share.log()).sum()


def _information(
    shared: tuple[Tensor, Tensor, Tensor], total: Tensor, classes: Tensor, groups: Tensor
) -> Tensor:
    label, group, size = shared
    return (size / total * (size * total / (classes[label] * groups[group])).log()).sum().clamp(min=0)


def _expected_information(classes: Tensor, groups: Tensor) -> Tensor:
    """Mutual information expected of divisions with these sizes (Vinh, Epps and Bailey, 2010, JMLR).

    The sum over pairs of sizes needs each pair of *different* sizes once, weighted by how often it occurs.
    """
    total = classes.sum()
    expected = total.new_zeros(())
    sizes, times = groups.unique(return_counts=True)
    b = sizes[:, None]
    for a, times_a in zip(*classes.unique(return_counts=True), strict=True):
        overlap = torch.arange(1, int(torch.minimum(a, sizes.max())) + 1, dtype=torch.float64)
        possible = (overlap <= b) & (overlap >= a + b - total)
        log_probability = (
            _log_choose(a, overlap) + _log_choose(total - a, b - overlap) - _log_choose(total, b)
        ).where(possible, -torch.inf)
        gain = overlap / total * (overlap * total / (a * b)).log()
        expected += times_a * (times[:, None] * gain * log_probability.exp()).sum()
    return expected


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).lgamma()


def _pair_f1(together: Tensor, classes: Tensor, groups: Tensor) -> float:
    """F1 over pairs of points: predicted by a shared cluster, true by a shared class."""

    def pairs(sizes: Tensor) -> Tensor:
        return (sizes * (sizes - 1) / 2).sum()

    predicted_and_true = pairs(classes) + pairs(groups)
    return float(2 * pairs(together) / predicted_and_true) if predicted_and_true > 0 else 1.0
