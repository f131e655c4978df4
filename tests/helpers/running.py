"""Runs from recipes in a line, for tests of what happens in them."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from nearkin import protocols, training
from nearkin.data import DataSet, SampleSet
from nearkin.networks import Embedder, Network
from nearkin.observer import Observer
from nearkin.recipe import Recipe
from nearkin.training import Description, NetworkResult, Run


def new_run(path: str | os.PathLike[str], recipe: Recipe | dict[str, Any]) -> Run:
    """A run that knows the recipe it was opened with, under ``run.recipe``."""
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.parse(recipe)
    run = Run.open(path, Description(recipe.to_toml(), recipe.complete()))
    run.recipe = recipe
    return run


def reopened(path: str | os.PathLike[str]) -> Run:
    """The run in a directory, with its recipe."""
    return new_run(path, Recipe.read(Path(path) / "recipe.toml"))


def execute(run: Run, observer: Observer | None = None) -> Run:
    """Carry out what a run's recipe says, in this run."""
    task = run.recipe.build(observer)
    run.description = task.description
    return protocols.execute(task, run, observer)


def finished(path: str | os.PathLike[str], recipe: Recipe | dict[str, Any]) -> Run:
    """A finished run in a directory, for tests of what comes after training.

    The same recipe is trained once in a process of tests and copied from then on. Nothing that only a
    training holds in memory is there (``run.result.opened``).
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.parse(recipe)
    text = recipe.to_toml()
    kept = Path(_kept_runs().name) / str(hash(text))
    if not kept.exists():
        execute(new_run(kept, recipe))
    shutil.copytree(kept, path)
    return new_run(path, recipe)


@functools.cache
def _kept_runs() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="nearkin-finished-")


def train_on(
    run: Run, samples: SampleSet, observer: Observer | None = None, validation: SampleSet | None = None
) -> NetworkResult:
    """Train a run's recipe on these samples alone."""
    data = DataSet("given", samples, validation=validation)
    task = run.recipe.changed({"protocol": {"name": "standard"}}).build(data=data)
    return training.train(task, run, task.embedder.copy(), samples, validation=validation, observer=observer)


def embedder_of(run: Run) -> Embedder:
    """The trained network of a finished run."""
    from nearkin.api import networks_of  # noqa: PLC0415

    return networks_of(run)[0]


def load_network(run: Run) -> Network:
    """The trained network of a finished run."""
    return embedder_of(run).network


def build_network(recipe: Recipe) -> Network:
    """The network of a recipe before training."""
    return recipe.build().embedder.network
