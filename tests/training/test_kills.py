"""``kill -9`` at random moments: the same command goes on and ends with the same result, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
import torch

from nearkin.protocols import execute
from nearkin.training import Recipe, Run, engine

VARIANTS = {
    "proxies": {"loss": {"name": "proxy_anchor"}},
    "memory and hard classes": {
        "loss": {"name": "multi_similarity", "memory": {"size": 64}},
        "sampler": {"name": "hard_classes", "batch_size": 20},
        "training": {"ema": 0.99},
    },
    "random mining and groups of batches": {
        "loss": {"name": "margin"},
        "sampler": {"batch_size": 20},
        "training": {"accumulate": 2, "ema": 0.9},
    },
    "workers": {"loss": {"name": "proxy_nca"}, "data": {"workers": 1}},
}


def variant(small_recipe: dict, name: str, epochs: int) -> Recipe:
    values = {table: dict(keys) for table, keys in small_recipe.items()}
    for table, keys in VARIANTS[name].items():
        values.setdefault(table, {}).update(keys)
    values["training"] |= {"epochs": epochs, "checkpoint_minutes": 1e-9}
    return Recipe.parse(values)


def _finish(path: Path, recipe: Recipe) -> None:
    torch.set_num_threads(1)
    engine._LOOK_EVERY = 2  # checkpoints within epochs
    execute(Run.open(path, recipe))
    os._exit(0)


def start(path: Path, recipe: Recipe) -> multiprocessing.Process:
    """A process with everything imported: kills hit the training and not the start of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that may have threads
        process = multiprocessing.get_context("fork").Process(target=_finish, args=(path, recipe))
        process.start()
    return process


def finish(path: Path, recipe: Recipe) -> str:
    process = start(path, recipe)
    process.join()
    assert process.exitcode == 0
    return (path / "result.json").read_text()


def kill_at_random(path: Path, recipe: Recipe, seconds: float, moments: random.Random) -> None:
    """Run until a random moment before its end; a kill that came too late is tried again, earlier."""
    while True:
        process = start(path, recipe)
        time.sleep(moments.uniform(0.02, 1) * seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == -signal.SIGKILL and not (path / "result.json").exists():
            return
        for file in sorted(path.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        path.rmdir()
        seconds *= 0.7


def test_three_kills_in_one_run(small_recipe, tmp_path):
    recipe = variant(small_recipe, "memory and hard classes", epochs=6)
    begun = time.monotonic()
    whole = finish(tmp_path / "whole", recipe)
    seconds = time.monotonic() - begun
    moments = random.Random(0)
    killed = tmp_path / "killed"
    for _ in range(3):
        process = start(killed, recipe)
        time.sleep(moments.uniform(0.1, 0.4) * seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL or (killed / "result.json").exists()
    assert finish(killed, recipe) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_twenty_killed_runs_end_with_equal_results(name, small_recipe, tmp_path):
    """Five runs of each of four kinds, each killed once."""
    recipe = variant(small_recipe, name, epochs=4)
    begun = time.monotonic()
    whole = finish(tmp_path / "whole", recipe)
    seconds = time.monotonic() - begun
    moments = random.Random(name)
    for number in range(5):
        killed = tmp_path / str(number)
        kill_at_random(killed, recipe, seconds, moments)
        rows = len(Run(killed, recipe).metrics())
        saved = sorted(file.name for file in (killed / "checkpoint").glob("step-*"))
        print(f"{name}: killed after {rows - 1} epochs, checkpoints {saved}")
        assert finish(killed, recipe) == whole
