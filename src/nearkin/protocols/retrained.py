"""Retrained: validation classes choose the epoch, and a new network learns that long from all classes."""

from __future__ import annotations

from dataclasses import replace

from nearkin.data import DataSet, SampleSet
from nearkin.observer import Observer
from nearkin.protocols.fixed_validation import FixedValidation, default_share
from nearkin.training import NetworkResult, Run, Scorer, Task, train
from nearkin.training.protocol import register

_SHARE = 0.3  # the network that is kept learns from all classes, so that a choice can afford this many


@register("retrained")
class Retrained(FixedValidation):
    """Fixed validation first; then a network is trained anew on all training classes, for the chosen epochs.

    A class that is held out teaches nothing, and few classes choose badly. Here many choose, and all teach.
    The first training is a run of its own in ``selection``; its validation scores, and the threshold chosen
    on its validation classes, are those of the result: the network that is kept has learnt from these
    classes, and nothing can be measured on them.

    Args:
        validation_share: The share of the training classes that choose; three tenths by default.
    """

    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """Two trainings: one that chooses the epoch, and one on all classes that stops there."""
        samples, validation = self.split(data, task.seed)
        run.begin()  # so that the first training is found again as a part of this run
        observer.stage(f"{validation.num_classes:,} validation classes choose the epoch")
        own = Run.open(run.selection_path, run.description)
        chosen = train(task, own, task.embedder.copy(), samples, validation=validation, observer=observer)
        epoch = chosen.epoch or 0
        everything = data.all_classes
        observer.stage(f"training on all {everything.num_classes:,} classes, for {epoch} epochs as chosen")
        trained = train(
            replace(task, settings=replace(task.settings, stop_after=epoch)),
            run,
            task.embedder.copy(),
            everything,
            threshold=chosen.threshold,
            observer=observer,
        )
        return [
            replace(
                trained,
                rule="trained on all classes, for as many epochs as validation classes chose",
                epoch=epoch,
                data=replace(trained.data, validation=chosen.data.validation),
                validation=chosen.validation,
                warnings=tuple(dict.fromkeys((*chosen.warnings, *trained.warnings))),
            )
        ]

    def taught_by(self, data: DataSet, seed: int) -> SampleSet:
        """All of them."""
        return data.all_classes

    def default_share(self, classes: int) -> float:
        """The share of so many classes that is held out where nobody says it."""
        return max(_SHARE, default_share(classes))
