from __future__ import annotations

import shutil

import fsspec
import pytest
from in_process import InProcess, tiny_plan
from interruptions import Interruption, StopAfterEpoch

from nearkin.benchmark import execution
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.mirror import mirrored
from nearkin.benchmark.plan import Plan
from nearkin.benchmark.snapshots import Snapshot
from nearkin.protocols import execute
from nearkin.training import Run


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


def test_a_snapshot_sees_what_changed(tmp_path):
    snapshot = Snapshot(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_text("1")
    (tmp_path / ".lock").write_text("")
    assert snapshot.changes().written == ["a/one"]
    assert snapshot.changes().written == []
    (tmp_path / "a" / "one").write_text("eins")
    (tmp_path / "two").write_text("2")
    assert snapshot.changes().written == ["a/one", "two"]
    snapshot.forget("two")
    (tmp_path / "a" / "one").unlink()
    changes = snapshot.changes()
    assert (changes.written, changes.removed) == (["two"], ["a/one"])


def test_a_folder_is_brought_there_and_unfinished_runs_are_brought_back(memory):
    with mirrored("memory://bucket/runs", ["open", "done"]) as mirror:
        for name in ("open", "done"):
            (mirror.local / name / "checkpoint").mkdir(parents=True)
            (mirror.local / name / "checkpoint" / "step-1").write_text("weights")
        mirror.push()
        (mirror.local / "open" / "checkpoint" / "step-1").rename(
            mirror.local / "open" / "checkpoint" / "step-2"
        )
        (mirror.local / "done" / "result.json").write_text("{}")
        mirror.push()
    assert not mirror.local.exists()
    assert sorted(memory.find("/bucket/runs")) == [
        "/bucket/runs/done/checkpoint/step-1",
        "/bucket/runs/done/result.json",
        "/bucket/runs/open/checkpoint/step-2",
    ]
    with mirrored("memory://bucket/runs", ["open", "done", "new"]) as mirror:
        found = [str(path.relative_to(mirror.local)) for path in mirror.local.rglob("*") if path.is_file()]
        assert sorted(found) == ["done/result.json", "open/checkpoint/step-2"]


def test_a_copy_that_is_broken_off_goes_on_and_is_a_run_at_every_moment(memory, monkeypatch):
    monkeypatch.setattr("nearkin.benchmark.mirror._PUSH_EVERY", -1)
    put_file, arrived = type(memory).put_file, []

    def put_three(_: object, source: str, target: str) -> None:
        if len(arrived) == 3:
            raise TimeoutError("no route to the bucket")
        arrived.append(target)
        put_file(memory, source, target)

    monkeypatch.setattr(type(memory), "put_file", put_three)
    run = "/bucket/runs/run"
    with mirrored("memory://bucket/runs", ["run"]) as mirror:
        (mirror.local / "run" / "checkpoint").mkdir(parents=True)
        for file in ("checkpoint/step-1", "checkpoint/step-2", "recipe.toml", "result.json", "test_queries"):
            (mirror.local / "run" / file).write_text("whole")
        with pytest.warns(UserWarning, match="cannot write to memory://bucket/runs now .no route"):
            mirror.push_now_and_then()
        assert arrived == [f"{run}/recipe.toml", f"{run}/checkpoint/step-1", f"{run}/checkpoint/step-2"]
        arrived.clear()
        mirror.push_now_and_then()
        assert arrived == [f"{run}/test_queries", f"{run}/result.json"]


def test_what_cannot_be_brought_in_the_end_is_kept(memory, monkeypatch):
    def no_route(*_: object) -> None:
        raise TimeoutError("no route to the bucket")

    monkeypatch.setattr(type(memory), "put_file", no_route)
    with (
        pytest.raises(OSError, match="no route to the bucket.: all is kept in") as kept,
        mirrored("memory://bucket/runs", []) as mirror,
    ):
        (mirror.local / "result.json").write_text("{}")
    assert str(kept.value).endswith(str(mirror.local))
    assert (mirror.local / "result.json").read_text() == "{}"
    shutil.rmtree(mirror.local)


def test_a_plan_is_executed_into_an_address(memory, glyphs_root, tmp_path, monkeypatch):
    workforce = InProcess()
    monkeypatch.setattr(execution, "_PAUSE", 0)
    monkeypatch.setattr(execution, "_workforce", lambda *_: workforce)
    plan = Plan.parse(tiny_plan(glyphs_root))
    first = plan.runs()[0]
    with pytest.raises(Interruption):
        execute(first.recipe.build(), Run.open(tmp_path / first.name, first.description()), StopAfterEpoch(2))
    memory.put(str(tmp_path / first.name), f"/bucket/runs/{first.name}", recursive=True)
    before = memory.cat(f"/bucket/runs/{first.name}/metrics.jsonl").splitlines()[:2]
    execute_plan(plan, "memory://bucket/runs")
    for run in plan.runs():
        assert memory.exists(f"/bucket/runs/{run.name}/result.json")
        assert memory.exists(f"/bucket/runs/{run.name}/checkpoint/network.safetensors")
    assert memory.cat(f"/bucket/runs/{first.name}/metrics.jsonl").splitlines()[:2] == before  # it went on
    workforce.trained.clear()
    board = execute_plan(plan, "memory://bucket/runs")
    assert workforce.trained == []
    assert [progress.result.recipe["loss"]["name"] for progress in board.runs] == ["nca", "proxy_anchor"]
