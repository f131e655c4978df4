"""Tests over experiments: do the contenders differ, and which ones?

The tests of Demšar (2006, JMLR, "Statistical comparisons of classifiers over multiple data sets"). They take
experiments for independent draws; where several share a data set, their p-values speak of that data set only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from nearkin.tournament.standings import FriedmanTest, NemenyiTest, PairTest

Matrix = NDArray[np.float64]

# Differences of scores below this are round-off: 61.6 − 60.3 and 57.3 − 56.0 are the same step.
_SAME = 9

# Up to so many experiments or contenders the distributions of χ² and F are too rough (Demšar 2006, 3.2.2).
_FEW_EXPERIMENTS = 10
_FEW = 5
_PERMUTATIONS = 9999


def ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """Ranks of contenders by their scores: 1 is the highest, equal scores share their mean rank.

    >>> ranks({"a": 0.5, "b": 0.7, "c": 0.5})
    {'a': 2.5, 'b': 1.0, 'c': 2.5}
    """
    found = stats.rankdata([-score for score in scores.values()])
    return dict(zip(scores, found.tolist(), strict=True))


def friedman(rank_matrix: Matrix) -> FriedmanTest:
    """Friedman's test (1937) with the correction of Iman and Davenport (1980), and for ties.

    χ² = 12 N / (k (k + 1)) · (Σ R_j² − k (k + 1)² / 4), F = (N − 1) χ² / (N (k − 1) − χ²)

    With few experiments or contenders there is a p-value by random permutation as well.

    Args:
        rank_matrix: ``(N, k)`` ranks of k contenders in N experiments, two of each at least.

    >>> orders = np.array([[1, 2, 3], [1, 2, 3], [1, 3, 2], [2, 1, 3]], dtype=float)
    >>> test = friedman(orders)
    >>> round(test.statistic, 3), round(test.p_value, 3), round(test.f_p_value, 3)
    (4.5, 0.105, 0.084)
    >>> 0.11 < test.permutation_p_value < 0.14  # of all orders, one in eight
    True
    """
    N, k = rank_matrix.shape
    if N < 2 or k < 2:
        raise ValueError(f"Friedman's test needs 2 experiments and 2 contenders at least, not {N} and {k}")
    ties = sum(float((count**3 - count).sum()) for count in map(_tie_sizes, rank_matrix))
    untied = 1 - ties / (N * k * (k * k - 1))
    if untied == 0:  # everybody is equal in every experiment
        return FriedmanTest(0.0, 1.0, 0.0, 1.0, k, N)
    chi2 = float(_chi2(rank_matrix)) / untied
    rest = N * (k - 1) - chi2
    # With all experiments agreeing F is infinite; the chance of it is exact: one order of k! each time.
    f = math.inf if rest < 1e-9 else (N - 1) * chi2 / rest
    f_p_value = stats.f.sf(f, k - 1, (k - 1) * (N - 1)) if f < math.inf else math.factorial(k) ** (1.0 - N)
    return FriedmanTest(
        statistic=chi2,
        p_value=float(stats.chi2.sf(chi2, k - 1)),
        f_statistic=f,
        f_p_value=float(f_p_value),
        contenders=k,
        experiments=N,
        permutation_p_value=_permutation_p_value(rank_matrix) if N <= _FEW_EXPERIMENTS or k <= _FEW else None,
    )


def _chi2(rank_matrices: Matrix) -> Matrix:
    """Friedman's χ² of ``(…, N, k)`` ranks, without the correction for ties."""
    N, k = rank_matrices.shape[-2:]
    squares = np.square(rank_matrices.mean(axis=-2)).sum(axis=-1)
    return np.asarray(12 * N / (k * (k + 1)) * (squares - k * (k + 1) ** 2 / 4))


def _permutation_p_value(rank_matrix: Matrix) -> float:
    """How often ranks in random order differ as much; what is seen counts as one of them."""
    random = np.random.default_rng(0)
    shuffled = random.permuted(np.broadcast_to(rank_matrix, (_PERMUTATIONS, *rank_matrix.shape)), axis=-1)
    as_large = int((_chi2(shuffled) >= _chi2(rank_matrix) - 1e-9).sum())
    return (as_large + 1) / (_PERMUTATIONS + 1)


def _tie_sizes(row: Matrix) -> Matrix:
    return np.unique(row, return_counts=True)[1].astype(np.float64)


def critical_difference(contenders: int, experiments: int, *, alpha: float = 0.05) -> float:
    """How far apart two average ranks must be: q_α √(k (k + 1) / 6N), q_α a studentised range over √2.

    >>> round(critical_difference(10, 12), 2)
    3.91
    """
    q = float(stats.studentized_range.ppf(1 - alpha, contenders, np.inf)) / math.sqrt(2)
    return q * _rank_error(contenders, experiments)


def _rank_error(contenders: int, experiments: int) -> float:
    """The standard error of a difference of two average ranks."""
    return math.sqrt(contenders * (contenders + 1) / (6 * experiments))


def nemenyi(average_ranks: Mapping[str, float], experiments: int, *, alpha: float = 0.05) -> NemenyiTest:
    """Nemenyi's test (1963) of all pairs after Friedman's.

    Args:
        average_ranks: The average rank of every contender.
        experiments: N, what the averages are over.
        alpha: Level of the family of all pairs.

    >>> test = nemenyi({"a": 1.2, "b": 1.9, "c": 2.9}, experiments=10)
    >>> round(test.critical_difference, 3), test.groups
    (1.048, [['a', 'b'], ['b', 'c']])
    """
    k = len(average_ranks)
    ordered = sorted(average_ranks, key=lambda name: average_ranks[name])
    cd = critical_difference(k, experiments, alpha=alpha)
    pairs = list(combinations(ordered, 2))
    gaps = np.array([average_ranks[second] - average_ranks[first] for first, second in pairs])
    ranges = gaps / _rank_error(k, experiments) * math.sqrt(2)
    p_values = stats.studentized_range.sf(ranges, k, np.inf)
    return NemenyiTest(
        cd, alpha, dict(zip(pairs, p_values.tolist(), strict=True)), _groups(ordered, average_ranks, cd)
    )


def _groups(ordered: Sequence[str], average_ranks: Mapping[str, float], cd: float) -> list[list[str]]:
    """The longest rows of neighbours whose ends are within the critical difference."""
    groups: list[list[str]] = []
    reached = 0
    for start, name in enumerate(ordered):
        end = start
        while end + 1 < len(ordered) and average_ranks[ordered[end + 1]] - average_ranks[name] <= cd:
            end += 1
        if end > start and end > reached:
            groups.append(list(ordered[start : end + 1]))
        reached = max(reached, end)
    return groups


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): adjusted p-values, in the order given.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = p.argsort(kind="stable")
    steps = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    adjusted = np.empty_like(p)
    adjusted[order] = steps
    return [float(value) for value in adjusted]


def pair_tests(scores: Mapping[str, Sequence[float]]) -> list[PairTest]:
    """Wilcoxon's signed-rank test (1945) of every pair over the experiments, corrected with Holm's steps.

    Unlike Nemenyi's, the answer for a pair does not depend on who else took part (Benavoli, Corani and
    Mangili, 2016, JMLR).

    Args:
        scores: The scores of every contender, one per experiment, in the same order.

    >>> a, b = [0.9, 0.8, 0.7, 0.9, 0.8, 0.6], [0.89, 0.78, 0.67, 0.86, 0.75, 0.54]
    >>> pair_tests({"a": a, "b": b})[0].p_value
    0.03125
    """
    pairs = list(combinations(scores, 2))
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    gaps = [np.round(columns[a] - columns[b], _SAME) for a, b in pairs]
    p_values = [signed_rank_p_value(gap) for gap in gaps]
    return [
        PairTest(first, second, p, corrected, float(np.median(gap)))
        for (first, second), p, corrected, gap in zip(pairs, p_values, holm(p_values), gaps, strict=True)
    ]


def signed_rank_p_value(differences: Matrix) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test, exact with ties too; zeros are left out.

    Args:
        differences: ``(N,)``.

    >>> signed_rank_p_value(np.array([0.1, 0.2, 0.2, 0.4]))
    0.125
    """
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    doubled = np.round(2 * stats.rankdata(np.abs(differences))).astype(int)  # mean ranks are halves at worst
    # chances[w]: that doubled ranks with random signs have a positive sum of w, one rank after another
    chances = np.zeros(doubled.sum() + 1)
    chances[0] = 1
    for rank in doubled:
        taken = chances[:-rank] / 2
        chances /= 2
        chances[rank:] += taken
    positive = int(doubled[differences > 0].sum())
    smaller = min(positive, int(doubled.sum()) - positive)
    return float(min(2 * chances[: smaller + 1].sum(), 1.0))


def smallest_pair_p_value(contenders: int, experiments: int) -> float:
    """The smallest corrected p-value that :func:`pair_tests` can give: all experiments agree on a pair.

    >>> round(smallest_pair_p_value(10, 12), 3)
    0.022
    """
    return float(min(math.comb(contenders, 2) * 2.0 ** (1 - experiments), 1.0))
