"""How far a score may be off: intervals over classes, and tests between two models.

Images of one class succeed and fail together, and a new data set brings new classes, so whole classes are
drawn, never single images: intervals over images would be too narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from nearkin.evaluation.clustering import ClusteringScores, agreement_without_each_class
from nearkin.evaluation.inputs import checked_labels
from nearkin.evaluation.reidentification import ReidentificationScores
from nearkin.evaluation.retrieval import RetrievalScores
from nearkin.evaluation.verification import (
    PerPair,
    VerificationScores,
    area,
    equal_error_rate,
    fold_accuracies,
    rate_name,
    roc,
    true_accept_rate,
)

# Resamples are drawn this many at a time, so that many classes fit in memory.
_RESAMPLES_AT_ONCE = 256
# Multiplicities of pairs held at once, resamples times pairs.
_PAIR_ENTRIES = 2**23


@dataclass(frozen=True)
class Interval:
    """A score and its confidence interval.

    Attributes:
        value: the score, most often a mean over all queries.
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
    scores: RetrievalScores | ReidentificationScores,
    labels: Tensor,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """A confidence interval over classes for every score of a search, by the names of ``to_dict``.

    Args:
        scores: of retrieval or re-identification, made with ``per_query=True``.
        labels: the labels of the embeddings (the queries), as given to the function that made the scores.
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
    kept = scores.per_query
    if kept is None:
        raise _not_kept("scores hold no values per query", "per_query")
    ranks = scores.recall_at if isinstance(scores, RetrievalScores) else scores.cmc
    values, classes = kept.scores(list(ranks)), _classes(kept.indices, labels)
    return mean_intervals(values, classes, confidence=confidence, resamples=resamples, seed=seed)


def clustering_intervals(
    scores: ClusteringScores,
    labels: Tensor,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """A confidence interval over classes for NMI, AMI and F1, the clusters being as they were found.

    A class drawn twice would be a class of twice the size, whose points share clusters with their copies:
    the copies alone would lift AMI and F1 above what new classes give, and too few intervals would cover
    the truth. What is drawn instead is each class's influence on the score, found by taking the class out
    (the jackknife's pseudo-values, Tukey, 1958, centred on the score), which compares the clusters once
    per class. Sums of influences know no bounds, so the upper end is cut at one, the perfect score.

    Args:
        scores: made with ``keep_assignment=True``.
        labels: ``(N,)``, as given to :func:`nearkin.evaluation.clustering_scores`.
        confidence: between 0 and 1.
        resamples: how many times the classes are drawn.
        seed: of the draws.

    >>> from nearkin.evaluation import clustering_scores
    >>> points = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> labels = torch.arange(60) % 12
    >>> scores = clustering_scores(points, labels, keep_assignment=True)
    >>> interval = clustering_intervals(scores, labels)["nmi"]
    >>> interval.low < interval.value < interval.high
    True
    """
    if scores.assignment is None:
        raise _not_kept("scores hold no clusters", "keep_assignment")
    labels = _one_class_each(labels, len(scores.assignment), "labels")
    if len(labels.unique()) < 3:
        raise ValueError("an interval for clusters takes out one class and needs at least two others")
    without = agreement_without_each_class(labels, scores.assignment, scores.average)
    score = torch.tensor([scores.nmi, scores.ami, scores.f1], dtype=torch.float64)
    values = score + (len(without) - 1) * (without.mean(dim=0) - without)
    named = dict(zip(("nmi", "ami", "f1"), values.T, strict=True))
    classes = torch.arange(len(without))
    found = mean_intervals(named, classes, confidence=confidence, resamples=resamples, seed=seed)
    return {name: replace(interval, high=min(interval.high, 1.0)) for name, interval in found.items()}


def verification_intervals(
    scores: VerificationScores,
    first_labels: Tensor,
    second_labels: Tensor,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """A confidence interval over classes for ROC AUC, EER, TAR at each FAR, and accuracy.

    A true pair counts as often as its class was drawn, a false pair the product of how often its two
    classes were. Every pair stays in its fold, so that no copy of it helps to choose its own threshold;
    the threshold is chosen anew. As pairs share classes on two sides, the intervals err on the safe side:
    they cover somewhat more often than stated (Owen, 2007, Annals of Applied Statistics, "The pigeonhole
    bootstrap"). Rates without a score (None) have no interval. Time grows with ``P`` times ``resamples``.

    Args:
        scores: made with ``per_pair=True``.
        first_labels: ``(P,)`` integer class of the first side of every pair.
        second_labels: ``(P,)`` of the second side.
        confidence: between 0 and 1.
        resamples: how many times the classes are drawn.
        seed: of the draws.

    >>> from nearkin.evaluation import verification_scores
    >>> draw = torch.Generator().manual_seed(0)
    >>> first, second = torch.randint(20, (2, 600), generator=draw)
    >>> second[::2] = first[::2]
    >>> points = torch.randn(20, 8, generator=draw)
    >>> sides = [points[side] + torch.randn(600, 8, generator=draw) for side in (first, second)]
    >>> scores = verification_scores(*sides, first == second, per_pair=True)
    >>> interval = verification_intervals(scores, first, second)["roc_auc"]
    >>> interval.low < interval.value < interval.high
    True
    """
    pairs = scores.per_pair
    if pairs is None:
        raise _not_kept("scores hold no pairs", "per_pair")
    first = _one_class_each(first_labels, len(pairs.same), "first_labels")
    second = _one_class_each(second_labels, len(pairs.same), "second_labels")
    wrong = (first == second) != pairs.same
    if wrong.any():
        raise ValueError(f"the labels contradict same in {int(wrong.sum())} of {len(wrong)} pairs")
    check_draws(confidence, resamples)
    rates = {rate: found for rate, found in scores.tar_at_far.items() if found is not None}
    values = {
        "roc_auc": scores.roc_auc,
        "equal_error_rate": scores.equal_error_rate,
        **{rate_name(rate): found for rate, found in rates.items()},
        "accuracy": scores.accuracy,
    }
    classes, numbers = torch.stack([first, second]).unique(return_inverse=True)
    at_once = max(_PAIR_ENTRIES // len(pairs.same), 1)
    found = torch.cat(
        [
            _resampled_verification(pairs, pair_times(times, numbers, pairs.same), list(rates))
            for drawn in drawn_classes(len(classes), resamples, seed)
            for times in drawn.split(at_once)
        ]
    )
    whole = found[found.isfinite().all(dim=1)]
    if len(whole) < 0.9 * resamples:
        raise ValueError(
            f"{len(classes)} classes are too few: {resamples - len(whole)} of {resamples} draws "
            "hold no true or no false pair"
        )
    ends = interval_ends(whole, confidence, len(classes)).tolist()
    return {
        name: Interval(value, low, high, confidence, len(classes))
        for (name, value), low, high in zip(values.items(), *ends, strict=True)
    }


def pair_times(times: Tensor, classes: Tensor, same: Tensor) -> Tensor:
    """``(R, P)``: how often each pair counts when its ``(2, P)`` classes were drawn ``(R, C)`` times."""
    first, second = times[:, classes[0]], times[:, classes[1]]
    return first * second.where(~same, 1)


def _resampled_verification(pairs: PerPair, times: Tensor, rates: list[float]) -> Tensor:
    """``(R, S)`` scores; not finite where no true or no false pair is left."""
    curve = roc(pairs, times)
    columns = [area(curve), equal_error_rate(curve)]
    columns += [true_accept_rate(curve, rate) for rate in rates]
    columns.append(fold_accuracies(pairs, times)[0].nanmean(dim=1))
    return torch.stack(columns, dim=1)


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
    ours, theirs = first.per_query, second.per_query
    if ours is None or theirs is None:
        name = "first" if ours is None else "second"
        raise _not_kept(f"{name} hold no values per query", "per_query")
    if not torch.equal(ours.indices, theirs.indices):
        raise ValueError("the two models were scored on different queries: nothing to pair")
    ks = [k for k in first.recall_at if k in second.recall_at]
    before, after = ours.scores(ks), theirs.scores(ks)
    differences = {name: after[name] - before[name] for name in before}
    classes = _classes(ours.indices, labels)
    intervals = mean_intervals(differences, classes, confidence=confidence, resamples=resamples, seed=seed)
    p_values = exchange_test(differences, classes, exchanges=resamples, seed=seed)
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
    check_draws(confidence, resamples)
    sums, sizes = _class_sums(values, classes)
    count = len(sizes)
    means = [(times @ sums) / (times @ sizes)[:, None] for times in drawn_classes(count, resamples, seed)]
    low, high = interval_ends(torch.cat(means), confidence, count)
    value = sums.sum(dim=0) / sizes.sum()
    return {
        name: Interval(float(value[i]), float(low[i]), float(high[i]), confidence, count)
        for i, name in enumerate(values)
    }


def check_draws(confidence: float, resamples: int) -> None:
    """Refuse what makes no interval."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie between 0 and 1")
    if resamples < 100:
        raise ValueError(f"resamples={resamples} is too few for an interval: at least 100")


def drawn_classes(count: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """How often each class was drawn, ``(R, C)`` for some resamples at a time."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        draws = min(_RESAMPLES_AT_ONCE, resamples - start)
        drawn = torch.randint(count, (draws, count), generator=generator)
        times = torch.zeros(draws, count, dtype=torch.float64)
        yield times.scatter_add_(1, drawn, torch.ones_like(times))


def interval_ends(resampled: Tensor, confidence: float, count: int) -> Tensor:
    """``(2, S)`` ends of the expanded percentile intervals of ``(R, S)`` scores over ``count`` classes."""
    from scipy import stats  # noqa: PLC0415 - scores alone need torch only

    widened = (count / (count - 1)) ** 0.5 * stats.t.ppf((1 - confidence) / 2, count - 1)
    tail = float(stats.norm.cdf(widened))
    return torch.quantile(resampled, torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)


def exchange_test(
    differences: Mapping[str, Tensor], classes: Tensor, *, exchanges: int = 2000, seed: int = 0
) -> dict[str, float]:
    """The permutation test behind :func:`paired_differences`, for any paired values per query.

    Two models that are alike may be exchanged in any class: the p-value is the share of random exchanges
    whose mean difference is at least as far from 0 as the one that was seen (two-sided), which counts too.

    Args:
        differences: ``(Q,)`` each, one model's value minus another's, by name.
        classes: ``(Q,)`` integer class of every query.
        exchanges: how many are drawn.
        seed: of the draws.
    """
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


def _not_kept(problem: str, keyword: str) -> ValueError:
    return ValueError(f"{problem}: make them with {keyword}=True")


def _classes(rows: Tensor, labels: Tensor) -> Tensor:
    labels = checked_labels(labels, len(labels), torch.device("cpu"))
    if int(rows.max()) >= len(labels):
        raise ValueError(f"the scores speak of row {int(rows.max())} but there are {len(labels)} labels")
    return labels[rows]


def _one_class_each(labels: Tensor, rows: int, name: str) -> Tensor:
    labels = checked_labels(labels, rows, torch.device("cpu"), name)
    if labels.ndim != 1:
        raise ValueError(f"{name} must be one integer each, not of shape {tuple(labels.shape)}")
    return labels
