"""A plan on a real Ray cluster of this machine, one of whose nodes is killed."""

from __future__ import annotations

import json

import pytest
from in_process import tiny_plan

from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.plan import Plan
from nearkin.benchmark.progress import Board, BoardObserver

ray = pytest.importorskip("ray", reason="needs the extra ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cluster():
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Killer(BoardObserver):
    """Kills a node when every run has come a few epochs far."""

    def __init__(self, cluster) -> None:
        self._cluster = cluster
        self.killed_at: list[int] = []

    def look(self, board: Board) -> None:
        running = board.in_state("running")
        if not self.killed_at and len(running) == 2 and all(progress.epoch >= 3 for progress in running):
            self.killed_at = [progress.epoch for progress in running]
            self._cluster.remove_node(self._cluster.list_all_nodes()[-1], allow_graceful=False)
            self._cluster.add_node(num_cpus=1)


def test_a_lost_nodes_run_goes_on_elsewhere_to_the_same_result(cluster, glyphs_root, tmp_path):
    values = tiny_plan(glyphs_root)
    values["recipe"]["training"] = {"epochs": 100}
    plan = Plan.parse(values)
    execute_plan(plan, tmp_path / "whole", jobs=2)  # one thread each, as on the cluster
    killer = Killer(cluster)
    board = execute_plan(plan, tmp_path / "killed", ray=cluster.address, observer=killer)
    assert killer.killed_at
    assert [progress.state for progress in board.runs] == ["done", "done"]
    log = [json.loads(line) for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    lost = [entry["run"] for entry in log if entry["event"] == "lost"]
    assert len(lost) == 1
    resumed = [entry["epoch"] for entry in log if entry["event"] == "begun" and entry["run"] == lost[0]]
    assert resumed[0] == 0
    assert resumed[1] >= 3
    for run in plan.runs():
        one, other = (tmp_path / side / run.name / "result.json" for side in ("whole", "killed"))
        assert one.read_text() == other.read_text()


def test_results_go_to_an_address_and_errors_come_back(cluster, glyphs_root, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    values = tiny_plan(
        glyphs_root,
        losses=["nca", {"name": "nca", "label": "broken", "recipe": {"sampler": {"batch_size": 3}}}],
    )
    board = execute_plan(Plan.parse(values), "memory://bucket/runs", ray=cluster.address)
    assert [progress.state for progress in board.runs] == ["done", "failed"]
    assert board.runs[0].result["test"]["recall_at_1"] > 0
    files = fsspec.filesystem("memory")
    good, broken = (f"/bucket/runs/{progress.planned.name}" for progress in board.runs)
    assert files.exists(f"{good}/result.json")
    assert files.exists(f"{good}/checkpoint/network.safetensors")
    assert board.runs[1].reason in files.cat(f"{broken}/error.txt").decode()
