from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from filelock import FileLock
from poison import poison_test_splits
from running import new_run

from nearkin.protocols import seal
from nearkin.recipe import Recipe
from nearkin.recipe.searching import searched
from nearkin.training import Observer, Run, RunError
from nearkin.tuning.drawing import draw
from nearkin.tuning.plan import plan_search
from nearkin.tuning.search import Search, SearchObserver
from nearkin.tuning.strategy import importances
from nearkin.tuning.trial import run_trial


@pytest.fixture
def recipe(small_recipe):
    return Recipe.parse(small_recipe | {"training": {"epochs": 3}})


class Heard(SearchObserver):
    def __init__(self) -> None:
        self.trials, self.steps = [], 0

    def trial_end(self, trial):
        self.trials.append(trial)

    def step(self, **_):
        self.steps += 1


def test_values_and_epoch_come_from_validation_and_test_is_read_once(recipe, tmp_path, monkeypatch):
    vault = poison_test_splits(monkeypatch)
    search = Search.open(tmp_path / "search", plan_search(searched(recipe, ["optimizer.lr=1e-4:1e-2:log"])))
    heard = Heard()
    records = search.run(4, observer=heard)
    assert heard.trials == records
    assert [record.number for record in records] == [0, 1, 2, 3]
    assert records[0].values == {"loss.alpha": 32.0, "loss.margin": 0.1, "optimizer.lr": 2e-3}
    assert (vault.opened, vault.unsealed) == (0, 0)

    told = str(search)
    assert told.startswith(f"{search.path}\nbest of 4 trials: loss.alpha=")
    assert told.endswith(" % on validation classes")
    assert repr(search) == f"Search({str(search.path)!r}, 4 trials)"
    assert [row["score"] for row in search.rows()] == [record.score for record in records]
    assert search.rows()[0]["optimizer.lr"] == 2e-3

    best = max(records, key=lambda record: (record.score, record.map_at_r, -record.number))
    metrics = Run.existing(search.trial_path(best.number)).metrics()[1:]
    assert best.score == max(row["recall_at_1"] for row in metrics)
    by_score = max(metrics, key=lambda row: (row["recall_at_1"], row["map_at_r"], row["epoch"]))
    assert (best.epoch, best.map_at_r) == (by_score["epoch"], by_score["map_at_r"])

    begun = new_run(search.path / "best", search.plan.searched.of_retraining({"loss.alpha": 3.0}, 1))
    begun.begin()
    assert search.best_run().terms != begun.terms  # had been begun before better values were found
    finished = search.finish()
    assert (vault.opened, vault.unsealed) == (1, 0)
    used = finished.result.recipe
    assert used["loss"]["alpha"] == best.values["loss.alpha"]
    assert used["optimizer"]["lr"] == best.values["optimizer.lr"]
    assert used["seed"] == recipe.seed
    assert finished.result.epoch == best.epoch
    assert finished.result.data.train.classes == 30  # training and validation classes

    search.run(4)
    search.finish()
    assert (vault.opened, vault.unsealed) == (1, 0)
    with pytest.raises(RunError, match="has opened its test classes after 4 trials"):
        search.run(5)
    trial = search.trial_path(0)
    assert sorted(file.name for file in trial.iterdir()) == [
        "metrics.jsonl",
        "model.json",
        "recipe.toml",
        "run.json",
        "threshold.json",
    ]
    assert [picture.name for picture in draw(search)] == [
        "history.png",
        "importance.png",
        "slices.png",
    ]


class Killed(BaseException):
    pass


class KillInTrial(SearchObserver):
    """Breaks off in the last epoch of a trial, as a kill would: nobody is told."""

    def __init__(self, trial: int) -> None:
        self.left = trial

    def step(self, *, epoch, **_):
        if self.left == 0 and epoch == 2:
            raise Killed

    def trial_end(self, trial):
        self.left -= 1


def test_a_search_that_was_killed_ends_as_if_it_had_not_been(recipe, tmp_path):
    plan = plan_search(searched(recipe), sampler="random", pruner="none")
    whole = Search.open(tmp_path / "whole", plan).run(3)
    search = Search.open(tmp_path / "killed", plan)
    with pytest.raises(Killed):
        search.run(3, observer=KillInTrial(1))
    (search.path / "trials" / "0002").mkdir()  # a number was taken, and then it was killed again
    heard = Heard()
    assert Search.open(tmp_path / "killed", plan).run(3, observer=heard) == whole
    batches = math.ceil(21 * 8 / 40)
    assert heard.steps in ((1 + 3) * batches, (1 + 3) * (batches - 1))  # one epoch of 1, three of 2


def test_a_hopeless_trial_is_given_up_and_its_past_is_told_once(recipe, tmp_path):
    trial = recipe.changed({"protocol.validation_share": 0.3})
    task = trial.build()
    data, _ = seal(task.data)
    told = []

    def hopeless_after(last):
        def report(epoch, score):
            told.append((epoch, score))
            return epoch == last

        return report

    run = new_run(tmp_path / "run", trial)
    outcome = run_trial(task, run, data, hopeless_after(2), Observer())
    assert outcome.given_up
    assert (outcome.epoch, outcome.score) == (2, run.metrics()[2]["recall_at_1"])
    assert len(run.metrics()) == 3
    first, told[:] = list(told), []
    assert not run_trial(task, run, data, hopeless_after(9), Observer()).given_up
    assert told[:2] == first
    assert [epoch for epoch, _ in told] == [1, 2, 3]


def test_a_trial_that_breaks_is_a_failure_and_the_search_goes_on(recipe, tmp_path):
    ranges = ["loss.margin=0.1", "loss.alpha=32", "optimizer.lr=0.5", "optimizer.weight_decay=0.0,1e6"]
    plan = plan_search(searched(recipe, ranges), sampler="grid", pruner="hyperband")
    search = Search.open(tmp_path / "search", plan)
    records = search.run(50)  # the grid has two points
    assert sorted(record.state for record in records) == ["done", "failed"]
    failed = next(record for record in records if record.state == "failed")
    assert failed.values["optimizer.weight_decay"] == 1e6
    assert "checkpoint" in failed.error
    assert search.best().state == "done"
    assert search.run(50) == records
    with search.study() as study:
        assert importances(study) == {}


def test_a_search_in_which_nothing_works_says_why(recipe, tmp_path):
    search = Search.open(
        tmp_path / "search",
        plan_search(searched(recipe, ["optimizer.lr=1.0", "optimizer.weight_decay=1e6,9e5"])),
    )
    search.run(1)
    with pytest.raises(RunError, match="no trial of .* came to its end: epoch"):
        search.best()


def test_two_searches_do_not_share_a_directory(recipe, tmp_path):
    plan = plan_search(searched(recipe))
    search = Search.open(tmp_path / "search", plan)
    with (
        FileLock(tmp_path / "search" / "search.lock"),
        pytest.raises(RunError, match="another process is searching"),
    ):
        search.run(1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="holds other files and no search"):
        Search.open(tmp_path / "other", plan)


def _tune(recipe: Recipe, output, *options: str) -> subprocess.Popen:
    file = output.with_suffix(".toml")
    file.write_text(recipe.to_toml())
    code = "from nearkin.cli import main; main()"
    words = ["tune", file, "-o", output, "--trials", "6", "--sampler", "random", "--search-only", *options]
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_workers_die_with_a_killed_search_and_it_goes_on(recipe, tmp_path):
    recipe = recipe.changed({"training.epochs": 20})
    output = tmp_path / "killed"
    process = _tune(recipe, output, "--jobs", "2", "--pruner", "none")
    while not (output / "trials" / "0002" / "metrics.jsonl").exists():
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1)
    before = {file: file.stat().st_mtime_ns for file in output.rglob("*")}
    time.sleep(3)
    assert {file: file.stat().st_mtime_ns for file in output.rglob("*")} == before
    assert _tune(recipe, output, "--jobs", "2", "--pruner", "none").wait() == 0
    together = json.loads((output / "trials.json").read_text())
    assert _tune(recipe, tmp_path / "alone", "--pruner", "none").wait() == 0
    alone = json.loads((tmp_path / "alone" / "trials.json").read_text())
    assert [trial["values"] for trial in together] == [trial["values"] for trial in alone]
    assert [trial["state"] for trial in together] == ["done"] * 6


@pytest.mark.parametrize("there", [False, True], ids=["new folder", "empty folder"])
def test_a_search_that_cannot_start_leaves_nothing_and_blocks_nothing(recipe, tmp_path, there):
    path = tmp_path / "searches" / "one"
    if there:
        path.mkdir(parents=True)
    settings = {"loss.name": "multi_similarity", "sampler.batch_size": 180}
    search = Search.open(
        path, plan_search(searched(recipe.changed(settings), ["optimizer.lr=1e-4:1e-2:log"]))
    )
    with pytest.raises(ValueError, match="batch_size=180 with 5 images per class needs 36 classes"):
        search.run(1)
    assert list(tmp_path.rglob("*")) == ([path.parent, path] if there else [])
    mended = recipe.changed(settings | {"sampler.batch_size": 40, "training.epochs": 1})
    plan = plan_search(searched(mended, ["optimizer.lr=1e-4:1e-2:log"]))
    assert len(Search.open(path, plan).run(1)) == 1
