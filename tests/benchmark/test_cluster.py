"""A plan on a real Ray cluster of this machine, one of whose nodes is killed."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import psutil
import pytest
from in_process import tiny_plan

from nearkin.benchmark import execution
from nearkin.benchmark.cluster import RayTasks
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.plan import Plan
from nearkin.benchmark.progress import Board, BoardObserver, RunProgress
from nearkin.training.run import is_taken

ray = pytest.importorskip("ray", reason="needs the extra ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def scratch(monkeypatch) -> Iterator[Path]:
    """Where the nodes keep the runs at work; pytest's folders have names too long for Ray's sockets."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def cluster(scratch, monkeypatch):
    """A head that carries out nothing, and two nodes with a core and a pretended graphics processor."""
    monkeypatch.setenv("RAY_worker_niceness", "0")  # by default everything else on the machine comes first
    monkeypatch.setattr(execution, "_LOOK_EVERY", 0.2)
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def workers(node) -> Iterator[tuple[str, dict[str, str]]]:
    """The command and the variables of every process that carries out a run on a node."""
    (raylet,) = node.all_processes["raylet"]
    for process in psutil.Process(raylet.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end in this moment
            command, variables = " ".join(process.cmdline()), process.environ()
            if "nearkin.benchmark.worker" in command:
                yield command, variables


@pytest.mark.parametrize(
    ("cpus", "gpus", "jobs"),
    [(1, 0, 7), (0.1, 0, 70), (2, 0, 3), (2, 1, 2), (1, 0.5, 4), (4, 1, 1)],
)
def test_every_node_has_room_for_whole_runs_only(cpus, gpus, jobs, monkeypatch):
    resources = [{"CPU": 4.0, "GPU": 2.0, "memory": 1e9}, {"CPU": 3.0}, {}]
    nodes = [{"Alive": True, "Resources": one} for one in resources] + [
        {"Alive": False, "Resources": {"CPU": 9}}
    ]
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert RayTasks("auto", cpus=cpus, gpus=gpus).jobs == jobs
    nodes.clear()
    with pytest.warns(
        UserWarning, match=rf"no node of the cluster has cpus={cpus} and gpus={gpus}: runs wait"
    ):
        assert RayTasks("auto", cpus=cpus, gpus=gpus).jobs == 1


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1 .*refused"),
        ("ray://head:10001", "is an address for Ray Client.* --ray auto or --ray HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_told_at_once(address, message, glyphs_root, tmp_path):
    with pytest.raises((ValueError, ConnectionError), match=message):
        execute_plan(Plan.parse(tiny_plan(glyphs_root)), tmp_path, ray=address)


class Killer(BoardObserver):
    """Kills the node of a run in the middle of its training, and sees where the run goes on."""

    def __init__(self, cluster) -> None:
        self._cluster = cluster
        self.victim = ""
        self.killed_at = 0
        self.rows: list[dict] = []
        self.nodes: list[str] = []

    def look(self, board: Board) -> None:
        for progress in board.in_state("running"):
            if not self.victim and 0.3 <= progress.epoch / progress.epochs <= 0.7:
                self._kill_the_node_of(progress)
            elif progress.planned.name == self.victim and len(self.nodes) == 1:
                self.nodes += [node.unique_id for node in self._nodes_of(self.victim)]

    def _nodes_of(self, name: str) -> list:
        nodes = self._cluster.list_all_nodes()[1:]
        return [node for node in nodes if any(name in command for command, _ in workers(node))]

    def _kill_the_node_of(self, progress: RunProgress) -> None:
        self.victim, self.killed_at = progress.planned.name, progress.epoch
        self.rows = progress.run.metrics()
        (node,) = self._nodes_of(self.victim)
        self.nodes = [node.unique_id]
        self._cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
def test_a_lost_nodes_run_goes_on_elsewhere_to_the_same_result(cluster, glyphs_root, tmp_path):
    values = tiny_plan(glyphs_root)
    values["recipe"]["training"] = {"epochs": 120}
    plan = Plan.parse(values)
    execute_plan(plan, tmp_path / "whole", jobs=2)  # one thread each, as on the cluster
    killer = Killer(cluster)
    board = execute_plan(plan, tmp_path / "killed", ray=cluster.address, observer=killer)
    assert [progress.state for progress in board.runs] == ["done", "done"]
    log = [json.loads(line) for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    (lost,) = [entry for entry in log if entry["event"] == "lost"]
    print(f"killed at epoch {killer.killed_at} of 120, lost at {lost['epoch']}: {lost['reason']}")
    assert lost["run"] == killer.victim
    assert 24 <= killer.killed_at <= lost["epoch"] <= 96
    begun = [entry["epoch"] for entry in log if entry["event"] == "begun" and entry["run"] == killer.victim]
    assert begun == [0, lost["epoch"]]
    kept = killer.rows[:-3]  # all but those whose checkpoint may not have come back
    assert board.of(tmp_path / "killed" / killer.victim).run.metrics()[: len(kept)] == kept
    first, second = killer.nodes
    assert first != second
    for run in plan.runs():
        one, other = (tmp_path / side / run.name / "result.json" for side in ("whole", "killed"))
        assert one.read_text() == other.read_text()


class Impatience(BoardObserver):
    def look(self, board: Board) -> None:
        if any(progress.epoch for progress in board.runs):
            raise KeyboardInterrupt


@pytest.mark.slow
def test_ctrl_c_ends_the_tasks_and_leaves_nothing_on_the_nodes(cluster, scratch, glyphs_root, tmp_path):
    values = tiny_plan(glyphs_root)
    values["recipe"]["training"] = {"epochs": 1000}
    with pytest.raises(KeyboardInterrupt):
        execute_plan(Plan.parse(values), tmp_path, ray=cluster.address, observer=Impatience())
    assert [list(workers(node)) for node in cluster.list_all_nodes()[1:]] == [[], []]
    assert list(scratch.glob("nearkin-*")) == []
    assert not any(is_taken(path.parent) for path in tmp_path.glob("*/recipe.toml"))
    assert list(tmp_path.glob("*/checkpoint/step-*"))


class Auditor(BoardObserver):
    """Notes which shares of cores and graphics processors are taken, and what the workers are told."""

    def __init__(self, cluster) -> None:
        self._cluster = cluster
        self.taken: set[tuple[float, float]] = set()
        self.told: set[tuple[str, str]] = set()

    def look(self, board: Board) -> None:
        there, free = ray.cluster_resources(), ray.available_resources()
        self.taken.add(tuple(round(there[kind] - free.get(kind, 0), 3) for kind in ("CPU", "GPU")))
        for node in self._cluster.list_all_nodes()[1:]:
            for _, variables in workers(node):
                self.told.add((variables["OMP_NUM_THREADS"], variables["CUDA_VISIBLE_DEVICES"]))


@pytest.mark.slow
def test_shares_are_kept_results_go_to_an_address_and_errors_come_back(cluster, glyphs_root):
    values = tiny_plan(
        glyphs_root,
        losses=["nca", {"name": "nca", "label": "broken", "recipe": {"sampler": {"batch_size": 3}}}],
        cpus=0.5,
        gpus=0.25,
    )
    auditor = Auditor(cluster)
    board = execute_plan(Plan.parse(values), "memory://bucket/runs", ray=cluster.address, observer=auditor)
    assert [progress.state for progress in board.runs] == ["done", "failed"]
    assert board.runs[0].result.test.recall_at[1] > 0
    assert board.jobs == 4
    assert auditor.told == {("1", "0")}
    assert {(0.5, 0.25), (1.0, 0.5)} & auditor.taken
    assert auditor.taken <= {(0, 0), (0.5, 0.25), (1.0, 0.5)}
    files = fsspec.filesystem("memory")
    good, broken = (f"/bucket/runs/{progress.planned.name}" for progress in board.runs)
    assert files.exists(f"{good}/result.json")
    assert files.exists(f"{good}/checkpoint/network.safetensors")
    assert board.runs[1].reason in files.cat(f"{broken}/error.txt").decode()
