"""The network to use: trained on every class there is, for as many epochs as validation chose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nearkin.data import SampleSet
from nearkin.data.joining import join
from nearkin.observer import Observer
from nearkin.training import Run, RunError, Task, train

FINAL = "final"


def train_final(task: Task, run: Run, observer: Observer | None = None) -> Path:
    """Train a finished run's network anew on all classes, those of validation and test included.

    Nothing is left to test it on: the run's own scores, and its threshold, are those of the network that was
    trained without them, and the best estimate there is. Killed, it goes on where it was.

    Args:
        task: That of the run.
        run: Finished; the final network goes into its folder ``final``, which :func:`nearkin.load` reads.
        observer: Hears about it.

    Returns:
        The folder.
    """
    observer = observer or Observer()
    if len(run.result.networks) != 1:
        raise RunError(f"{run.path} has {len(run.result.networks)} networks: a final training needs one")
    if not bool(task.data.all_classes.is_labelled.all()):
        raise RunError(
            f"{run.path} learns from samples without labels: a final training needs all labels; train with "
            "another protocol"
        )
    home = Run(run.path / FINAL, run.description)
    if home.network_file.exists():
        return home.path
    epoch = run.result.epoch
    if not epoch:
        raise RunError(
            f"validation chose the network of {run.path} before training: there is nothing to train"
        )
    settings = replace(task.settings, stop_after=min(epoch, task.settings.epochs))
    epochs = "1 epoch" if settings.last_epoch == 1 else f"{settings.last_epoch} epochs"
    chosen = "" if run.result.validation is None else ", as validation chose"
    observer.stage(f"training on all classes for {epochs}{chosen}")
    home.path.mkdir(parents=True, exist_ok=True)
    train(
        replace(task, settings=settings),
        home,
        task.embedder.copy(),
        _everything(task),
        threshold=run.result.threshold,
        observer=observer,
    )
    home.remove_checkpoints()
    return home.path


def _everything(task: Task) -> SampleSet:
    samples, test = task.data.all_classes, task.data.test
    if test is None or task.data.closed:
        return samples
    return join(samples, test)
