"""A recipe carried out: what ``nearkin.train`` and ``nearkin train`` do."""

from __future__ import annotations

import os
from pathlib import Path

from nearkin.data import DataSet
from nearkin.display import observer_for
from nearkin.observer import Observer
from nearkin.protocols import execute, train_final
from nearkin.recipe.naming import default_output
from nearkin.recipe.opening import open_data
from nearkin.recipe.recipe import Recipe
from nearkin.training import Description, Run, RunError


def carry_out(
    recipe: Recipe,
    *,
    output: str | os.PathLike[str] | None = None,
    final: bool = False,
    progress: bool | Observer = True,
) -> Run:
    """Train what a recipe says, or go on with it; a finished run is only read.

    Args:
        recipe: What to train.
        output: The run's directory; by default one under ``runs/``.
        final: Whether to train a network to use afterwards, on all classes.
        progress: Whether to show progress, or who is told about it.
    """
    observer = observer_for(progress)
    path = Path(output or default_output(recipe))
    if (path / "result.json").exists():
        done = Run.open(path, _description(recipe))
        if done.finished and not final:
            if "data" in recipe.objects:  # which has no name that would tell it from others
                refuse_other_data(done, open_data(recipe, observer))
            observer.note(f"{path} is finished: its result is read, and nothing is trained again")
            return done
    begun = Run.open(path, _description(recipe))  # says at once where the directory holds something else
    try:
        task = recipe.build(observer, remembered=begun.chosen_before())
        run = execute(task, Run.open(path, task.description), observer)
        if final and run.result.epoch == 0:
            observer.note(
                f"no final training: epoch 0 was chosen, the network before training, and {path} has it"
            )
        elif final:
            train_final(task, run, observer)
        return run
    finally:
        observer.end()


def _description(recipe: Recipe) -> Description:
    return Description(recipe.to_toml(), recipe.complete())


def refuse_other_data(run: Run, data: DataSet) -> None:
    """Refuse data whose test samples are not those that a run was tested on."""
    tested = None if run.result.data is None else run.result.data.test
    if tested is None or not tested.fingerprint or data.test is None:
        return
    if data.test.fingerprint() != tested.fingerprint:
        raise RunError(
            f"the test samples are not those that {run.path} was tested on: a file or a label has changed, "
            "or it is another data set"
        )
