from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nearkin import protocols
from nearkin.evaluation import RetrievalScores
from nearkin.tournament.outcomes import Experiment, Outcome, Skipped
from nearkin.tournament.ranking import rank_outcomes, rank_published
from nearkin.tournament.report import wording
from nearkin.tournament.report.disclosure import disclosure
from nearkin.tournament.report.summary import summarise
from nearkin.tournament.standings import Comparison, Standings
from nearkin.training import DataSummary, NetworkResult, Result, SplitSummary


def outcome(
    contender, recall, *, kind="run", seed=0, size=64, protocol="fixed_validation", **more
) -> Outcome:
    experiment = Experiment("glyphs", "convnet", size, protocol)
    scores = {"recall_at_1": recall, "recall_at_2": (1 + recall) / 2}
    return Outcome(experiment, contender, kind, scores, f"runs/{contender}", seed, **more)


def compared(standings: Standings, verdicts: dict[str, str]) -> Standings:
    """The same standings as if the leader had been compared with everybody."""
    (board,) = standings.leaderboards
    leader = board.places[0].contender
    comparisons = [
        Comparison(leader, name, 0.02, 0.01, 0.03, 0.0002, 0.0004, verdict)
        for name, verdict in verdicts.items()
    ]
    return replace(standings, leaderboards=[replace(board, comparisons=comparisons)])


@pytest.fixture
def three() -> Standings:
    return rank_outcomes([outcome("nca", 0.70), outcome("margin", 0.68), outcome("npair", 0.6)])


def test_a_lead_that_is_real_is_called_so_with_its_numbers(three):
    summary = summarise(compared(three, {"margin": "win", "npair": "win"}))
    assert summary.headline == "nca leads, by more than chance among the test classes."
    assert "Recall@1 70.0 %" in summary.paragraphs[0]
    assert "+2.0 points from margin (interval +1.0 to +3.0; p < 0.001" in summary.paragraphs[0]


def test_a_lead_that_is_not_real_names_whom_it_cannot_be_told_from(three):
    summary = summarise(compared(three, {"margin": "tie", "npair": "win"}))
    assert summary.headline == "nca is ahead, but cannot be told from margin."
    none = summarise(compared(three, {"margin": "tie", "npair": "tie"}))
    assert none.headline == "nca is ahead, but nothing here tells it from any other."


def test_without_kept_queries_nothing_is_claimed(three):
    summary = summarise(three)
    assert summary.headline == "nca is ahead; whether by more than chance cannot be said."
    assert "2.0 points ahead of margin" in summary.paragraphs[0]


def test_one_seed_is_said_to_be_one_seed(three):
    assert "trained once" in " ".join(summarise(three).paragraphs)
    several = [outcome("nca", score, seed=seed) for seed, score in enumerate((0.7, 0.72))]
    text = " ".join(summarise(rank_outcomes([*several, outcome("margin", 0.6)])).paragraphs)
    assert "1 to 2 seeds" in text
    assert "1.4 points" in text
    assert "trained once" not in text


def test_losses_below_a_baseline_are_named():
    runs = [
        outcome("nca", 0.7),
        outcome("npair", 0.4),
        outcome("raw_pixels", 0.5, kind="baseline", seed=None),
    ]
    text = " ".join(summarise(rank_outcomes(runs)).paragraphs)
    assert "raw_pixels with 50.0 %" in text
    assert "Not above it: npair (1 of 2 lines)" in text


def test_baselines_of_several_experiments_are_summed_up():
    runs = [outcome("nca", recall, size=size) for size, recall in ((8, 0.4), (64, 0.7))]
    others = [outcome("npair", 0.65, size=size) for size in (8, 64)]
    pixels = [outcome("raw_pixels", 0.3 + size / 200, kind="baseline", size=size) for size in (8, 64)]
    text = " ".join(summarise(rank_outcomes([*runs, *others, *pixels])).paragraphs)
    assert "raw_pixels with 34.0 to 62.0 %, by experiment. Every loss is above it" in text


def test_a_plugged_in_protocol_that_chooses_on_the_test_classes_is_a_warning_too():
    @protocols.register("peeking")
    class Peeking(protocols.StandardBestOnTest):
        """The epoch was chosen by a look at the test classes."""

    try:
        standings = rank_outcomes(
            [outcome(name, recall, protocol="peeking") for name, recall in (("nca", 0.5), ("npair", 0.4))]
        )
        assert any(
            note.startswith("peeking chooses the epoch on the test classes") for note in standings.notes
        )
        assert wording.protocol_label("peeking") == "peeking (epoch chosen on test)"
        assert wording.labelled("glyphs · peeking, peeking_once") == (
            "glyphs · peeking (epoch chosen on test), peeking_once"
        )
        assert wording.protocol_sentence("peeking") == "The epoch was chosen by a look at the test classes"
    finally:
        protocols.registry.unregister("peeking")


def test_choosing_on_the_test_classes_is_a_warning_and_never_an_ordinary_protocol():
    runs = [outcome(name, 0.5, protocol="standard_best_on_test") for name in ("nca", "npair")]
    summary = summarise(rank_outcomes(runs))
    assert "chosen on the test classes (standard_best_on_test)" in summary.warnings[0]
    assert sum("standard_best_on_test" in warning for warning in summary.warnings) == 1
    assert not any(paragraph.startswith("Protocol standard_best") for paragraph in summary.paragraphs)


def test_over_experiments_the_tests_decide_what_is_said():
    summary = summarise(rank_published("thesis"))
    assert summary.headline.startswith(
        "proxy_anchor ranks best on average, but cannot be told from soft_triple"
    )
    assert "1.00, first in 12 of 12" in summary.paragraphs[0]
    text = " ".join(summary.paragraphs)
    assert "Nemenyi's critical difference of 3.91 ranks" in text
    assert "Beyond it: margin, arcface, proxy_nca, triplet and npair." in text
    assert "one data set" in text
    assert any("8.85" in warning for warning in summary.warnings)


def test_without_a_loss_in_all_experiments_nobody_leads_over_them():
    runs = [outcome("nca", 0.7), outcome("npair", 0.6)]
    runs += [outcome("margin", 0.7, size=8), outcome("triplet", 0.6, size=8), outcome("triplet", 0.6, size=4)]
    summary = summarise(rank_outcomes(runs))
    assert summary.headline == "No loss took part in all experiments, so nobody leads over them."
    assert summary.paragraphs[0] == (
        "2 of 3 experiments compare two or more losses. First is margin in 1 and nca in 1."
    )


def test_experiments_of_one_loss_each_compare_nothing():
    summary = summarise(rank_outcomes([outcome("nca", 0.7), outcome("nca", 0.6, size=8)]))
    assert summary.headline == "No experiment has two losses to compare."


def test_what_could_not_be_read_is_counted(three):
    skipped = replace(three, skipped=[Skipped(Path("runs/half"), "not finished")])
    assert "1 directory could not be compared: see Runs." in summarise(skipped).warnings


def test_a_loss_alone_is_compared_with_nothing():
    assert summarise(rank_outcomes([outcome("nca", 0.7)])).headline == "nca ran alone."


def told(contender, seed, **settings) -> Outcome:
    recipe = {"data": {"root": "/home/somebody"}, "loss": {"name": contender}, "seed": seed}
    said = {"loss": contender, "epochs": settings["epochs"], "crop": settings.get("crop", "none")}
    scores = RetrievalScores.from_dict(
        dict.fromkeys(
            ("recall_at_1", "precision_at_1", "mean_reciprocal_rank", "map_at_r", "r_precision"), 0.5
        )
        | {"queries": 9, "queries_without_positive": 0}
    )
    network = NetworkResult("last epoch", 1, DataSummary(SplitSummary(10, 2)), test=scores)
    result = Result.of([network], recipe=recipe, disclosure=said)
    return outcome(contender, 0.5, seed=seed, result=result)


def test_disclosure_says_what_differs_and_where_and_never_where_a_home_is():
    runs = [told("nca", 0, epochs=4), told("nca", 1, epochs=4), told("npair", 0, epochs=5)]
    found = disclosure(runs)
    assert found.differing is not None
    assert found.equal is not None
    differing = {row.cells[0].text: row.cells[1].text for row in found.differing.rows}
    assert differing["epochs"] == "4: 2 runs (nca);\n5: 1 run (npair)"
    assert "recipe.loss.name" not in differing  # said already, as loss
    assert set(differing) == {"loss", "epochs", "recipe.seed"}
    equal = {row.cells[0].text: row.cells[1].text for row in found.equal.rows}
    assert equal == {
        "crop": "none",
        "data.train.classes": "2",
        "data.train.samples": "10",
        "selection.epoch": "1",
        "selection.rule": "last epoch",
    }
    assert "somebody" not in found.differing.to_csv() + found.equal.to_csv()


def test_disclosure_tells_differences_within_an_experiment_from_those_between():
    small = replace(told("nca", 0, epochs=5), experiment=Experiment("glyphs", "convnet", 8, "standard"))
    found = disclosure([told("nca", 0, epochs=4), small])
    assert found.differing is not None
    assert [row.cells[2].text for row in found.differing.rows] == ["no"]


def test_losses_of_one_average_rank_share_the_headline():
    scores = {"margin": (0.6, 0.5), "nca": (0.5, 0.6), "npair": (0.3, 0.3)}
    outcomes = [
        outcome(name, recall, size=size)
        for name, recalls in scores.items()
        for recall, size in zip(recalls, (64, 128), strict=True)
    ]
    summary = summarise(rank_outcomes(outcomes))
    assert summary.headline.startswith("margin and nca share the best average rank")
    assert "1.50; margin is first in 1 of 2" in summary.paragraphs[0]
