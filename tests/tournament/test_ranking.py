from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nearkin.tournament.outcomes import Experiment, Outcome, read_outcomes
from nearkin.tournament.ranking import rank_outcomes

SIZES = (16, 32, 64, 128)


def outcome(loss: str, recall: float, *, size: int = 64, kind: str = "run", seed: int = 0) -> Outcome:
    experiment = Experiment("glyphs", "convnet", size, "fixed_validation")
    scores = {"recall_at_1": recall, "map_at_r": recall / 2}
    return Outcome(experiment, loss, kind, scores, f"{loss}-{seed}", seed=seed)


def test_totals_averages_and_deviations_of_ranks():
    scores = {"a": [0.9, 0.8, 0.7], "b": [0.8, 0.9, 0.7], "c": [0.1, 0.2, 0.3]}
    outcomes = [
        outcome(loss, recall, size=size)
        for loss, column in scores.items()
        for size, recall in zip(SIZES, column, strict=False)
    ]
    ranks = {"a": [1, 2, 1.5], "b": [2, 1, 1.5], "c": [3, 3, 3]}
    ranking = rank_outcomes(outcomes).ranking
    assert [row.contender for row in ranking.rows] == ["a", "b", "c"]
    for row in ranking.rows:
        assert list(row.ranks.values()) == ranks[row.contender]
        assert row.total == sum(ranks[row.contender])
        assert row.average == pytest.approx(np.mean(ranks[row.contender]))
        assert row.deviation == pytest.approx(np.std(ranks[row.contender], ddof=1))


def test_another_score_may_rank():
    outcomes = [outcome("a", 0.5), replace(outcome("b", 0.4), scores={"recall_at_1": 0.4, "map_at_r": 0.9})]
    assert rank_outcomes(outcomes).leaderboards[0].places[0].contender == "a"
    assert rank_outcomes(outcomes, metric="map_at_r").leaderboards[0].places[0].contender == "b"
    with pytest.raises(ValueError, match="has no nmi: it has map_at_r, recall_at_1"):
        rank_outcomes(outcomes, metric="nmi")


def test_nothing_to_rank_is_a_mistake():
    with pytest.raises(ValueError, match="no finished run"):
        rank_outcomes([])


def test_seeds_are_averaged_and_their_spread_is_shown():
    recalls = [0.5, 0.6, 0.64]
    outcomes = [outcome("a", recall, seed=seed) for seed, recall in enumerate(recalls)]
    (place,) = rank_outcomes(outcomes).leaderboards[0].places
    assert place.seeds == 3
    assert place.scores["recall_at_1"] == pytest.approx(np.mean(recalls))
    assert place.spread["recall_at_1"] == pytest.approx(np.std(recalls, ddof=1))
    expected = stats.t.interval(0.95, 2, loc=np.mean(recalls), scale=stats.sem(recalls))
    assert place.seeds_interval == pytest.approx(expected)


def test_baselines_are_shown_and_not_ranked():
    outcomes = [
        outcome("a", 0.5),
        outcome("raw_pixels", 0.45, kind="baseline"),
        outcome("b", 0.4),
        outcome("c", 0.3),
    ]
    board = rank_outcomes(outcomes).leaderboards[0]
    assert [(place.contender, place.rank) for place in board.places] == [
        ("a", 1),
        ("raw_pixels", None),
        ("b", 2),
        ("c", 3),
    ]
    assert "Below raw_pixels, to be looked into: b and c." in board.notes


def test_a_loss_that_scores_as_a_baseline_is_not_below_it():
    outcomes = [outcome("raw_pixels", 1.0, kind="baseline"), outcome("a", 1.0), outcome("triplet", 1.0)]
    board = rank_outcomes(outcomes).leaderboards[0]
    assert not [note for note in board.notes if "Below" in note]


def test_a_loss_that_missed_an_experiment_is_left_out_of_the_ranking_and_told():
    outcomes = [outcome(loss, 0.5, size=size) for loss in "ab" for size in SIZES]
    standings = rank_outcomes([*outcomes, outcome("c", 0.9), outcome("a", 0.5, size=8)])
    assert {row.contender for row in standings.ranking.rows} == {"a", "b"}
    assert standings.ranking.left_out == {"c": 1}
    assert any("c (1 of 4)" in note for note in standings.notes)
    assert any("convnet · 8 · fixed_validation has fewer than two" in note for note in standings.notes)
    assert len(standings.ranking.experiments) == 4


def test_too_few_experiments_are_told_honestly():
    one = rank_outcomes([outcome("a", 0.5), outcome("b", 0.4)])
    assert one.friedman is one.nemenyi is None
    assert one.test_notes == ["No test over experiments: 1 experiment cannot show what is consistent."]
    losses = dict(zip("abcdefghij", np.linspace(0.9, 0.1, 10), strict=True))
    two = rank_outcomes([outcome(loss, r, size=size) for loss, r in losses.items() for size in SIZES[:2]])
    assert two.friedman is not None
    assert two.nemenyi is None  # 9.58 ranks of 9 possible
    assert two.pair_tests == []
    assert any("critical difference of 10 losses is 9.58 ranks" in note for note in two.test_notes)
    assert any("share 1 data set" in note for note in two.test_notes)


def test_enough_experiments_are_tested():
    draw = np.random.default_rng(0)
    outcomes = [
        replace(
            outcome(loss, 0.5 + shift + draw.normal(0, 0.02)),
            experiment=Experiment(f"data {number}", "convnet", 64, "standard"),
        )
        for number in range(12)
        for loss, shift in (("good", 0.2), ("fair", 0.1), ("poor", 0.0))
    ]
    standings = rank_outcomes(outcomes)
    assert standings.friedman.best_p_value < 0.001
    assert standings.nemenyi.p_values["good", "poor"] < 0.05
    assert standings.pair_tests[0].p_holm < 0.01
    assert not any("share" in note for note in standings.test_notes)
    assert "good is ahead of 2 of 2." in standings.test_notes[1]


def test_runs_are_compared_query_by_query(make_run, tmp_path):
    for seed in (0, 1):
        make_run("proxy_anchor", noise=0.6, seed=seed)
        make_run("triplet", noise=1.1, seed=seed)
        make_run("npair", noise=1.11, seed=seed)
    standings = rank_outcomes(read_outcomes([tmp_path]).outcomes)
    (board,) = standings.leaderboards
    assert [place.rank for place in board.places] == [1, 2, 3]
    assert all(
        place.interval.low < place.scores["recall_at_1"] < place.interval.high for place in board.places
    )
    assert board.comparison("proxy_anchor", "npair").verdict == "win"
    assert board.comparison("npair", "proxy_anchor").verdict == "loss"
    assert board.comparison("npair", "proxy_anchor").high < 0
    assert board.comparison("npair", "margin") is None
    record = standings.records["proxy_anchor", "triplet"]
    assert (record.wins, record.ties, record.losses) == (1, 0, 0)
    assert standings.place(board.experiment, "npair").seeds == 2
    assert len(standings.outcomes) == 6


def test_a_copy_of_a_run_is_not_a_second_seed(make_run, tmp_path):
    path = make_run("triplet", noise=1.0)
    shutil.copytree(path, tmp_path / "copies" / "triplet")
    standings = rank_outcomes(read_outcomes([tmp_path]).outcomes)
    assert standings.leaderboards[0].places[0].seeds == 1


def test_hyperparameters_tell_runs_of_one_loss_apart(make_run, tmp_path):
    make_run("triplet", noise=1.0)
    make_run("triplet", noise=0.9, **{"loss.margin": 0.3})
    make_run("npair", noise=0.9)
    places = rank_outcomes(read_outcomes([tmp_path]).outcomes).leaderboards[0].places
    assert {place.contender for place in places} == {
        "triplet (margin=0.1)",
        "triplet (margin=0.3)",
        "npair",
    }


def test_unequal_terms_are_told(make_run, tmp_path):
    make_run("triplet", noise=1.0)
    make_run("npair", noise=0.9, **{"training.epochs": 20})
    notes = rank_outcomes(read_outcomes([tmp_path]).outcomes).leaderboards[0].notes
    assert "Unequal terms, training.epochs: 20 (npair); 12 (triplet)." in notes


def test_runs_that_kept_no_queries_are_told(make_run, tmp_path):
    path = make_run("triplet", noise=1.0)
    make_run("npair", noise=0.9)
    (path / "test_queries.safetensors").unlink()
    board = rank_outcomes(read_outcomes([tmp_path]).outcomes).leaderboards[0]
    assert board.comparisons == []
    assert any(note.startswith("1 of 2 kept no queries") for note in board.notes)


def test_published_figures_stand_beside_a_run_of_their_configuration():
    run = replace(
        outcome("soft_triple", 0.7), experiment=Experiment("cub200", "bninception", 512, "fixed_validation")
    )
    (place,) = rank_outcomes([run]).leaderboards[0].places
    assert [figure.scores["recall_at_1"] for figure in place.published] == [0.6676, 0.6612, 0.654]


def test_published_figures_stay_beside_a_loss_that_ran_with_several_hyperparameters(make_run, tmp_path):
    place = {"data.name": "cub200", "network.name": "bninception", "network.embedding_dim": 512}
    for scale in (10.0, 20.0):
        make_run("soft_triple", noise=0.5, **place, **{"loss.gamma": scale})
    (board,) = rank_outcomes(read_outcomes([tmp_path]).outcomes).leaderboards
    assert [place.contender for place in board.places] == [
        "soft_triple (gamma=10.0)",
        "soft_triple (gamma=20.0)",
    ]
    for place in board.places:
        assert [figure.scores["recall_at_1"] for figure in place.published] == [0.6676, 0.6612, 0.654]
