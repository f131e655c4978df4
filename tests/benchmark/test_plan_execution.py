from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_process import InProcess, tiny_plan
from PIL import Image

from nearkin.benchmark import execution
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.plan import Plan
from nearkin.benchmark.progress import Board, BoardObserver
from nearkin.benchmark.worker import is_taken, lock_of
from nearkin.benchmark.workforce import Event, LocalProcesses
from nearkin.training import Run, RunError


@pytest.fixture
def workforce(monkeypatch) -> InProcess:
    """Runs are carried out in this process."""
    monkeypatch.setattr(execution, "_PAUSE", 0)
    hired = InProcess()
    monkeypatch.setattr(execution, "_workforce", lambda *_: hired)
    return hired


def history(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [(entry["event"], entry["run"]) for entry in map(json.loads, lines)]


def results(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in folder.glob("*/result.json")}


def marks(folder: Path) -> dict[str, tuple[int, int]]:
    """What changes when a result is written again."""
    return {
        path.parent.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.glob("*/result.json")
    }


class Audience(BoardObserver):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def begin(self, board):
        self.heard.append("begin")

    def ended(self, board, progress):
        self.heard.append(f"{progress.state} {progress.planned.labels['loss']}")

    def end(self, board):
        self.heard.append("end")


def test_what_is_missing_is_run_and_nothing_else(workforce, glyphs_root, tmp_path):
    first = Plan.parse(tiny_plan(glyphs_root, losses=["nca"]))
    execute_plan(first, tmp_path)
    before = marks(tmp_path)
    audience = Audience()
    board = execute_plan(Plan.parse(tiny_plan(glyphs_root)), tmp_path, observer=audience)
    assert workforce.trained == ["glyphs-convnet-nca-16-seed0", "glyphs-convnet-proxy_anchor-16-seed0"]
    assert audience.heard == ["begin", "done proxy_anchor", "end"]
    assert [progress.state for progress in board.runs] == ["done", "done"]
    assert marks(tmp_path).items() > before.items()
    assert [run["loss"] for run in json.loads((tmp_path / "plan.json").read_text())["runs"]] == [
        "nca",
        "proxy_anchor",
    ]


@pytest.fixture
def plan_with_missing_photos(glyphs_root, tmp_path) -> Plan:
    photos = {"name": "folder", "root": str(tmp_path / "photos"), "transform": "simple_crop"}
    run = {
        "data": {"name": "folder", "recipe": {"data": photos, "network": {"channels": 3}}},
        "recipe": {"sampler": {"batch_size": 4, "images_per_class": 2}, "protocol": {"name": "standard"}},
    }
    keywords = {"num_classes": 60, "images_per_class": 8, "size": 16, "root": str(glyphs_root)}
    plan = tiny_plan(glyphs_root, data_sets=[{"name": "glyphs", **keywords}], losses=["nca"], include=[run])
    del plan["recipe"]["data"]
    return Plan.parse(plan)


def draw_photos(root: Path) -> None:
    for shade, name in enumerate("abcd"):
        (root / name).mkdir(parents=True)
        for number in range(4):
            noise = Image.effect_noise((24, 20), 20 + 40 * shade + number)
            noise.convert("RGB").save(root / name / f"{number}.png")


def test_a_failed_run_stops_nobody_and_is_tried_again(
    workforce, plan_with_missing_photos, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    plan = plan_with_missing_photos
    board = execute_plan(plan, runs)
    assert [progress.state for progress in board.runs] == ["done", "failed"]
    failed = board.runs[1]
    assert "photos" in failed.reason
    assert failed.error_file.read_text().startswith(failed.reason)
    assert "Traceback" in failed.error_file.read_text()
    draw_photos(tmp_path / "photos")
    done_before = marks(runs)
    assert [progress.state for progress in execute_plan(plan, runs).runs] == ["done", "done"]
    assert marks(runs).items() > done_before.items()
    events = [event for event, run in history(runs) if run == failed.planned.name]
    assert events == ["begun", "failed", "begun", "finished"]


def test_another_recipe_in_the_folder_is_refused_before_anything_runs(workforce, glyphs_root, tmp_path):
    execute_plan(Plan.parse(tiny_plan(glyphs_root)), tmp_path)
    changed = tiny_plan(glyphs_root, losses=["triplet", "nca"])
    changed["recipe"]["training"] = {"epochs": 3}
    with pytest.raises(RunError, match=r"training.epochs is 2 there, 3 here"):
        execute_plan(Plan.parse(changed), tmp_path)
    assert len(workforce.trained) == 2


def test_a_run_that_another_process_has_is_waited_for(workforce, glyphs_root, tmp_path, monkeypatch):
    plan = Plan.parse(tiny_plan(glyphs_root))
    theirs = plan.runs()[0]
    run = Run.open(tmp_path / theirs.name, theirs.recipe)
    lock = lock_of(run.path)
    lock.acquire()

    class OtherProcess(BoardObserver):
        def look(self, board: Board) -> None:
            if len(board.in_state("done")) == 1 and lock.is_locked:
                assert board.runs[0].state == "elsewhere"
                run.write_result({"test": {"recall_at_1": 0.5}})
                lock.release()

    monkeypatch.setattr(execution, "_LOOK_EVERY", 0)
    board = execute_plan(plan, tmp_path, observer=OtherProcess())
    assert workforce.trained == [plan.runs()[1].name]
    assert board.runs[0].result == {"test": {"recall_at_1": 0.5}}


def test_a_lost_worker_is_in_the_history_and_ctrl_c_stops_everybody(workforce, glyphs_root, tmp_path):
    plan = Plan.parse(tiny_plan(glyphs_root, losses=["nca"]))
    start = workforce.start
    workforce._news.append(Event(tmp_path / plan.runs()[0].name, "lost", "NodeDiedError"))
    workforce.has_room = lambda: not workforce._news
    execute_plan(plan, tmp_path)
    assert [event for event, _ in history(tmp_path)] == ["lost", "begun", "finished"]

    def interrupted(run: Run) -> bool:
        start(run)
        raise KeyboardInterrupt

    workforce.start, workforce.stopped = interrupted, False
    with pytest.raises(KeyboardInterrupt):
        execute_plan(Plan.parse(tiny_plan(glyphs_root)), tmp_path)
    assert workforce.stopped


def test_a_workers_lock_is_respected_and_threads_fit_the_cores(glyphs_root, tmp_path, monkeypatch):
    planned = Plan.parse(tiny_plan(glyphs_root)).runs()[0]
    run = Run.open(tmp_path / "run", planned.recipe)
    with lock_of(run.path):
        assert is_taken(run.path)
        assert LocalProcesses(1).start(run) is False
    assert not is_taken(run.path)
    monkeypatch.setattr("nearkin.benchmark.workforce.available_cores", lambda: 8)
    assert [(LocalProcesses(jobs).jobs, LocalProcesses(jobs).threads) for jobs in (None, 1, 3, 20)] == [
        (8, 1),
        (1, 8),
        (3, 2),
        (20, 1),
    ]
    assert LocalProcesses(cpus=3).jobs == 2
    with pytest.raises(ValueError, match="jobs=0"):
        LocalProcesses(0)


_BENCHMARK = """
import json, sys
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.plan import Plan
execute_plan(Plan.parse(json.loads(sys.argv[1])), sys.argv[2], jobs=2)
"""


def start_benchmark(plan: dict, folder: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", _BENCHMARK, json.dumps(plan), str(folder)])


def epochs_written(folder: Path) -> int:
    return sum(path.read_text().count("\n") for path in folder.glob("*/metrics.jsonl"))


def wait_until_nobody_trains(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while any(is_taken(path.parent) for path in folder.glob("*/recipe.toml")):
        assert time.monotonic() < deadline, "a worker outlived its benchmark"
        time.sleep(0.02)


def test_a_killed_benchmark_leaves_nobody_behind_and_goes_on(glyphs_root, tmp_path):
    plan = tiny_plan(glyphs_root, losses=["nca"])
    plan["recipe"]["training"] = {"epochs": 40}
    process = start_benchmark(plan, tmp_path / "killed")
    while epochs_written(tmp_path / "killed") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until_nobody_trains(tmp_path / "killed")
    assert results(tmp_path / "killed") == {}
    written = epochs_written(tmp_path / "killed")
    assert start_benchmark(plan, tmp_path / "killed").wait() == 0
    begun = [json.loads(line) for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in begun] == ["begun", "begun", "finished"]
    assert begun[1]["epoch"] >= written - 2  # from its checkpoint, not from the start


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_nothing_runs_twice_and_nothing_is_lost(seed, glyphs_root, tmp_path):
    plan = tiny_plan(glyphs_root, losses=["nca", "proxy_anchor", "triplet"], seeds=[0, 1])
    plan["recipe"]["training"] = {"epochs": 25}
    assert start_benchmark(plan, tmp_path / "whole").wait() == 0
    expected = results(tmp_path / "whole")
    assert len(expected) == 6
    killed, moments = tmp_path / "killed", random.Random(seed)
    done: dict[str, tuple[int, int]] = {}
    kills = 0
    for _ in range(12):
        process = start_benchmark(plan, killed)
        time.sleep(moments.uniform(0.5, 15))
        kills += process.poll() is None
        process.kill()
        process.wait()
        assert done.items() <= marks(killed).items()  # no result was ever written again
        done = marks(killed)
    assert start_benchmark(plan, killed).wait() == 0
    assert kills >= 2
    assert done.items() <= marks(killed).items()
    assert results(killed) == expected
    finished = [run for event, run in history(killed) if event == "finished"]
    assert len(finished) == len(set(finished))
