from __future__ import annotations

import math
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nearkin.tournament.statistics import (
    critical_difference,
    friedman,
    holm,
    nemenyi,
    pair_tests,
    ranks,
    signed_rank_p_value,
    smallest_pair_p_value,
)

# Demšar 2006, Table 5(a): q_0.05 for 2 to 10 classifiers.
Q_05 = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]


def matrix_of_ranks(scores: np.ndarray) -> np.ndarray:
    return np.array([stats.rankdata(-row) for row in scores])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_ranks_count_who_is_better_and_share_ties(values):
    found = ranks({str(i): float(value) for i, value in enumerate(values)})
    for i, value in enumerate(values):
        better = sum(other > value for other in values)
        equal = sum(other == value for other in values)
        assert found[str(i)] == better + (equal + 1) / 2


@pytest.mark.parametrize("levels", [3, 1000])
def test_friedman_agrees_with_scipy_ties_or_not(levels):
    scores = np.random.default_rng(0).integers(levels, size=(9, 5)).astype(float)
    test = friedman(matrix_of_ranks(scores))
    expected = stats.friedmanchisquare(*scores.T)
    assert test.statistic == pytest.approx(expected.statistic)
    assert test.p_value == pytest.approx(expected.pvalue)
    assert (test.contenders, test.experiments) == (5, 9)


def test_iman_and_davenports_f_is_the_anova_of_ranks():
    """F of a two-way analysis of variance of the ranks, written out, is the corrected statistic."""
    R = matrix_of_ranks(np.random.default_rng(1).random((7, 4)))
    N, k = R.shape
    between = N * ((R.mean(axis=0) - R.mean()) ** 2).sum() / (k - 1)
    residual = R - R.mean(axis=0) - R.mean(axis=1, keepdims=True) + R.mean()
    within = (residual**2).sum() / ((k - 1) * (N - 1))
    test = friedman(R)
    assert test.f_statistic == pytest.approx(between / within)
    assert test.f_p_value == pytest.approx(stats.f.sf(between / within, k - 1, (k - 1) * (N - 1)))


def test_friedman_of_perfect_agreement_is_exact():
    test = friedman(np.tile([1.0, 2.0, 3.0], (4, 1)))
    assert test.f_statistic == math.inf
    assert test.f_p_value == pytest.approx((1 / 6) ** 3)


def test_friedman_of_equals_finds_nothing():
    test = friedman(np.full((4, 3), 2.0))
    assert (test.statistic, test.p_value, test.f_p_value) == (0, 1, 1)


def test_friedman_refuses_a_single_experiment():
    with pytest.raises(ValueError, match="not 1 and 3"):
        friedman(np.array([[1.0, 2.0, 3.0]]))


@pytest.mark.parametrize(("k", "q"), list(enumerate(Q_05, start=2)))
def test_critical_differences_are_those_of_the_published_table(k, q):
    experiments = 17
    assert critical_difference(k, experiments) == pytest.approx(
        q * math.sqrt(k * (k + 1) / (6 * experiments)), rel=4e-4
    )


def test_the_critical_difference_of_demsars_example():
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, alpha=0.1) == pytest.approx(1.12, abs=0.005)


@pytest.mark.parametrize("seed", range(4))
def test_nemenyis_groups_and_p_values_agree_with_the_critical_difference(seed):
    average = np.random.default_rng(seed).uniform(1, 8, size=8)
    named = {f"loss {i}": float(value) for i, value in enumerate(average)}
    test = nemenyi(named, experiments=12)
    cd = test.critical_difference
    for (first, second), p in test.p_values.items():
        assert named[first] <= named[second]
        assert (p < 0.05) == (named[second] - named[first] > cd)
    alike = [
        set(group)
        for size in range(2, 9)
        for group in combinations(named, size)
        if max(named[one] for one in group) - min(named[one] for one in group) <= cd
    ]
    longest = [group for group in alike if not any(group < other for other in alike)]
    assert sorted(map(sorted, test.groups)) == sorted(map(sorted, longest))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_is_the_step_down_procedure(p_values):
    adjusted = holm(p_values)
    m = len(p_values)
    order = sorted(range(m), key=lambda i: p_values[i])
    largest = 0.0
    for step, i in enumerate(order):
        largest = max(largest, (m - step) * p_values[i])
        assert adjusted[i] == pytest.approx(min(largest, 1.0))


def test_pair_tests_are_wilcoxons_with_holms_steps():
    draw = np.random.default_rng(3)
    scores = {name: draw.normal(shift, 1, size=11) for name, shift in (("a", 2), ("b", 0), ("c", 0.1))}
    found = pair_tests(scores)
    raw = [float(stats.wilcoxon(scores[one.first] - scores[one.second]).pvalue) for one in found]
    assert [(one.first, one.second) for one in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one.p_value for one in found] == pytest.approx(raw)
    assert [one.p_holm for one in found] == pytest.approx(holm(raw))
    assert found[0].difference == pytest.approx(np.median(scores["a"] - scores["b"]))


def test_equal_contenders_cannot_be_told_apart():
    assert pair_tests({"a": [0.5, 0.6], "b": [0.5, 0.6]})[0].p_value == 1


def test_the_smallest_pair_p_value_is_reached_when_all_experiments_agree():
    better = np.linspace(0.6, 0.7, 9)
    gaps = {"a": better, "b": better - np.linspace(0.01, 0.02, 9), "c": better - np.linspace(0.03, 0.06, 9)}
    assert min(one.p_holm for one in pair_tests(gaps)) == pytest.approx(smallest_pair_p_value(3, 9))


@pytest.mark.parametrize("seed", range(5))
def test_signed_ranks_agree_with_scipy_where_nothing_ties(seed):
    gaps = np.random.default_rng(seed).normal(0.4, 1, size=9 + seed)
    assert signed_rank_p_value(gaps) == pytest.approx(stats.wilcoxon(gaps, method="exact").pvalue)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_signed_ranks_with_ties_agree_with_counting_all_signs(values):
    gaps = np.array(values, dtype=float)
    kept = gaps[gaps != 0]
    if len(kept) == 0:
        assert signed_rank_p_value(gaps) == 1
        return
    rank = stats.rankdata(np.abs(kept))
    seen = abs(rank @ np.sign(kept))
    signs = np.array(list(product((-1, 1), repeat=len(kept))))
    expected = (np.abs(signs @ rank) >= seen - 1e-9).mean()
    assert signed_rank_p_value(gaps) == pytest.approx(expected)


def test_permutations_stand_in_for_chi2_where_there_is_little():
    few = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]])
    orders = [np.array(order) for order in permutations((1.0, 2.0, 3.0))]

    def chi2(rows):
        return 3 * ((np.mean(rows, axis=0) - 2) ** 2).sum()

    exact = np.mean([chi2(rows) >= chi2(few) - 1e-9 for rows in product(orders, repeat=3)])
    test = friedman(few)
    assert test.permutation_p_value == pytest.approx(exact, abs=0.015)
    assert test.best_p_value == test.permutation_p_value
    many = friedman(matrix_of_ranks(np.random.default_rng(0).random((12, 7))))
    assert many.permutation_p_value is None
    assert many.best_p_value == many.f_p_value
