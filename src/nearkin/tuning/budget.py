"""Budgets counted in training steps: how many trials of a recipe they allow."""

from __future__ import annotations

from nearkin.data import DataSet
from nearkin.recipe import Recipe
from nearkin.tuning.stages import epochs_of, rungs


def batches_per_epoch(recipe: Recipe, data: DataSet) -> int:
    """Training steps of an epoch of a trial.

    Args:
        recipe: That of the trials, its protocol with validation classes.
        data: Its data set, without test classes.
    """
    task = recipe.build(data=data)
    samples, _ = task.protocol.split(data, task.seed)
    return len(task.sampler(samples.labels, seed=task.seed, rank=0, world_size=1))


def trials_within(steps: int, *, batches: int, epochs: int, sampler: str) -> int:
    """The most trials that need no more than so many steps in all.

    Args:
        steps: The budget.
        batches: Of an epoch.
        epochs: Of a trial that is not given up.
        sampler: ``halving`` trains most trials for fewer.

    >>> trials_within(1000, batches=10, epochs=8, sampler="tpe")
    12
    >>> trials_within(1000, batches=10, epochs=8, sampler="halving")
    25

    Raises:
        ValueError: Not one trial fits in.
    """
    if steps < batches * epochs:
        raise ValueError(
            f"tuning.steps={steps} is less than one trial of {epochs} epochs with {batches} batches: give at "
            f"least {batches * epochs}"
        )
    if sampler != "halving":
        return steps // (batches * epochs)
    trials = 1
    while batches * epochs_of(rungs(trials + 1, epochs)) <= steps:
        trials += 1
    return trials
