"""Budgets counted in training steps: how many trials of a recipe they allow."""

from __future__ import annotations

from nearkin.tuning.stages import epochs_of, rungs


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
