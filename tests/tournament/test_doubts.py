"""How sure a ranking is: spreads, rank intervals, groups, power and stability, each against an oracle."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from nearkin.tournament.doubt_notes import power_sentence
from nearkin.tournament.doubts import (
    BoardDoubts,
    ClassSums,
    PairDoubt,
    Spread,
    _groups,
    _needed,
    class_sums,
    half_stability,
    rank_intervals,
)
from nearkin.tournament.outcomes import read_outcomes
from nearkin.tournament.ranking import rank_outcomes


def made_up(means, *, seeds=3, classes=60, seed_noise=0.0, class_noise=0.0, draw=0) -> dict[str, ClassSums]:
    """Contenders whose scores have these means, with noise per seed and per class."""
    random = np.random.default_rng(draw)
    found = {}
    for number, mean in enumerate(means):
        by_seed = random.normal(0, seed_noise, size=(seeds, 1))
        by_class = random.normal(0, class_noise, size=(1, classes))
        counts = np.full(classes, 8.0)
        found[f"loss{number}"] = ClassSums(tuple(range(seeds)), (mean + by_seed + by_class) * counts, counts)
    return found


def test_hits_by_seed_and_class_are_those_of_the_runs(make_run, tmp_path):
    for seed in (0, 1, 2):
        make_run("triplet", noise=1.2, seed=seed)
    outcomes = sorted(read_outcomes([tmp_path / "runs"]).outcomes, key=lambda one: one.seed)
    sums = class_sums(outcomes, "recall_at_1")
    assert sums.seeds == (0, 1, 2)
    assert sums.scores == pytest.approx([one.scores["recall_at_1"] for one in outcomes])
    assert sums.counts.tolist() == [6] * 40
    ones = np.ones((1, 40))
    assert sums.drawn(ones, np.array([[2.0, 0.0, 0.0]])) == pytest.approx([sums.scores[0]])


def test_rank_intervals_are_narrow_where_nothing_overlaps_and_wide_where_all_are_equal():
    clear = rank_intervals([made_up([0.9, 0.7, 0.5], seed_noise=0.01, class_noise=0.02)])
    assert [(one.rank, one.low, one.high, one.first) for one in clear.values()] == [
        (1, 1, 1, 1),
        (2, 2, 2, 0),
        (3, 3, 3, 0),
    ]
    equal = rank_intervals([made_up([0.7] * 4, seed_noise=0.02, class_noise=0.1)])
    assert max(one.high - one.low for one in equal.values()) >= 2
    assert sum(one.first for one in equal.values()) == pytest.approx(1)


def test_rank_intervals_against_every_draw_of_a_tiny_case():
    counts = np.ones(3)
    a, b = (
        ClassSums((0,), np.array([[1.0, 0.0, 0.0]]), counts),
        ClassSums((0,), np.array([[0, 0.6, 0]]), counts),
    )
    exact = [
        1.0 if x > y else 0.5 if x == y else 0.0
        for draw in product(range(3), repeat=3)
        for x, y in [(sum(a.sums[0, i] for i in draw), sum(b.sums[0, i] for i in draw))]
    ]
    found = rank_intervals([{"a": a, "b": b}])
    assert found["a"].first == pytest.approx(np.mean(exact), abs=0.04)


def test_experiments_are_drawn_as_well():
    experiments = [made_up([0.9, 0.5]), made_up([0.9, 0.5]), made_up([0.5, 0.9])]
    draws = [rank_intervals(experiments, seed=seed)["loss0"] for seed in range(5)]
    found = draws[1]
    assert found.rank == pytest.approx(4 / 3)
    assert found.low == 1
    # All three are the odd one with chance 1/27, which is more than 0.025; few draws may miss that.
    assert sorted(one.high for one in draws)[2] == 2
    # Of three drawn from three, two or more are the odd one with chance 3·(1/3)²·(2/3) + (1/3)³.
    assert found.first == pytest.approx(1 - 7 / 27, abs=0.04)


def test_what_is_needed_is_enough_and_one_less_is_not():
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    seeds, classes = _needed(0.02, by_classes=2e-5, by_seeds=4e-4, classes=100, seeds=3, alpha=0.05)

    def shows(seeds: int, classes: int) -> bool:
        return 0.02 / np.sqrt(2e-5 * 100 / classes + 4e-4 / seeds) >= z

    assert shows(seeds, 100)
    assert not shows(seeds - 1, 100)
    assert classes is None  # three seeds alone are too uncertain
    assert not shows(3, 10**9)
    _, classes = _needed(0.04, by_classes=2e-4, by_seeds=4e-4, classes=100, seeds=3, alpha=0.05)
    assert 0.04 / np.sqrt(2e-4 * 100 / classes + 4e-4 / 3) >= z
    assert 0.04 / np.sqrt(2e-4 * 100 / (classes - 1) + 4e-4 / 3) < z


def test_power_is_what_a_simulation_says():
    seeds, _ = _needed(0.02, by_classes=1e-5, by_seeds=4e-4, classes=100, seeds=3, alpha=0.05)
    random = np.random.default_rng(0)
    error = np.sqrt(1e-5 + 4e-4 / seeds)
    seen = 0.02 + error * random.standard_normal(20_000)
    assert np.mean(np.abs(seen) / error > stats.norm.ppf(0.975)) >= 0.8


def test_groups_are_rows_of_which_no_two_are_told_apart():
    def pair(first: str, second: str, p: float) -> PairDoubt:
        return PairDoubt(first, second, 0.1, 0.1, p, None, None)

    apart = {("a", "c"), ("a", "d"), ("b", "d")}
    pairs = [pair(x, y, 0.01 if (x, y) in apart else 0.5) for x, y in ["ab", "ac", "ad", "bc", "bd", "cd"]]
    assert _groups("abcd", pairs, 0.05) == [["a", "b"], ["b", "c"], ["c", "d"]]
    assert (
        _groups("abcd", [pair(x, y, 0.01) for x, y in apart | {("a", "b"), ("b", "c"), ("c", "d")}], 0.05)
        == []
    )
    assert _groups("abcd", [], 0.05) == [list("abcd")]


def test_halves_agree_where_the_order_is_clear_and_not_where_it_is_chance():
    clear = made_up([0.9, 0.8, 0.7, 0.6], seeds=4, seed_noise=0.01, class_noise=0.05)
    assert half_stability(list(clear.values())) == pytest.approx(1.0)
    chance = [
        half_stability(list(made_up([0.7] * 6, seeds=4, seed_noise=0.03, class_noise=0.3, draw=d).values()))
        for d in range(8)
    ]
    assert np.mean(chance) < 0.3


def test_standings_say_how_sure_they_are(make_run, tmp_path):
    for seed in (0, 1, 2):
        for loss, noise in (("triplet", 0.8), ("nca", 1.5), ("margin", 1.55)):
            make_run(loss, noise=noise, seed=seed)
    standings = rank_outcomes(read_outcomes([tmp_path / "runs"]).outcomes)
    (found,) = standings.doubts.boards
    assert (found.classes, found.seeds) == (40, 3)
    place = standings.leaderboards[0].places[0]
    spread = found.spreads["triplet"]
    assert spread.seeds == pytest.approx(place.spread["recall_at_1"])
    assert spread.classes == pytest.approx((place.interval.high - place.interval.low) / (2 * 1.96), rel=0.2)
    assert spread.tuning is None
    assert ["nca", "margin"] in [sorted(group, reverse=True) for group in found.groups]
    told = "\n".join(standings.doubt_notes)
    assert "Cannot be told apart: " in told
    assert "Kendall's τ" in told
    assert all(note in str(standings) for note in standings.doubt_notes)


def test_the_sentence_about_power():
    found = BoardDoubts({"a": Spread(0.1, 0.1, None)}, [], [], classes=300, seeds=3, stability=None)
    pair = PairDoubt("a", "b", 0.008, 0.01, 0.5, seeds=12, classes=None)
    assert power_sentence(pair, found) == (
        "To tell a from b (0.8 points apart; 5 % level, 80 % power, this pair alone): 12 seeds with these "
        "300 test classes."
    )
