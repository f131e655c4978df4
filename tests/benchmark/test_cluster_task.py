"""What a Ray task does, without Ray: it carries a run out elsewhere and hands its files back."""

from __future__ import annotations

from in_process import tiny_plan

from nearkin.benchmark import cluster
from nearkin.benchmark.plan import Plan
from nearkin.training import Run


def test_a_task_finds_plug_ins_and_hands_the_run_back(glyphs_root, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_LOOK_EVERY", 0.05)
    plug_ins = tmp_path / "plug-ins"
    plug_ins.mkdir()
    (plug_ins / "my_task_losses.py").write_text(
        "def pull(embeddings, labels):\n"
        "    same = labels[:, None] == labels\n"
        "    return (1 - embeddings @ embeddings.T)[same].mean()\n"
    )
    monkeypatch.syspath_prepend(plug_ins)
    (planned,) = Plan.parse(tiny_plan(glyphs_root, losses=["my_task_losses:pull"])).runs()
    run = Run.open(tmp_path / planned.name, planned.description())
    run.begin()
    task = cluster._carry_out(
        planned.name, cluster._all_files(run.path), 1, str(tmp_path), cluster.import_folders()
    )
    for files in task:
        cluster._write_files(run.path, files)
    assert run.finished, (run.path / "error.txt").read_text()
    assert 0 < run.result.test.recall_at[1] < 1
    assert run.network_file.exists()
