"""``kill -9`` and resume of a training made of objects: a module, a function and a torch ``Dataset``."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import Dataset
import nearkin
from nearkin.training import engine

torch.set_num_threads(1)
engine._LOOK_EVERY = 2  # checkpoints within epochs


class Points(Dataset):
    def __init__(self):
        numbers = torch.Generator().manual_seed(0)
        centres = torch.randn(24, 6, generator=numbers)
        self.points = centres.repeat_interleave(20, 0) + torch.randn(480, 6, generator=numbers)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], f"class {index // 20}"


def jittered(point):
    return point + 0.1 * torch.randn(6)  # random, from the sample's own seed


def spread(embeddings, labels):
    unit = nn.functional.normalize(embeddings)
    same = labels[:, None] == labels[None]
    return ((unit @ unit.T - same.float()) ** 2).mean()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))

    def forward(self, points):
        return self.layers(points)


run = nearkin.train(
    Points(), network=Network(), loss=spread, transform=jittered, evaluation_transform=lambda point: point,
    epochs=int(sys.argv[2]), batch_size=20, ema=0.9, checkpoint_minutes=1e-9, output=sys.argv[1],
    progress=False,
)
print(run.result.test.recall_at[1])
"""
EPOCHS = 25


@pytest.fixture
def script(tmp_path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT, encoding="utf-8")
    return file


def start(script: Path, run: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(script), str(run), str(EPOCHS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(script: Path, run: Path) -> str:
    process = start(script, run)
    _, error = process.communicate()
    assert process.returncode == 0, error.decode()
    return (run / "result.json").read_text(encoding="utf-8")


def steps_saved(run: Path) -> int:
    saved = sorted((run / "checkpoint").glob("step-*.safetensors"))
    return int(saved[-1].stem.removeprefix("step-")) if saved else 0


def kill_after(script: Path, run: Path, steps: int, seconds: float) -> bool:
    """Run, kill some time after a checkpoint of so many steps; false if the run was finished by then."""
    process = start(script, run)
    while process.poll() is None and steps_saved(run) < steps:
        time.sleep(0.001)
    time.sleep(seconds)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL and not (run / "result.json").exists()


@pytest.mark.slow
def test_killed_scripts_end_with_equal_results(script, tmp_path):
    whole = finish(script, tmp_path / "whole")
    assert '"python:Points"' in whole
    run, moments = tmp_path / "run", random.Random(0)
    kills = [kill_after(script, run, steps, moments.uniform(0, 0.05)) for steps in (1, 40, 120)]
    assert sum(kills) >= 2, kills
    assert finish(script, run) == whole
    assert finish(script, run) == whole  # finished: only read


@pytest.mark.slow
def test_two_runs_of_one_script_write_the_same_bytes(script, tmp_path):
    assert finish(script, tmp_path / "a") == finish(script, tmp_path / "b")
    one, other = (tmp_path / name / "checkpoint" / "network.safetensors" for name in "ab")
    assert one.read_bytes() == other.read_bytes()
