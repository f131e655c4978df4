"""How far a score may be off: intervals over classes, and tests between two models.

Images of one class succeed and fail together, and a new data set brings new classes, so whole classes are
drawn, never single images: intervals over images would be too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from scipy import stats
from torch import Tensor

from nearkin.evaluation.inputs import checked_labels
from nearkin.evaluation.retrieval import PerQuery, RetrievalScores

# Resamples are drawn this many at a time, so that many classes fit in memory.
_RESAMPLES_AT_ONCE = 256


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval.

    Attributes:
        value: the mean over all queries.
        low: lower end of the interval.
        high: upper end.
        confidence: how often such an interval covers the truth.
        classes: number of classes that were drawn from.
    """

    value: float
    low: float
    high: float
    confidence: float
    classes: int

    def to_dict(self) -> dict[str, float | int]:
        """One flat dictionary, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class PairedDifference:
    """The second model's score minus the first's, on the same queries.

    Attributes:
        difference: mean over all queries.
        low: lower end of its confidence interval.
        high: upper end.
        confidence: how often such an interval covers the truth.
        p_value: chance of a difference at least this large if the two models were alike (two-sided).
        classes: number of classes that were drawn from.
    """

    difference: float
    low: float
    high: float
    confidence: float
    p_value: float
    classes: int

    def to_dict(self) -> dict[str, float | int]:
        """One flat dictionary, ready for JSON."""
        return asdict(self)


def bootstrap_intervals(
    scores: RetrievalScores,
    labels: Tensor,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """A confidence interval over classes for every retrieval score, by the names of ``to_dict``.

    Args:
        scores: made with ``per_query=True``.
        labels: the labels of the embeddings, as given to :func:`nearkin.evaluation.retrieval_scores`.
        confidence: between 0 and 1.
        resamples: how many times the classes are drawn.
        seed: of the draws.

    >>> from nearkin.evaluation import retrieval_scores
    >>> points = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> labels = torch.arange(60) % 12
    >>> scores = retrieval_scores(points, labels, per_query=True)
    >>> interval = bootstrap_intervals(scores, labels)["recall_at_8"]
    >>> interval.low < interval.value < interval.high
    True
    """
    values = _kept(scores, "scores").scores(list(scores.recall_at))
    classes = _classes(scores, labels)
    return mean_intervals(values, classes, confidence=confidence, resamples=resamples, seed=seed)


def paired_differences(
    first: RetrievalScores,
    second: RetrievalScores,
    labels: Tensor,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, PairedDifference]:
    """Is the second model better than the first? For every retrieval score of the two on one data set.

    The interval draws classes; the p-value exchanges the two models in a random half of the classes
    (a permutation test), which is what "no difference" means.

    Args:
        first: scores of one model, made with ``per_query=True``.
        second: scores of the other on the same queries.
        labels: the labels of the embeddings.
        confidence: between 0 and 1.
        resamples: how many draws, and how many exchanges.
        seed: of the draws.
    """
    ours, theirs = _kept(first, "first"), _kept(second, "second")
    if not torch.equal(ours.indices, theirs.indices):
        raise ValueError("the two models were scored on different queries: nothing to pair")
    ks = [k for k in first.recall_at if k in second.recall_at]
    before, after = ours.scores(ks), theirs.scores(ks)
    differences = {name: after[name] - before[name] for name in before}
    classes = _classes(first, labels)
    intervals = mean_intervals(differences, classes, confidence=confidence, resamples=resamples, seed=seed)
    p_values = _exchange_test(differences, classes, resamples, seed)
    return {
        name: PairedDifference(
            interval.value, interval.low, interval.high, confidence, p_values[name], interval.classes
        )
        for name, interval in intervals.items()
    }


def mean_intervals(
    values: Mapping[str, Tensor],
    classes: Tensor,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals for the means of any values per query: the bootstrap behind :func:`bootstrap_intervals`.

    Percentile intervals, widened for few classes as Student's t is against the normal distribution
    (Hesterberg, 2015, The American Statistician, "expanded percentile").

    Args:
        values: ``(Q,)`` each, by name.
        classes: ``(Q,)`` integer class of every query.
        confidence: between 0 and 1.
        resamples: how many times the classes are drawn.
        seed: of the draws.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie between 0 and 1")
    if resamples < 100:
        raise ValueError(f"resamples={resamples} is too few for an interval: at least 100")
    sums, sizes = _class_sums(values, classes)
    count = len(sizes)
    generator = torch.Generator().manual_seed(seed)
    means = []
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        draws = min(_RESAMPLES_AT_ONCE, resamples - start)
        drawn = torch.randint(count, (draws, count), generator=generator)
        times = torch.zeros(draws, count, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones_like(times))
        means.append((times @ sums) / (times @ sizes)[:, None])
    widened = (count / (count - 1)) ** 0.5 * stats.t.ppf((1 - confidence) / 2, count - 1)
    tail = float(stats.norm.cdf(widened))
    low, high = torch.quantile(torch.cat(means), torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)
    value = sums.sum(dim=0) / sizes.sum()
    return {
        name: Interval(float(value[i]), float(low[i]), float(high[i]), confidence, count)
        for i, name in enumerate(values)
    }


def _exchange_test(
    differences: Mapping[str, Tensor], classes: Tensor, exchanges: int, seed: int
) -> dict[str, float]:
    sums, _ = _class_sums(differences, classes)
    observed = sums.sum(dim=0).abs()
    generator = torch.Generator().manual_seed(seed)
    # The models as they are count as one of the exchanges; round-off must not make a tie a win.
    as_large = torch.ones_like(observed)
    for start in range(0, exchanges, _RESAMPLES_AT_ONCE):
        draws = min(_RESAMPLES_AT_ONCE, exchanges - start)
        signs = torch.randint(2, (draws, len(sums)), generator=generator).double() * 2 - 1
        as_large += ((signs @ sums).abs() >= observed - 1e-9).sum(dim=0)
    return dict(zip(differences, (as_large / (exchanges + 1)).tolist(), strict=True))


def _class_sums(values: Mapping[str, Tensor], classes: Tensor) -> tuple[Tensor, Tensor]:
    """``(C, S)`` sums of the values of each class, and ``(C,)`` class sizes."""
    table = torch.stack([column.double() for column in values.values()], dim=1)
    if len(classes) != len(table):
        raise ValueError(f"{len(table)} values but {len(classes)} classes")
    _, index, sizes = classes.unique(dim=0, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise ValueError("an interval over classes needs at least two classes")
    return torch.zeros(len(sizes), table.shape[1], dtype=torch.float64).index_add_(
        0, index, table
    ), sizes.double()


def _kept(scores: RetrievalScores, name: str) -> PerQuery:
    if scores.per_query is None:
        raise ValueError(f"{name} hold no values per query: make them with per_query=True")
    return scores.per_query


def _classes(scores: RetrievalScores, labels: Tensor) -> Tensor:
    rows = _kept(scores, "scores").indices
    labels = checked_labels(labels, len(labels), torch.device("cpu"))
    if int(rows.max()) >= len(labels):
        raise ValueError(f"the scores speak of row {int(rows.max())} but there are {len(labels)} labels")
    return labels[rows]
