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
from running import execute, new_run

from nearkin.recipe import Recipe
from nearkin.training import Run, engine, shards

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
    "sampled classes": {
        "loss": {"name": "arcface", "sample": 0.3, "scale": 16.0},
        "optimizer": {"name": "adamw"},
        "sampler": {"batch_size": 20},
    },
    "self-taught beside a loss": {
        "protocol": {"name": "semi_supervised", "labelled_classes": 0.5},
        "unlabelled": {"name": "stml", "batch_size": 24, "wide": 32},
        "data": {"views": 2},
        "sampler": {"batch_size": 20},
    },
    "clusters as labels": {
        "protocol": {"name": "unsupervised"},
        "unlabelled": {"name": "pseudo_labels", "batch_size": 40, "clusters": 12},
    },
    "mixed precision": {
        "loss": {"name": "proxy_anchor"},
        "sampler": {"batch_size": 20},
        "training": {"precision": "bf16", "ema": 0.9},
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
    execute(new_run(path, recipe))
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


def steps_saved(path: Path) -> int:
    """The batch at which the newest checkpoint was written."""
    saved = sorted((path / "checkpoint").glob("step-*.safetensors"))
    return int(saved[-1].stem.removeprefix("step-")) if saved else 0


def kill_after(path: Path, recipe: Recipe, steps: int, seconds: float) -> bool:
    """Run, kill some time after a checkpoint of so many steps; false if the run was finished by then."""
    process = start(path, recipe)
    while process.is_alive() and steps_saved(path) < steps:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL and not (path / "result.json").exists()


def test_three_kills_in_one_run(small_recipe, tmp_path):
    recipe = variant(small_recipe, "memory and hard classes", epochs=4)
    whole = finish(tmp_path / "whole", recipe)
    total, run = steps_saved(tmp_path / "whole"), tmp_path / "run"
    moments = random.Random(0)
    kills = [kill_after(run, recipe, total * part // 4, moments.uniform(0, 0.03)) for part in (0, 1, 2)]
    assert kills == [True] * 3
    assert finish(run, recipe) == whole


def test_sampled_classes_and_lazy_state_in_shards_go_on(small_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 1 << 10)
    recipe = variant(small_recipe, "sampled classes", epochs=3)
    whole = finish(tmp_path / "whole", recipe)
    run = tmp_path / "run"
    assert kill_after(run, recipe, 4, 0.01)
    assert list((run / "checkpoint").glob("shard-*"))
    assert finish(run, recipe) == whole
    assert not list((run / "checkpoint").glob("shard-*"))


@pytest.mark.parametrize("name", ["self-taught beside a loss", "clusters as labels"])
def test_a_teacher_and_clusters_go_on_after_a_kill(name, small_recipe, tmp_path):
    recipe = variant(small_recipe, name, epochs=3)
    whole = finish(tmp_path / "whole", recipe)
    run = tmp_path / "run"
    assert kill_after(run, recipe, steps_of(recipe) // 2, 0.01)
    assert finish(run, recipe) == whole


def steps_of(recipe) -> int:
    """How many batches a whole run has; a finished one keeps no checkpoint that would tell."""
    task = recipe.build()
    samples, _ = task.protocol.split(task.data.without_test(), task.seed)
    batches = task.sampler(samples.labels, seed=task.seed, rank=0, world_size=1)
    return len(batches) * task.settings.epochs


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_twenty_killed_runs_end_with_equal_results(name, small_recipe, tmp_path):
    """Five runs of each of four kinds, each killed once; a kill that came too late is not counted."""
    recipe = variant(small_recipe, name, epochs=4)
    whole = finish(tmp_path / "whole", recipe)
    total = steps_of(recipe)
    moments = random.Random(name)
    kills = 0
    for number in range(20):
        run = Run(tmp_path / str(number), recipe)
        if kill_after(run.path, recipe, moments.randrange(total), moments.uniform(0, 0.1)):
            kills += 1
            epochs, steps = len(run.metrics()) - 1, steps_saved(run.path)
            print(f"{name}: killed after epoch {epochs} and step {steps} of {total}")
        assert finish(run.path, recipe) == whole
        if kills == 5:
            return
    raise AssertionError(f"only {kills} of 20 kills hit a run before its end")
