"""Equal budgets: every loss of a plan is tuned on validation classes, then tested; killed, it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
import tomli_w
from in_process import InProcess, tiny_plan
from poison import poison_test_splits

from nearkin.benchmark import execution, tuned
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.found import Found, TriedValues, read_found
from nearkin.benchmark.plan import Plan, PlanError
from nearkin.benchmark.searching import carry_out_search
from nearkin.tournament.outcomes import read_outcomes
from nearkin.training import RunError

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

BUDGET = {"trials": 4, "sampler": "halving"}


class Done:
    """A process that is over as soon as it is started."""

    stdin = stdout = None

    def __init__(self, path: Path, trials: int, *, threads: int) -> None:
        self.code = carry_out_search(path, trials)

    def poll(self) -> int:
        return self.code

    def kill(self) -> None:
        pass

    wait = kill


@pytest.fixture
def workforce(monkeypatch) -> InProcess:
    """Searches and runs are carried out in this process."""
    monkeypatch.setattr(execution, "_PAUSE", 0)
    monkeypatch.setattr(tuned, "_PAUSE", 0)
    monkeypatch.setattr(tuned, "start_search", Done)
    hired = InProcess()
    monkeypatch.setattr(execution, "_workforce", lambda *_: hired)
    return hired


def test_losses_get_equal_steps_on_validation_classes_and_test_classes_are_opened_by_runs_only(
    workforce, glyphs_root, tmp_path, monkeypatch
):
    vault = poison_test_splits(monkeypatch)
    opened_by: list[int] = []
    start = InProcess.start

    def counted(self, run):
        before = vault.opened
        assert (tmp_path / "tuning" / "found.json").exists()  # all searches are over
        taken = start(self, run)
        opened_by.append(vault.opened - before)
        return taken

    monkeypatch.setattr(InProcess, "start", counted)
    values = tiny_plan(glyphs_root, losses=["triplet", "proxy_anchor"], seeds=[0, 1], tuning=BUDGET)
    values["recipe"]["sampler"] = {"name": "balanced", "batch_size": 40}
    plan = Plan.parse(values)
    board = execute_plan(plan, tmp_path)
    assert [progress.state for progress in board.runs] == ["done"] * 8
    assert opened_by == [1] * 8
    assert (vault.opened, vault.unsealed) == (8, 0)

    found = read_found(tmp_path / "tuning" / "found.json")
    assert len({one.steps for one in found.values()}) == 1
    assert {len(one.trials) for one in found.values()} == {4}
    steps = defaultdict(int)  # what the trials' own metrics say, not what the searches do
    for metrics in (tmp_path / "tuning").glob("*/trials/*/metrics.jsonl"):
        steps[metrics.parents[2].name] += len(metrics.read_text().splitlines()) - 1
    assert len(set(steps.values())) == 1

    by_name = {progress.planned.name: progress for progress in board.runs}
    triplet = found["glyphs-convnet-triplet-16"]
    assert set(triplet.values) == {"loss.margin", "optimizer.lr", "schedule.warmup"}
    tuned_run = by_name["glyphs-convnet-triplet-16-tuned-seed1"].result.recipe
    assert tuned_run["loss"]["margin"] == triplet.values["loss.margin"]
    assert tuned_run["optimizer"]["lr"] == triplet.values["optimizer.lr"]
    default = by_name["glyphs-convnet-triplet-16-seed1"].result.recipe
    assert (default["loss"]["margin"], default["seed"], tuned_run["seed"]) == (0.1, 1, 1)
    assert tuned_run["protocol"] == default["protocol"]

    outcomes = read_outcomes([tmp_path])
    assert outcomes.skipped == []
    assert sorted(one.variant for one in outcomes.outcomes) == ["default"] * 4 + ["tuned"] * 4
    assert {one.contender for one in outcomes.outcomes} == {"triplet", "proxy_anchor"}
    assert {one.found.name for one in outcomes.outcomes if one.loss == "triplet"} == {triplet.name}

    again = execute_plan(plan, tmp_path)
    assert len(workforce.trained) == 8
    assert len(again.in_state("done")) == 8
    with pytest.raises(RunError, match="holds another search"):
        execute_plan(Plan.parse(values | {"tuning": BUDGET | {"ranges": ["loss.margin=0:0.5"]}}), tmp_path)

    shipped = {key: value for key, value in values.items() if key != "tuning"}
    shipped |= {"found": str(tmp_path / "tuning" / "found.json"), "seeds": [0]}
    (tmp_path / "elsewhere").mkdir()
    board = execute_plan(Plan.parse(shipped), tmp_path / "elsewhere")
    assert [progress.planned.name for progress in board.runs] == [
        "glyphs-convnet-triplet-16-tuned-seed0",
        "glyphs-convnet-proxy_anchor-16-tuned-seed0",
    ]
    same = by_name["glyphs-convnet-triplet-16-tuned-seed0"].result.test
    assert board.runs[0].result.test == same


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning": {"sampler": "tpe"}}, "give either trials or steps"),
        ({"tuning": {"trials": 4, "steps": 100}}, "give either trials or steps"),
        ({"tuning": {"trials": 4, "smapler": "tpe"}}, "unknown key tuning.smapler: did you mean sampler"),
        ({"tuning": {"trials": 4, "sampler": "grid"}}, "tuning.sampler"),
    ],
)
def test_budgets_that_cannot_be(glyphs_root, changes, message):
    with pytest.raises(PlanError, match=message):
        Plan.parse(tiny_plan(glyphs_root, **changes))


@pytest.mark.parametrize(
    ("changes", "keywords", "message"),
    [
        ({"tuning": BUDGET}, {"folder": "s3://bucket/runs"}, "needs a local folder"),
        ({"tuning": BUDGET}, {"ray": "auto"}, "searches run on this machine"),
        ({"tuning": {"trials": 4, "ranges": ["loss.x=0:1"]}}, {}, "nca-16: --range loss.x=0:1"),
        ({"tuning": {"steps": 1}}, {}, "nca-16: tuning.steps=1 is less than one trial"),
        ({"found": "nowhere.json"}, {}, "found=nowhere.json: .* does not hold what a search found"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_runs(glyphs_root, tmp_path, changes, keywords, message):
    plan = Plan.parse(tiny_plan(glyphs_root, losses=["nca"], **changes))
    folder = keywords.pop("folder", tmp_path / "runs")
    with pytest.raises(PlanError, match=message):
        execute_plan(plan, folder, **keywords)


def test_a_loss_whose_search_fails_stops_nobody(workforce, glyphs_root, tmp_path):
    values = tiny_plan(glyphs_root, tuning={"trials": 2, "sampler": "random", "defaults": False})
    values["adjust"] = [{"where": {"loss": "nca"}, "recipe": {"optimizer": {"lr": 1.0, "weight_decay": 1e6}}}]
    board = execute_plan(Plan.parse(values), tmp_path)
    told = {progress.planned.name: progress.state for progress in board.runs}
    assert told["glyphs-convnet-proxy_anchor-16-tuned-seed0"] == "done"
    assert told["glyphs-convnet-nca-16"] == "failed"
    assert any("came to its end" in one.reason for one in board.in_state("failed"))


def test_settings_alone_are_searched_on_request(workforce, glyphs_root, tmp_path, nearkin, monkeypatch):
    vault = poison_test_splits(monkeypatch)
    plan = tmp_path / "plan.toml"
    plan.write_text(tomli_w.dumps(tiny_plan(glyphs_root, losses=["triplet"])))
    command = ["benchmark", plan, "-o", tmp_path / "runs", "--search-only"]
    code, _, err = nearkin(*command)
    assert (code, err.count("\n")) == (2, 1)
    assert "has no budget to search with" in err
    code, out, _ = nearkin(*command, "--set", "tuning={trials=2}")
    assert code == 0
    assert "on validation classes" in out
    assert list(read_found(tmp_path / "runs" / "tuning" / "found.json")) == ["glyphs-convnet-triplet-16"]
    assert (vault.opened, workforce.trained) == (0, [])


def found(scores: list[float | None], **values: float) -> Found:
    space = {"loss.margin": {"kind": "range", "low": 0.0, "high": 1.0, "step": 0.1, "log": False}}
    space["loss.lr"] = {"kind": "range", "low": 1e-4, "high": 1e-2, "step": None, "log": True}
    trials = [
        TriedValues({"loss.margin": 0.1 * number}, score, 8, 80, "failed" if score is None else "done")
        for number, score in enumerate(scores)
    ]
    best = max(score for score in scores if score is not None)
    return Found(
        "x", values or {"loss.margin": 0.5}, best, {"loss.margin": 0.0}, space, "tpe", "Recall@1", trials
    )


def test_how_flat_an_optimum_is_and_how_far_other_draws_would_move_it():
    one = found([0.5, 0.9, 0.895, 0.6, None])
    assert (one.as_good, one.steps) == (2, 400)
    assert one.behind == pytest.approx(0.9 - (0.895 + 0.6) / 2)
    assert one.own_score == 0.5
    # Of 4 scores drawn 4 times the best is missed with chance (3/4)^4, then the second with (2/3)^4 …
    ranked = [0.9, 0.895, 0.6, 0.5]
    chances = [1 - 0.75**4, 0.75**4 - 0.5**4, 0.5**4 - 0.25**4, 0.25**4]
    mean = sum(c * s for c, s in zip(chances, ranked, strict=True))
    exact = sum(c * (s - mean) ** 2 for c, s in zip(chances, ranked, strict=True)) ** 0.5
    assert one.spread() == pytest.approx(exact, rel=0.1)
    assert found([0.5, 0.6]).spread() is None


def test_the_edge_of_a_search_space():
    assert found([0.5], **{"loss.margin": 1.0, "loss.lr": 1e-3}).at_the_edge() == {"loss.margin": 1.0}
    assert found([0.5], **{"loss.margin": 0.0, "loss.lr": 1e-2}).at_the_edge() == {"loss.lr": 1e-2}
    assert found([0.5], **{"loss.margin": 0.5, "loss.lr": 1.02e-4}).at_the_edge() == {"loss.lr": 1.02e-4}


def test_a_file_of_what_was_found_is_read_back(tmp_path):
    one = found([0.5, 0.6, None])
    tuned.write_found(tmp_path / "found.json", [one], plan="p", tuning={})
    assert read_found(tmp_path / "found.json") == {"x": one}


def test_the_plan_on_the_page_is_one():
    page = Path(__file__).parents[2] / "docs" / "equal_budgets.md"
    (block,) = re.findall(r"^```toml\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    plan = Plan.parse(tomllib.loads(block))
    assert (plan.tuning.trials, len(plan.runs())) == (16, 9)


def _benchmark(plan: Path, output: Path) -> subprocess.Popen:
    code = "from nearkin.cli import main; main()"
    words = ["benchmark", plan, "-o", output, "--jobs", "2"]
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_killed_tuned_tournament_goes_on_without_repeating_a_trial(glyphs_root, tmp_path):
    values = tiny_plan(glyphs_root, seeds=[0], tuning={"trials": 6, "sampler": "halving"})
    values["recipe"]["training"] = {"epochs": 4}
    plan = tmp_path / "plan.toml"
    plan.write_text(tomli_w.dumps(values))
    output = tmp_path / "killed"
    for enough in ("tuning/*/trials/0002/metrics.jsonl", "*-tuned-seed0/metrics.jsonl"):
        process = _benchmark(plan, output)
        while not list(output.glob(enough)):
            time.sleep(0.05)
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(2)  # workers notice
        if enough.startswith("tuning"):
            before = {path: path.stat().st_mtime_ns for path in output.glob("tuning/*/trials/0000/run.json")}
            assert before
    assert _benchmark(plan, output).wait() == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nobody began these anew
    assert _benchmark(plan, tmp_path / "whole").wait() == 0
    first, second = (
        {
            path.parent.name: json.loads(path.read_text())["test"]
            for path in folder.glob("*-seed0/result.json")
        }
        for folder in (output, tmp_path / "whole")
    )
    assert len(first) == 4
    assert first == second
    assert read_found(output / "tuning" / "found.json") == read_found(tmp_path / "whole/tuning/found.json")
