"""``kill -9`` at random moments: the same command goes on and ends with the same result, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import time
import warnings
from pathlib import Path

import psutil
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


def processor_seconds(path: Path, recipe: Recipe) -> float:
    """What a whole run takes, not counting the time that other programs have."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finish(path, recipe)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def kill_after(path: Path, recipe: Recipe, seconds: float) -> bool:
    """Run and kill after so many seconds of the processor; false if the run was finished by then."""
    process = start(path, recipe)
    watched = psutil.Process(process.pid)
    while process.is_alive() and sum(watched.cpu_times()[:2]) < seconds:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL and not (path / "result.json").exists()


def test_three_kills_in_one_run(small_recipe, tmp_path):
    recipe = variant(small_recipe, "memory and hard classes", epochs=6)
    seconds = processor_seconds(tmp_path / "whole", recipe)
    moments = random.Random(0)
    kills = sum(kill_after(tmp_path / "run", recipe, moments.uniform(0.1, 0.4) * seconds) for _ in range(3))
    assert kills >= 2  # a run that goes on is shorter: the third may come too late
    assert finish(tmp_path / "run", recipe) == (tmp_path / "whole" / "result.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_twenty_killed_runs_end_with_equal_results(name, small_recipe, tmp_path):
    """Five runs of each of four kinds, each killed once."""
    recipe = variant(small_recipe, name, epochs=4)
    seconds = processor_seconds(tmp_path / "whole", recipe)
    whole = (tmp_path / "whole" / "result.json").read_text()
    moments = random.Random(name)
    kills = 0
    for number in range(20):
        run = Run(tmp_path / str(number), recipe)
        if kill_after(run.path, recipe, moments.uniform(0.01, 0.95) * seconds):
            kills += 1
            saved = [file.stem for file in sorted((run.path / "checkpoint").glob("step-*"))]
            print(f"{name}: killed with {len(run.metrics())} epochs scored, checkpoints {saved}")
        assert finish(run.path, recipe) == whole
        if kills == 5:
            return
    raise AssertionError(f"only {kills} of 20 kills hit a run before its end")
