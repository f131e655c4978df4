from __future__ import annotations

import json
import shutil

import pytest

from nearkin.tournament.outcomes import Experiment, read_outcomes


def test_a_run_is_read_with_all_that_it_left(make_run, labels):
    path = make_run("triplet", noise=0.5, seed=3)
    ((outcome,), skipped) = read_outcomes([path])
    assert not skipped
    assert outcome.experiment == Experiment("glyphs", "convnet", 64, "fixed_validation")
    assert (outcome.contender, outcome.kind, outcome.seed, outcome.path) == ("triplet", "run", 3, path)
    written = json.loads((path / "result.json").read_text())["test"]
    assert outcome.scores["recall_at_1"] == written["recall_at_1"]
    assert 0 < outcome.scores["recall_at_1"] < 1
    assert "queries" not in outcome.scores  # a count, not a score
    assert outcome.curve == [{"epoch": 0, "lr": 0.1, "recall_at_1": 0.1}]
    assert outcome.cost["peak_memory_bytes"] == 10**6
    assert outcome.disclosure == {"pooling": "avg"}
    scores, kept_labels = outcome.queries()
    assert scores.per_query.scores([1])["recall_at_1"].mean() == pytest.approx(written["recall_at_1"])
    assert kept_labels.equal(labels)


def test_folders_are_searched_and_a_run_counts_once(make_run, tmp_path):
    runs = [make_run(loss, noise=0.5) for loss in ("triplet", "npair")]
    found = read_outcomes([tmp_path, runs[0], tmp_path / "runs"]).outcomes
    assert sorted(outcome.contender for outcome in found) == ["npair", "triplet"]


def test_what_cannot_be_compared_is_listed_with_its_reason(make_run, tmp_path):
    whole, unfinished, cut, odd, other = (
        make_run("triplet", noise=0.5, seed=seed, folder="some") for seed in range(5)
    )
    (unfinished / "result.json").unlink()
    (cut / "result.json").write_text('{"test": {"recall')
    (odd / "result.json").write_text('{"validation": null}')
    (other / "run.json").write_text("[")
    outcomes, skipped = read_outcomes([tmp_path])
    assert [outcome.path for outcome in outcomes] == [whole]
    reasons = dict(skipped)
    assert reasons[unfinished] == "not finished"
    assert "JSON" in reasons[cut] or "Unterminated" in reasons[cut]
    assert reasons[odd] == "lacks 'recipe'"
    assert "cannot be read" in reasons[other]


def test_a_result_of_something_else_is_listed_too(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "result.json").write_text('{"answer": 42}')
    assert [path.name for path, _ in read_outcomes([tmp_path]).skipped] == ["x"]


def test_a_path_that_is_not_there_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a directory"):
        read_outcomes([tmp_path / "nowhere"])


def test_folds_are_a_part_of_their_run(make_run, tmp_path):
    whole = make_run("triplet", noise=0.5)
    folds = [make_run("triplet", noise=0.6, seed=seed, folder="folds") for seed in (1, 2)]
    for number, fold in enumerate(folds):
        shutil.move(fold, whole / f"fold-{number:02d}")
    result = json.loads((whole / "result.json").read_text())
    (network,) = result["networks"]
    result["networks"] = [{**network, "run": "fold-00"}, {**network, "run": "fold-01"}]
    (whole / "result.json").write_text(json.dumps(result))
    (outcome,) = read_outcomes([tmp_path]).outcomes
    assert len(outcome.parts()) == 1  # its own queries
    (whole / "test_queries.safetensors").unlink()
    assert len(outcome.parts()) == 2
    (whole / "fold-01" / "test_queries.safetensors").unlink()
    assert outcome.parts() == []
