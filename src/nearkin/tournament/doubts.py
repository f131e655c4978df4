"""How sure a ranking is: where its doubt comes from, intervals of ranks, and what it takes to be surer.

Three things move a score: the seed, the classes that it is tested on, and, where settings were searched, the
trials that happened to be drawn. Each is measured by itself: seeds by the spread over seeds on the same
classes, classes by drawing test classes with replacement, tuning by drawing trials with replacement (on
validation classes: no trial is ever tested).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from nearkin.tournament.comparisons import hits_of
from nearkin.tournament.outcomes import Outcome
from nearkin.tournament.standings import Leaderboard
from nearkin.tournament.statistics import holm

Array = NDArray[np.float64]

_RESAMPLES = 2000
_SPLITS = 200
_POWER = 0.8
_FEWEST_CLASSES = 4


@dataclass(frozen=True)
class ClassSums:
    """A contender's hits in one experiment, by seed and test class.

    Attributes:
        seeds: The seeds, in order.
        sums: ``(S, K)``, the sum of its queries' scores, by seed and class.
        counts: ``(K,)`` queries of each class.
    """

    seeds: tuple[int | None, ...]
    sums: Array
    counts: Array

    @property
    def scores(self) -> Array:
        """``(S,)``, by seed."""
        return np.asarray(self.sums.sum(axis=1) / self.counts.sum())

    def drawn(self, classes: Array, seeds: Array) -> Array:
        """``(B,)`` scores of draws: ``(B, K)`` how often each class and ``(B, S)`` each seed is drawn."""
        by_seed = classes @ self.sums.T / (classes @ self.counts)[:, None]
        return np.asarray((seeds * by_seed).sum(axis=1) / seeds.sum(axis=1))


def class_sums(outcomes: Sequence[Outcome], metric: str) -> ClassSums | None:
    """The hits of a contender's runs; ``None`` where one kept no queries, or other ones."""
    found = [hits_of([one], metric) for one in outcomes]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or not all(known[0].same_queries(one) for one in known):
        return None
    _, classes = torch.unique(known[0].classes, return_inverse=True)
    places = classes.numpy()
    sums = np.array([np.bincount(places, weights=one.values.double().numpy()) for one in known])
    counts = np.bincount(places).astype(np.float64)
    return ClassSums(tuple(one.seed for one in outcomes), sums, counts)


@dataclass(frozen=True)
class Spread:
    """How far a contender's score moves with what it depends on: standard deviations, in [0, 1].

    Attributes:
        seeds: Over seeds, of one run's score; ``None`` with one seed.
        classes: Over draws of test classes, of the mean over seeds.
        tuning: Over draws of trials, of the best score on validation classes; ``None`` if not tuned.
    """

    seeds: float | None
    classes: float
    tuning: float | None


@dataclass(frozen=True)
class PairDoubt:
    """Two contenders of an experiment, and what it would take to tell them apart.

    Attributes:
        first: The better one.
        second: The other.
        difference: Of their scores.
        error: Its standard error over seeds and classes.
        p_holm: Two-sided, after Holm's correction for all pairs.
        seeds: Seeds needed with these classes, at 80 % power for this pair alone; ``None`` if no number of
            them is enough, or if one seed does not say how far they spread.
        classes: Test classes needed with these seeds; ``None`` if no number of them is enough.
    """

    first: str
    second: str
    difference: float
    error: float
    p_holm: float
    seeds: int | None
    classes: int | None


@dataclass(frozen=True)
class BoardDoubts:
    """The doubts about one experiment.

    Attributes:
        spreads: By contender, best first.
        pairs: Every pair, the better one first.
        groups: Contenders in a row, two or more, of which none can be told from another.
        classes: Test classes.
        seeds: Seeds of each contender, the fewest.
        stability: Kendall's τ of the orders by two halves of the seeds and classes, mean over random halves;
            ``None`` with too few contenders or classes.
    """

    spreads: dict[str, Spread]
    pairs: list[PairDoubt]
    groups: list[list[str]]
    classes: int
    seeds: int
    stability: float | None

    def pair(self, first: str, second: str) -> PairDoubt | None:
        """The doubt about two contenders, whichever is better."""
        return next((one for one in self.pairs if {one.first, one.second} == {first, second}), None)


@dataclass(frozen=True)
class RankInterval:
    """Where a contender's average rank may lie.

    Attributes:
        rank: The average rank among those that are compared.
        low: Lower end of the interval.
        high: Upper end.
        first: How often it is first.
    """

    rank: float
    low: float
    high: float
    first: float


@dataclass(frozen=True)
class Doubts:
    """How sure standings are.

    Attributes:
        boards: By leaderboard, in the order of the standings; ``None`` where queries were not kept.
        ranks: By contender, best first: bootstrap over experiments, test classes and seeds.
        alpha: Level; intervals have confidence 1 − alpha.
    """

    boards: list[BoardDoubts | None]
    ranks: dict[str, RankInterval]
    alpha: float


def doubts_about(boards: Sequence[Leaderboard], metric: str, alpha: float) -> Doubts:
    """Measure the doubts about some leaderboards; baselines take no part."""
    known = [sums_of(board, metric) for board in boards]
    found = [
        _board_doubts(board, sums, alpha) if len(sums) > 1 else None
        for board, sums in zip(boards, known, strict=True)
    ]
    return Doubts(found, rank_intervals([sums for sums in known if len(sums) > 1], alpha=alpha), alpha)


def sums_of(board: Leaderboard, metric: str) -> dict[str, ClassSums]:
    """The ranked contenders that answered the same queries as the first of them."""
    found: dict[str, ClassSums] = {}
    for place in board.places:
        if place.kind == "run" and (sums := class_sums(place.outcomes, metric)) is not None:
            first = next(iter(found.values()), sums)
            if np.array_equal(first.counts, sums.counts):
                found[place.contender] = sums
    return found


def rank_intervals(
    experiments: Sequence[Mapping[str, ClassSums]], *, alpha: float = 0.05, seed: int = 0
) -> dict[str, RankInterval]:
    """Intervals of average ranks, by drawing experiments, their test classes and seeds with replacement.

    Contenders with the same seeds draw the same ones. One experiment or one seed is not drawn: how far
    others would move a rank is then not in the interval.

    Args:
        experiments: The hits by contender; those count that are in all of them.
        alpha: The intervals have confidence 1 − alpha.
        seed: Of the draws.
    """
    names = [name for name in (experiments[0] if experiments else ()) if all(name in e for e in experiments)]
    if len(names) < 2:
        return {}
    random = np.random.default_rng(seed)
    drawn = np.array([_drawn_ranks([one[name] for name in names], random) for one in experiments])
    plain = np.array([_ranks(np.array([one[name].scores.mean() for name in names])) for one in experiments])
    weights = random.multinomial(len(drawn), np.full(len(drawn), 1 / len(drawn)), size=_RESAMPLES)
    averages = np.einsum("be,ebc->bc", weights, drawn) / len(drawn)
    first = averages <= averages.min(axis=1, keepdims=True) + 1e-9
    chances = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
    low, high = np.quantile(averages, [alpha / 2, 1 - alpha / 2], axis=0)
    found = {
        name: RankInterval(float(plain[:, i].mean()), float(low[i]), float(high[i]), float(chances[i]))
        for i, name in enumerate(names)
    }
    return dict(sorted(found.items(), key=lambda one: (one[1].rank, one[0])))


def _drawn_ranks(contenders: Sequence[ClassSums], random: np.random.Generator) -> Array:
    """``(B, C)`` ranks of draws of classes, the same for all, and of seeds, the same for those who share."""
    classes = len(contenders[0].counts)
    class_draws = random.multinomial(classes, np.full(classes, 1 / classes), size=_RESAMPLES).astype(float)
    seed_draws: dict[tuple[int | None, ...], Array] = {}
    scores = []
    for one in contenders:
        if one.seeds not in seed_draws:
            count = len(one.seeds)
            draws = random.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
            seed_draws[one.seeds] = draws.astype(float)
        scores.append(one.drawn(class_draws, seed_draws[one.seeds]))
    return _ranks(np.stack(scores, axis=1))


def _ranks(scores: Array) -> Array:
    return np.asarray(stats.rankdata(-np.round(scores, 12), axis=-1))


def _board_doubts(board: Leaderboard, sums: Mapping[str, ClassSums], alpha: float) -> BoardDoubts:
    names = list(sums)
    any_one = next(iter(sums.values()))
    random = np.random.default_rng(0)
    classes = len(any_one.counts)
    draws = random.multinomial(classes, np.full(classes, 1 / classes), size=_RESAMPLES).astype(float)
    means = {name: one.drawn(draws, np.ones((1, len(one.seeds)))) for name, one in sums.items()}
    outcomes = {place.contender: place.outcomes for place in board.places}
    spreads = {
        name: Spread(
            float(one.scores.std(ddof=1)) if len(one.seeds) > 1 else None,
            float(means[name].std(ddof=1)),
            _tuning_spread(outcomes[name]),
        )
        for name, one in sums.items()
    }
    pairs = _pairs(sums, means, alpha)
    return BoardDoubts(
        spreads=spreads,
        pairs=pairs,
        groups=_groups(names, pairs, alpha),
        classes=classes,
        seeds=min(len(one.seeds) for one in sums.values()),
        stability=half_stability(list(sums.values())),
    )


def _tuning_spread(outcomes: Sequence[Outcome]) -> float | None:
    tuned = [one.found for one in outcomes if one.variant == "tuned" and one.found is not None]
    return tuned[0].spread() if tuned else None


def _pairs(sums: Mapping[str, ClassSums], means: Mapping[str, Array], alpha: float) -> list[PairDoubt]:
    found = []
    for first, second in combinations(sums, 2):
        a, b = sums[first], sums[second]
        difference = float(a.scores.mean() - b.scores.mean())
        by_classes = float((means[first] - means[second]).var(ddof=1))
        by_seeds = _seed_variance(a, b)
        seeds = min(len(a.seeds), len(b.seeds))
        error = math.sqrt(by_classes + (by_seeds or 0.0) / seeds)
        needed = _needed(
            abs(difference),
            by_classes=by_classes,
            by_seeds=by_seeds,
            classes=len(a.counts),
            seeds=seeds,
            alpha=alpha,
        )
        found.append((first, second, difference, error, *needed))
    p_values = [2 * float(stats.norm.sf(abs(one[2]) / one[3])) if one[3] else 1.0 for one in found]
    return [
        PairDoubt(first, second, difference, error, p, seeds, classes)
        for (first, second, difference, error, seeds, classes), p in zip(found, holm(p_values), strict=True)
    ]


def _seed_variance(a: ClassSums, b: ClassSums) -> float | None:
    """The variance over seeds of the difference of two runs; of pairs of runs, where seeds are the same."""
    if min(len(a.seeds), len(b.seeds)) < 2:
        return None
    if a.seeds == b.seeds:
        return float((a.scores - b.scores).var(ddof=1))
    return float(a.scores.var(ddof=1) + b.scores.var(ddof=1))


def _needed(
    difference: float, *, by_classes: float, by_seeds: float | None, classes: int, seeds: int, alpha: float
) -> tuple[int | None, int | None]:
    """Seeds with these classes, and classes with these seeds, that would show a difference of this size."""
    z = float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(_POWER))
    allowed = (difference / z) ** 2
    with_seeds = with_classes = None
    if by_seeds is not None and allowed > by_classes:
        with_seeds = max(2, math.ceil(by_seeds / (allowed - by_classes) - 1e-9))
    rest = allowed - (by_seeds or 0.0) / seeds
    if rest > 0:
        with_classes = max(_FEWEST_CLASSES, math.ceil(classes * by_classes / rest - 1e-9))
    return with_seeds, with_classes


def _groups(names: Sequence[str], pairs: Sequence[PairDoubt], alpha: float) -> list[list[str]]:
    """Rows of contenders, in order, of which no two are told apart; none inside another."""
    apart = {frozenset((one.first, one.second)) for one in pairs if one.p_holm < alpha}
    found: list[list[str]] = []
    for start in range(len(names)):
        end = start + 1
        while end < len(names) and not any(
            frozenset((names[end], other)) in apart for other in names[start:end]
        ):
            end += 1
        if end - start > 1 and not (found and names[end - 1] in found[-1]):
            found.append(list(names[start:end]))
    return found


def half_stability(contenders: Sequence[ClassSums], *, seed: int = 0) -> float | None:
    """Kendall's τ between the orders that two disjoint halves of the classes, and of the seeds, give.

    The mean over random halves. With one seed only the classes are halved.
    """
    classes = len(contenders[0].counts)
    if len(contenders) < 3 or classes < 2 * _FEWEST_CLASSES:
        return None
    random = np.random.default_rng(seed)
    shared = len({one.seeds for one in contenders}) == 1
    found = []
    for _ in range(_SPLITS):
        half = random.permutation(classes) < classes // 2
        order = random.permutation(len(contenders[0].seeds)) if shared else None
        orders = []
        for side, part in enumerate((half, ~half)):
            orders.append([_half_score(one, part, side, order) for one in contenders])
        found.append(float(stats.kendalltau(*orders).statistic))
    known = [one for one in found if not math.isnan(one)]
    return float(np.mean(known)) if known else None


def _half_score(
    one: ClassSums, classes: NDArray[np.bool_], side: int, order: NDArray[np.int64] | None
) -> float:
    """The score on some classes with every second seed of an order, or with all where there is one."""
    rows = np.arange(len(one.seeds)) if order is None or len(order) < 2 else order[side::2]
    return float(one.sums[rows][:, classes].sum() / len(rows) / one.counts[classes].sum())
