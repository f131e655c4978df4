"""The command line as a process of its own: what it loads, and what it writes to pipes and terminals."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

NEARKIN = [sys.executable, "-m", "nearkin"]
FAST = ["network.name=lenet", "network.embedding_dim=8", "training.epochs=2", "sampler.batch_size=10"]


def train(photos: Path, output: Path, *more: str) -> list[str]:
    settings = [part for setting in (*FAST, *more) for part in ("-s", setting)]
    return [*NEARKIN, "train", str(photos), "-o", str(output), *settings]


def loaded(code: str) -> set[str]:
    """Packages that are loaded after some code."""
    listing = "import sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


SLOW = {"torch", "numpy", "matplotlib", "optuna", "sklearn", "timm", "torchvision", "PIL"}


def test_importing_nearkin_loads_nothing_else():
    assert not loaded("import nearkin") & (SLOW | {"typer", "rich", "pydantic"})


@pytest.mark.parametrize("words", ["--help", "train --help", "tune --help", "cache --help", "trian"])
def test_help_and_mistakes_wait_for_nothing(words):
    code = f"""
import sys
from nearkin.cli import main
sys.argv = ["nearkin", *{words!r}.split()]
try:
    main()
except SystemExit:
    pass
"""
    assert not loaded(code) & SLOW


def test_several_processes_talk_with_one_voice_a_line_per_stage_and_epoch_into_a_pipe(photos, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launcher, *train(photos, tmp_path / "run")[1:]]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "opening folder",
        "checking images",
        "building lenet",
        "scoring the untrained network",
    ]
    assert lines[4].startswith("epoch  0  untrained  Recall@1")
    assert re.match(r"epoch  1/2  loss .*Recall@1 .* samples/s, \d+ s left", lines[6])
    assert "left" not in lines[7]
    assert lines[8:10] == ["scoring the test classes", "drawing the pictures"]
    assert any(line.startswith("test classes") for line in lines[10:14])
    assert any(re.match(r"Recall@1 .* untrained network, .* trained: training ", line) for line in lines)
    assert "\x1b" not in done.stdout
    assert done.stdout.count("epoch  2/2  loss") == 1
    assert done.stdout.count("opening folder") == 1
    assert done.stdout.count("test classes are never trained on") == 1
    assert done.stdout.count("picture   ") == 3
    told = done.stderr.splitlines()
    assert all(line.startswith("warning: ") for line in told)
    assert (tmp_path / "run" / "result.json").exists()


def test_a_terminal_gets_a_live_line_and_the_result(photos, tmp_path):
    ours, theirs = pty.openpty()
    surroundings = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    command = train(photos, tmp_path / "run")
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=surroundings) as process:
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # Linux says the end of a terminal so
            pass
        assert process.wait() == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())
    for part in ("checking images …", "epoch  2/2  loss", "test classes", "picture   "):
        assert part in text
    assert b"\x1b[2K" in written
    assert b"Traceback" not in written
