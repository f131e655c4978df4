from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import tomli_w
from in_process import InProcess, tiny_plan
from PIL import Image

from nearkin.atomic import is_unfinished, write_json
from nearkin.benchmark import execution
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.plan import Plan, PlanError
from nearkin.benchmark.progress import Board, BoardObserver
from nearkin.benchmark.workforce import Event, LocalProcesses
from nearkin.losses.base import registry as loss_registry
from nearkin.training import Run, RunError
from nearkin.training.run import is_taken, lock_of


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


def test_a_batch_that_was_fitted_to_the_data_is_the_same_run_again(workforce, glyphs_root, tmp_path):
    values = tiny_plan(glyphs_root, losses=["triplet"])
    del values["recipe"]["sampler"]
    for _ in range(2):
        (progress,) = execute_plan(Plan.parse(values), tmp_path).runs
        assert progress.state == "done", progress.reason
    assert len(workforce.trained) == 1
    assert progress.result.recipe["sampler"]["batch_size"] < 180
    assert "cannot fill a batch" in progress.result.chosen["sampler.batch_size"]
    values["recipe"]["sampler"] = {"batch_size": 100}
    with pytest.raises(RunError, match="sampler.batch_size"):
        execute_plan(Plan.parse(values), tmp_path)


def test_plug_ins_are_found_in_worker_processes(glyphs_root, tmp_path, monkeypatch):
    """By ``imports``; tests/test_bring_your_own.py has ``module:object`` in workers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loss_registry, "_makers", dict(loss_registry._makers))  # other tests go without
    (tmp_path / "my_plug_in_losses.py").write_text(
        "from nearkin import losses\n"
        "losses.register('my_plug_in_nca')(type('MyNCA', (losses.NCA,), {'__module__': __name__}))\n"
    )
    values = tiny_plan(glyphs_root, losses=["my_plug_in_nca"]) | {"imports": ["my_plug_in_losses"]}
    board = execute_plan(Plan.parse(values), tmp_path / "runs", jobs=2)
    assert [(progress.state, progress.reason) for progress in board.runs] == [("done", "")]


def test_objects_given_in_python_are_refused_before_anything_runs(glyphs_root):
    with pytest.raises(PlanError, match=r"the loss \(pull\) was given as a Python object.*module:object"):
        Plan.parse(tiny_plan(glyphs_root, losses=["nca", "python:pull"]))


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


def test_a_run_that_cannot_even_begin_stops_nobody(workforce, glyphs_root, tmp_path):
    plan = Plan.parse(tiny_plan(glyphs_root))
    start, blocked = workforce.start, plan.runs()[0].name

    def start_unless_blocked(run: Run) -> bool:
        if run.path.name == blocked:
            raise OSError("cannot allocate memory")
        return start(run)

    workforce.start = start_unless_blocked
    board = execute_plan(plan, tmp_path)
    assert [(progress.state, progress.reason) for progress in board.runs] == [
        ("failed", "cannot allocate memory"),
        ("done", ""),
    ]
    assert history(tmp_path)[0] == ("failed", blocked)


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
    run = Run.open(tmp_path / theirs.name, theirs.description())
    run.begin()
    lock = lock_of(run.path)
    lock.acquire()
    half_written = run.path / ".unfinished-metrics-x1y2.jsonl"
    half_written.write_text("")
    assert is_unfinished(half_written)

    scores = dict.fromkeys(
        ("recall_at_1", "precision_at_1", "mean_reciprocal_rank", "map_at_r", "r_precision"), 0.5
    )
    made_up = {
        "recipe": run.terms,
        "networks": [],
        "test": scores | {"queries": 9, "queries_without_positive": 0},
    }

    class OtherProcess(BoardObserver):
        def look(self, board: Board) -> None:
            if len(board.in_state("done")) == 1 and lock.is_locked:
                assert board.runs[0].state == "elsewhere"
                assert half_written.exists()
                write_json(run.result_file, made_up)
                lock.release()

    monkeypatch.setattr(execution, "_LOOK_EVERY", 0)
    board = execute_plan(plan, tmp_path, observer=OtherProcess())
    assert workforce.trained == [plan.runs()[1].name]
    assert board.runs[0].result.test.recall_at[1] == 0.5


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
    run = Run.open(tmp_path / "run", planned.description())
    run.begin()
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


def start_benchmark(plan: dict, folder: Path) -> subprocess.Popen:
    """The real command in a process of its own, as a shell would start it."""
    file = folder.with_suffix(".toml")
    file.write_text(tomli_w.dumps(plan))
    return subprocess.Popen(
        [sys.executable, "-m", "nearkin", "benchmark", str(file), "-o", str(folder), "-j", "2"],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (no threads here)
    )


def epochs_written(folder: Path) -> int:
    return sum(path.read_text().count("\n") for path in folder.glob("*/metrics.jsonl"))


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_until_gone(workers: list[psutil.Process]) -> None:
    for _ in range(3000):  # looks, not seconds: a machine that stands still is no reason to fail
        if not any(worker.is_running() for worker in workers):
            return
        time.sleep(0.02)
    pytest.fail("a worker outlived its benchmark")


def test_a_killed_benchmark_leaves_nobody_behind_and_goes_on(glyphs_root, tmp_path):
    plan = tiny_plan(glyphs_root, losses=["nca"])
    plan["recipe"]["training"] = {"epochs": 40}
    process = start_benchmark(plan, tmp_path / "killed")
    while epochs_written(tmp_path / "killed") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    workers = workers_of(process)
    process.kill()
    process.wait()
    assert len(workers) == 1
    wait_until_gone(workers)
    assert results(tmp_path / "killed") == {}
    written = epochs_written(tmp_path / "killed")
    board = execute_plan(Plan.parse(plan), tmp_path / "killed", jobs=1)
    assert [progress.state for progress in board.runs] == ["done"]
    begun = [json.loads(line) for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in begun] == ["begun", "begun", "finished"]
    assert begun[1]["epoch"] >= written - 2  # from its checkpoint, not from the start


KILLS = (
    "starting",
    "training",
    "writing a checkpoint",
    "finishing a run",
    "between two runs",
    "after the death of a worker",
)
PATIENCE = 240  # seconds for a moment to come, or for a benchmark to end: minutes even on a busy machine
EXIT_CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}


class Reaper:
    """Waits for a moment of a kind in a benchmark's life, seen in what it writes, and ends it then."""

    def __init__(self, folder: Path, process: subprocess.Popen, moments: random.Random) -> None:
        self._folder, self._process, self._moments = folder, process, moments
        self._began = time.time_ns()
        self._epochs, self._results = epochs_written(folder), len(results(folder))
        self.workers: list[psutil.Process] = []

    def end(self, kind: str, number: signal.Signals) -> bool:
        """Whether the benchmark was still alive when the moment came."""
        if kind == "starting":
            time.sleep(self._moments.uniform(0, 5))
        elif kind == "training":
            more = self._moments.randint(1, 4)
            self._wait_for(lambda: epochs_written(self._folder) > self._epochs + more)
            time.sleep(self._moments.uniform(0, 0.2))
        elif kind == "writing a checkpoint":
            self._wait_for(lambda: self._is_new("*/checkpoint/.unfinished-*"))
            time.sleep(self._moments.uniform(0, 0.005))
        elif kind == "finishing a run":
            self._wait_for(lambda: self._is_new("*/checkpoint/network.safetensors"))
            time.sleep(self._moments.uniform(0, 0.08))
        elif kind == "between two runs":
            self._wait_for(lambda: len(results(self._folder)) > self._results)
            time.sleep(self._moments.uniform(0, 1))
        elif kind == "after the death of a worker":
            self._wait_for(lambda: epochs_written(self._folder) > self._epochs + 1)
            self._kill_a_worker()
        alive = self._process.poll() is None
        self.workers = workers_of(self._process)
        self._process.send_signal(number)
        code = self._process.wait(PATIENCE)
        assert not alive or kind == "starting" or code in {EXIT_CODES[number], 0}
        return alive

    def _wait_for(self, moment: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE
        while not moment() and self._process.poll() is None:
            if time.monotonic() > ends:
                self._process.kill()
                pytest.fail(f"the moment did not come in {PATIENCE} seconds: {history(self._folder)}")
            time.sleep(0.001)

    def _is_new(self, pattern: str) -> bool:
        for path in self._folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime_ns > self._began:
                    return True
        return False

    def _kill_a_worker(self) -> None:
        failures = [event for event, _ in history(self._folder)].count("failed")
        for worker in workers_of(self._process)[:1]:
            worker.kill()
            self._wait_for(lambda: [event for event, _ in history(self._folder)].count("failed") > failures)


def rows(folder: Path) -> dict[str, list[str]]:
    """What every run wrote about its epochs: an epoch that is trained again takes another time."""
    return {path.parent.name: path.read_text().splitlines() for path in folder.glob("*/metrics.jsonl")}


@pytest.fixture(scope="module")
def long_plan(glyphs_root) -> dict:
    plan = tiny_plan(glyphs_root, losses=["nca", "proxy_anchor", "triplet"], seeds=[0, 1])
    plan["recipe"]["training"] = {"epochs": 10}
    return plan


@pytest.fixture(scope="module")
def undisturbed(long_plan, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("undisturbed") / "runs"
    assert start_benchmark(long_plan, folder).wait(PATIENCE) == 0
    return results(folder)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_nothing_runs_twice_and_nothing_is_lost(seed, long_plan, undisturbed, tmp_path):
    folder, moments = tmp_path / "killed", random.Random(seed)
    done: dict[str, tuple[int, int]] = {}
    seen: dict[str, list[str]] = {}
    kills, halves, workers = [], set(), []
    for kind in moments.sample(KILLS, k=len(KILLS)):
        process = start_benchmark(long_plan, folder)
        reaper = Reaper(folder, process, moments)
        number = moments.choice(list(EXIT_CODES))
        if reaper.end(kind, number):
            kills.append(kind)
        workers += reaper.workers
        if moments.random() < 0.5:  # else the next benchmark begins while the workers of this one may live
            wait_until_gone(workers)
        halves |= set(folder.rglob(".unfinished-*"))
        print(f"{kind}: {number.name}, {epochs_written(folder)} epochs, {len(results(folder))} results")
        assert done.items() <= marks(folder).items()  # no result was ever written again
        for name, before in seen.items():  # of a run, the epoch after the last checkpoint may be
            assert rows(folder)[name][: len(before) - 1] == before[:-1]
        done, seen = marks(folder), rows(folder)
    assert start_benchmark(long_plan, folder).wait(PATIENCE) == 0
    wait_until_gone(workers)
    print(f"{len(kills)} kills, {len(halves)} files half written")
    assert len(kills) >= len(KILLS) - 1
    assert done.items() <= marks(folder).items()
    assert results(folder) == undisturbed
    assert len(undisturbed) == 6
    assert not list(folder.glob("*/**/.unfinished-*"))
    finished = [run for event, run in history(folder) if event == "finished"]
    assert len(finished) == len(set(finished))
