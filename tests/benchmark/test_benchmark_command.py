from __future__ import annotations

import io
import re
import signal

import pytest
import tomli_w
from in_process import InProcess, tiny_plan
from rich.console import Console

from nearkin.benchmark import execution, watching
from nearkin.benchmark.plan import Plan
from nearkin.benchmark.progress import Board, RunProgress
from nearkin.benchmark.watching import BoardDisplay
from nearkin.training import Run


@pytest.fixture
def nearkin(nearkin, monkeypatch):
    """Also the runs that the command line starts are run in this process."""
    monkeypatch.setattr(execution, "_PAUSE", 0)
    monkeypatch.setattr(execution, "_workforce", lambda *_: InProcess())
    return nearkin


@pytest.fixture
def plan_file(glyphs_root, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(tomli_w.dumps(tiny_plan(glyphs_root, seeds=[0, 1])))
    return file


def test_a_plan_is_executed_with_a_line_per_run_and_a_leaderboard(nearkin, plan_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = nearkin("benchmark", plan_file)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("1/4  glyphs-convnet-nca-16-seed0  Recall@1 ")
    assert [line.split()[0] for line in lines[:4]] == ["1/4", "2/4", "3/4", "4/4"]
    assert lines[4].split() == ["loss", "glyphs", "convnet", "16", "fixed_validation"]
    ranked = [(line.split()[0], float(line.split()[1])) for line in lines[5:7]]
    assert {name for name, _ in ranked} == {"nca", "proxy_anchor"}
    assert ranked[0][1] >= ranked[1][1]
    assert "±" in lines[5]
    assert lines[7].split() == ["runs", "runs/mine", "(4", "of", "4", "done)"]
    assert nearkin("benchmark", plan_file)[1].splitlines() == lines[4:]


def test_a_failed_run_is_told_and_gives_exit_code_1(nearkin, plan_file, tmp_path):
    arguments = (plan_file, "-o", tmp_path / "out", "--set", "recipe.sampler.batch_size=3")
    code, out, _ = nearkin("benchmark", *arguments, "--set", "seeds=[0]")
    assert code == 1
    assert "1/2  glyphs-convnet-nca-16-seed0  failed: batch_size=3" in out
    assert "1 failed: their error.txt says more; the same command tries them again" in out
    assert "(1 of 2 done)" in out


def test_seeds_on_other_terms_are_not_averaged(nearkin, glyphs_root, tmp_path):
    more = [{"where": {"seed": 1}, "recipe": {"optimizer": {"lr": 0.01}}}]
    file = tmp_path / "mine.toml"
    file.write_text(tomli_w.dumps(tiny_plan(glyphs_root, losses=["nca"], seeds=[0, 1], adjust=more)))
    _, out, _ = nearkin("benchmark", file, "-o", tmp_path / "out")
    assert "nca (optimizer.lr=0.002)" in out
    assert "nca (optimizer.lr=0.01)" in out
    assert "±" not in out


def test_show_lists_the_runs_and_starts_none(nearkin, plan_file, tmp_path):
    code, out, _ = nearkin("benchmark", plan_file, "--show", "-o", tmp_path / "out")
    assert code == 0
    assert "glyphs-convnet-proxy_anchor-16-seed1" in out
    assert "4 runs, in " in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tournamnt"], "there is no plan tournamnt: .*did you mean tournament"),
        (["{plan}", "--set", "losses=[1]"], "seed0: loss.name: input should be a valid string, not 1"),
        (["{plan}", "--set", "recipe.training.epoch=1"], "unknown key training.epoch: did you mean epochs"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, nearkin, plan_file):
    code, out, err = nearkin("benchmark", *[one.format(plan=plan_file) for one in arguments])
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert re.search(message, err)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_termination_stop_the_workers_and_say_how_to_go_on(
    number, code, nearkin, plan_file, tmp_path, monkeypatch
):
    stopped = []
    monkeypatch.setattr(InProcess, "start", lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(InProcess, "stop", lambda _: stopped.append(True))
    told = "stopped; the same command goes on from the last checkpoints\n"
    # What runs in the background ignores it from the start.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        before = signal.getsignal(number)
        assert nearkin("benchmark", plan_file, "-o", tmp_path / "out") == (code, "", told)
        assert stopped == [True]
        assert signal.getsignal(number) is before
    finally:
        signal.signal(signal.SIGINT, outside)


def test_the_live_table_shows_who_is_how_far_and_the_time_left(glyphs_root, tmp_path, monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(watching, "console", terminal)
    now = [0.0]
    monkeypatch.setattr("nearkin.benchmark.progress.time.monotonic", lambda: now[0])
    runs = Plan.parse(tiny_plan(glyphs_root, seeds=[0, 1])).runs()
    board = Board(
        [RunProgress(run, Run(tmp_path / run.name, run.description())) for run in runs], "runs", jobs=2
    )
    assert board.seconds_left() is None
    first, second = board.runs[:2]
    first.begin()
    second.begin()
    second.run.write_metrics([{"epoch": 0}, {"epoch": 1}])
    second.look()
    now[0] = 30.0
    # The second is halfway after 30 s; the first will take as long as it: 60 s. Two more wait for two places.
    assert second.seconds_left() == 30.0
    assert board.seconds_left() == (60 + 30 + 2 * 60) / 2
    display = BoardDisplay()
    display.begin(board)
    display.look(board)
    display.end(board)
    shown = terminal.file.getvalue()
    assert "2 running · 2 waiting · about 1 min 45 s left" in shown
    assert "epoch 1/2" in shown


def test_off_a_terminal_a_long_silence_is_broken_by_a_line(glyphs_root, tmp_path, monkeypatch):
    pipe = Console(file=io.StringIO(), force_terminal=False, width=80, highlight=False)
    monkeypatch.setattr(watching, "console", pipe)
    now = [0.0]
    monkeypatch.setattr("nearkin.benchmark.progress.time.monotonic", lambda: now[0])
    runs = Plan.parse(tiny_plan(glyphs_root, seeds=[0, 1])).runs()
    board = Board([RunProgress(run, Run(tmp_path / run.name, run.description())) for run in runs], "runs")
    board.runs[0].begin()
    display = BoardDisplay()
    for now[0] in (10.0, 29.0, 31.0, 32.0):
        display.look(board)
    expected = f"{runs[0].name} epoch 0/2 · 1 running · 3 waiting · estimating the time left\n"
    assert pipe.file.getvalue() == expected, "one line, however long"
