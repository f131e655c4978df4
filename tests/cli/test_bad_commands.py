"""Mistyped commands: one line, exit code 2, no traceback, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nearkin.training.run import lock_of

FAST = ["network.name=lenet", "network.embedding_dim=8", "training.epochs=1", "sampler.batch_size=10"]


def settings(*more: str) -> list[str]:
    return [part for setting in (*FAST, *more) for part in ("-s", setting)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "-s", "loss.name={}"], "loss.name: input should be a valid string"),
        (["train", "-s", "loss.name=[[]]"], "loss.name: input should be a valid string"),
        (["train", "-s", "data.difficulty=nan"], "difficulty=nan must be a finite number"),
        (["train", "-s", f"seed={2**64}"], "seed: input should be less than or equal to"),
        (["train", "-s", "seed=1 loss.margin=2"], "one setting at a time"),
        (["train", "-s", f"loss.name={'x' * 100_000}"], "unknown loss"),
        (["train", "x" * 100_000], "File name too long"),
        (["train", "-s", f"data.root={'x' * 100_000}"], ""),
        (["train", "--import", "no_such_module"], "there is no module no_such_module"),
        (["train", "--weights", "nowhere.pth"], "no weights at nowhere.pth"),
        (["train", "photoss"], "there is no folder, table, recipe or data set photoss"),
        (["train", "--output", "--show-recipe"], "--output needs a value, and --show-recipe is an option"),
        (["train", "-o", "-s", "seed=1"], "-o needs a value, and -s is an option"),
        (["train", "--set", "--skip-bad"], "--set needs a value"),
        (["tune", "--trials", "--search-only"], "--trials needs a value"),
        (["trian"], "No such command 'trian'"),
        (["train", "--outptu", "x"], "No such option: --outptu"),
        (
            ["train", "--epochs", "3"],
            "No such option: --epochs; it is a key of the recipe: --set training.epochs=",
        ),
        (["train", "x", "--batch-size=3"], "--set sampler.batch_size=VALUE"),
        (["tune", "--loss", "triplet"], "--set loss.name=VALUE"),
        (["train", "a", "b"], "unexpected extra argument"),
        (["evaluate"], "issing argument"),
    ],
)
def test_a_mistake_is_one_short_line(arguments, message, nearkin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = nearkin(*arguments)
    assert code == 2
    assert err.startswith("nearkin: ")
    assert err.count("\n") == 1
    assert len(err) < 1600
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_little_memory_is_one_line(nearkin, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("nearkin.recipe.carrying_out.carry_out", full)
    code, _, err = nearkin("train", "-o", tmp_path / "run")
    assert code == 2
    assert err.startswith("nearkin: there is not enough memory: try training.chunk")
    assert err.count("\n") == 1


def test_an_error_of_a_process_that_reads_samples_is_its_last_line(nearkin, tmp_path, monkeypatch):
    told = "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call):\n  …\n"

    def broken(*_: object, **__: object) -> None:
        raise ValueError(f"{told}ValueError: image a.png is too small\n")

    monkeypatch.setattr("nearkin.recipe.carrying_out.carry_out", broken)
    assert nearkin("train")[2] == "nearkin: ValueError: image a.png is too small\n"


def test_a_fault_of_ours_shows_where(nearkin, monkeypatch):
    def faulty(*_: object, **__: object) -> None:
        raise TypeError("unsupported operand")

    monkeypatch.setattr("nearkin.recipe.carrying_out.carry_out", faulty)
    with pytest.raises(TypeError):
        nearkin("train")


def test_a_failed_start_leaves_nothing_and_the_corrected_command_works(
    nearkin, photos, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, _, err = nearkin("train", photos, *settings("network.size=5"), "-o", "here/run")
    assert code == 2
    assert "needs an input of at least 16 pixels" in err
    assert list(tmp_path.iterdir()) == []
    code, _, err = nearkin("train", photos, *settings("loss.margin=1e300"), "-o", "here/run")
    assert code == 2
    code, _, err = nearkin("train", photos, *settings(), "-o", "here/run")
    assert (code, err) == (0, "")


def test_a_start_that_fails_after_the_network_is_built_leaves_nothing(nearkin, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as context:
        context.setattr("nearkin.training.engine._Training._score_epoch", failing)
        assert nearkin("train", photos, *settings())[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_process_has_is_left_to_it(nearkin, photos, tmp_path):
    held = (
        "import sys, time; from filelock import FileLock\n"
        "with FileLock(sys.argv[1]): print('held', flush=True); time.sleep(120)"
    )
    (tmp_path / "run").mkdir()
    file = lock_of(tmp_path / "run").lock_file
    with subprocess.Popen([sys.executable, "-c", held, file], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        code, _, err = nearkin("train", photos, *settings(), "-o", tmp_path / "run")
        other.kill()
    assert code == 2
    assert "another process is training in" in err
    assert err.count("\n") == 1
