from __future__ import annotations

import pytest
import torch

from nearkin.evaluation import bootstrap_intervals, paired_differences
from nearkin.tournament.comparisons import Hits, class_interval, compare_all, hits_of
from nearkin.tournament.outcomes import read_outcomes
from nearkin.tournament.statistics import holm


def read(*paths):
    return read_outcomes(paths).outcomes


def made_up(
    shares: dict[str, float], *, classes: int = 50, images: int = 8, seed: int = 0
) -> dict[str, Hits]:
    """Contenders that hit with given chances; hits of a class go together."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(images)
    ease = torch.randn(classes, generator=draw)[labels] * 0.2
    return {
        name: Hits(
            (torch.rand(len(labels), generator=draw) < share + ease).double(),
            torch.arange(len(labels)),
            labels,
        )
        for name, share in shares.items()
    }


def test_one_seed_is_compared_as_paired_differences_does(make_run, labels):
    outcomes = read(make_run("triplet", noise=1.0), make_run("npair", noise=1.2))
    hits = {outcome.contender: hits_of([outcome], "map_at_r") for outcome in outcomes}
    first, second = (outcome.queries()[0] for outcome in outcomes)
    expected = paired_differences(second, first, labels)["map_at_r"]
    (found,) = compare_all(hits)
    assert (found.first, found.second) == tuple(hits)
    assert (found.difference, found.low, found.high, found.p_value) == pytest.approx(
        (expected.difference, expected.low, expected.high, expected.p_value)
    )
    assert found.p_holm == found.p_value


def test_intervals_are_those_of_the_bootstrap_over_classes(make_run, labels):
    (outcome,) = read(make_run("triplet", noise=1.0))
    expected = bootstrap_intervals(outcome.queries()[0], labels)["recall_at_1"]
    assert class_interval(hits_of([outcome], "recall_at_1")) == expected


def test_hits_are_averaged_over_seeds(make_run):
    outcomes = read(*(make_run("triplet", noise=1.0, seed=seed) for seed in range(3)))
    hits = hits_of(outcomes, "recall_at_1")
    for query in range(0, 240, 17):
        one_by_one = [outcome.queries()[0].per_query.first_rank[query] == 1 for outcome in outcomes]
        assert hits.values[query] == pytest.approx(sum(map(float, one_by_one)) / 3)
    means = [outcome.scores["recall_at_1"] for outcome in outcomes]
    assert hits.values.mean() == pytest.approx(sum(means) / 3)


def test_no_hits_without_all_queries_or_the_score(make_run):
    paths = [make_run("triplet", noise=1.0, seed=seed) for seed in (0, 1)]
    assert hits_of(read(paths[0]), "ami") is None
    (paths[0] / "test_queries.safetensors").unlink()
    assert hits_of(read(*paths), "recall_at_1") is None


def test_better_wins_equal_ties_worse_loses():
    hits = made_up({"good": 0.8, "bad": 0.5})
    hits["twin"] = hits["good"]
    verdicts = {(one.first, one.second): one.verdict for one in compare_all(hits)}
    assert verdicts == {("good", "bad"): "win", ("good", "twin"): "tie", ("bad", "twin"): "loss"}


def test_a_win_needs_the_correction_for_all_pairs():
    """A difference that one test alone would call real is a tie among many pairs."""
    hits = made_up({"a": 0.60, "b": 0.53}, seed=3)
    (alone,) = compare_all(hits)
    assert alone.verdict == "win"
    assert alone.p_value > 0.001
    crowd = hits | made_up({f"other {i}": 0.6 for i in range(9)}, seed=4)
    together = compare_all(crowd)
    (same,) = (one for one in together if (one.first, one.second) == ("a", "b"))
    assert same.verdict == "tie"
    assert [one.p_holm for one in together] == pytest.approx(holm([one.p_value for one in together]))


def test_many_pairs_can_still_win():
    hits = made_up({f"{i}": 0.1 + 0.06 * i for i in range(14)}, classes=60)
    assert sum(one.verdict != "tie" for one in compare_all(hits)) > 45


def test_alike_contenders_seldom_differ():
    wins = [
        one.verdict
        for seed in range(5)
        for one in compare_all(made_up(dict.fromkeys("abcdef", 0.6), seed=seed))
    ]
    assert wins.count("tie") >= len(wins) - 1


def test_only_the_same_queries_are_compared():
    hits = made_up({"a": 0.6, "b": 0.5}) | made_up({"c": 0.5}, classes=30)
    assert [(one.first, one.second) for one in compare_all(hits)] == [("a", "b")]
    assert compare_all({}) == []
