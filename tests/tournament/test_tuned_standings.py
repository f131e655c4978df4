"""Losses that were tuned: ranked by what was found, default settings beside, and what to doubt about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearkin.benchmark.found import Found, TriedValues, write_found
from nearkin.benchmark.plan import Plan
from nearkin.tournament.comparing import compare
from nearkin.tournament.playing import plan_for, play
from nearkin.tournament.report import write_report
from nearkin.tournament.tuning_effects import effects, order_agreement, rank_share, settings_warnings

NOISE = {"triplet": (1.6, 0.7), "contrastive": (0.9, 0.9), "angular": (1.2, 1.15)}  # default, tuned
VALUES = {"triplet": {"loss.margin": 0.5}, "contrastive": {"loss.margin": 1.0}, "angular": {}}


@pytest.fixture
def tuned_runs(make_run, tmp_path) -> Path:
    """Three losses, each with default settings and tuned, with two seeds."""
    folder, runs, found = tmp_path / "runs", [], []
    for loss, (before, after) in NOISE.items():
        values = VALUES[loss] | {"optimizer.lr": 0.001}
        for seed in (0, 1):
            for settings, noise in (("default", before), ("tuned", after)):
                path = make_run(loss, noise=noise, seed=seed, **(values if settings == "tuned" else {}))
                name = f"glyphs-{loss}{'-tuned' if settings == 'tuned' else ''}-seed{seed}"
                path.rename(folder / name)
                runs.append({"name": name, "loss": loss, "seed": str(seed), "settings": settings})
        space = {
            "optimizer.lr": {"kind": "range", "low": 1e-4, "high": 1e-2, "step": None, "log": True},
            "loss.margin": {"kind": "range", "low": 0.0, "high": 1.0, "step": 0.1, "log": False},
        }
        trials = [TriedValues({"optimizer.lr": 0.002}, 0.7 + 0.01 * n, 8, 96, "done") for n in range(8)]
        own = {"optimizer.lr": 0.002}
        found.append(Found(f"glyphs-{loss}", values, 0.77, own, space, "halving", "Recall@1", trials))
    (folder / "plan.json").write_text(json.dumps({"plan": "p", "runs": runs}))
    write_found(folder / "tuning" / "found.json", found, plan="p", tuning={"trials": 8})
    (folder / "tuning" / "glyphs-triplet" / "trials" / "0000").mkdir(parents=True)
    (folder / "tuning" / "glyphs-triplet" / "search.json").write_text("{}")
    (folder / "tuning" / "glyphs-triplet" / "trials" / "0000" / "recipe.toml").write_text("")
    return folder


def test_what_was_tuned_is_ranked_and_default_settings_stand_beside(tuned_runs):
    standings = compare(tuned_runs)
    assert standings.skipped == []  # the trials of a search are no runs
    (board,) = standings.leaderboards
    assert [place.contender for place in board.places] == ["triplet", "contrastive", "angular"]
    assert [place.seeds for place in board.places] == [2, 2, 2]
    (before,) = standings.defaults.leaderboards
    assert [place.contender for place in before.places] == ["contrastive", "angular", "triplet"]
    assert not any("Unequal terms" in note for note in board.notes)  # it was searched on equal terms
    found = effects(board, before, "recall_at_1")
    assert [(one.contender, one.default_rank, one.tuned_rank) for one in found] == [
        ("triplet", 3, 1),
        ("contrastive", 1, 2),
        ("angular", 2, 3),
    ]
    assert rank_share(found) == pytest.approx(4 / 3)
    assert order_agreement(found) == pytest.approx(-1 / 3)
    assert standings.doubts.boards[0].spreads["triplet"].tuning > 0
    told = "\n".join(standings.doubt_notes)
    assert "most for triplet (+" in told
    assert "moved a loss by 1.3 places; Kendall's τ of both orders is -0.33" in told


def test_a_loss_at_the_edge_or_still_rising_is_warned_of(tuned_runs):
    name = "glyphs-angular-tuned-seed"
    for seed in (0, 1):
        rows = [{"epoch": e, "lr": 0.1, "recall_at_1": 0.05 * e} for e in range(9)]
        (tuned_runs / f"{name}{seed}" / "metrics.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    (board,) = compare(tuned_runs).leaderboards
    edge, rising = settings_warnings(board)
    assert edge.endswith("better settings may lie beyond: contrastive (loss.margin = 1).")
    assert rising.startswith("Not converged")
    assert rising.endswith(": angular.")


def test_a_loss_that_was_not_tuned_among_those_that_were_is_named(tuned_runs, make_run):
    path = make_run("nca", noise=1.0)
    path.rename(tuned_runs / "glyphs-nca-seed0")
    (board,) = compare(tuned_runs).leaderboards
    assert settings_warnings(board)[0].endswith("among those that were: nca.")


def test_the_report_says_who_wins_how_sure_and_what_tuning_changed(tuned_runs, tmp_path):
    page = write_report(compare(tuned_runs), tmp_path / "report", pictures=False)
    text = page.read_text()
    head = text[: text.index('class="facts"')]
    for question in ("How sure", "What tuning changed"):
        assert f"<dt>{question}</dt>" in head
    assert 'id="doubts"' in text
    assert 'id="tuning"' in text
    table = (tmp_path / "report" / "tables" / "tuning_1.csv").read_text().splitlines()
    assert table[0].startswith("loss,tuned Recall@1 %,default %,")
    assert table[1].startswith("triplet,")
    assert table[1].endswith(",1.0,3.0,2.0")
    searches = (tmp_path / "report" / "tables" / "searches_1.csv").read_text()
    assert "0.0001 to 0.01 (log)" in searches
    assert ",768\n" in searches
    assert "How sure" in (tmp_path / "report" / "report.md").read_text()


def test_a_tournament_is_tuned_on_request():
    plan = plan_for("glyphs", losses=["triplet"], settings={}, tune=True)
    assert (plan.tuning.trials, plan.tuning.sampler) == (16, "halving")
    assert plan_for("glyphs", losses=["triplet"], settings={}, tune=5).tuning.trials == 5
    planned = Plan.parse({"losses": ["triplet"], "tuning": {"steps": 900, "sampler": "tpe"}})
    assert plan_for(planned, settings={}, tune=True).tuning.steps == 900
    told = plan_for(planned, settings={}, tune=7).tuning
    assert (told.trials, told.steps, told.sampler) == (7, None, "tpe")
    assert plan_for("glyphs", losses=["triplet"], settings={}).tuning is None


def test_runs_that_are_there_cannot_be_tuned(tuned_runs):
    with pytest.raises(ValueError, match="runs are ranked as they are"):
        play(tuned_runs, tune=True)
