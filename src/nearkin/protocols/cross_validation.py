"""Cross-validation over classes: a network per fold, and every training class is validated exactly once."""

from __future__ import annotations

from dataclasses import replace

import torch

from nearkin.data import DataSet, SampleSet
from nearkin.observer import Observer
from nearkin.training import NetworkResult, Protocol, Run, Scorer, Task, train
from nearkin.training.protocol import register
from nearkin.training.run import Description


@register("cross_validation")
class CrossValidation(Protocol):
    """The training classes in random folds; each fold selects the epoch of the network that did not see it.

    Thesis, section 5.1: ten folds, and the mean and standard deviation (of a sample, n − 1) of the networks'
    test scores. Beside them stands the score of the concatenated embeddings: each network's of length 1, in
    a row, as in Musgrave, Belongie, Lim. A Metric Learning Reality Check. ECCV 2020.

    Every fold is a run of its own in ``fold-00``, ``fold-01``, …

    Args:
        folds: How many.
        fold: Train and test this one only, counted from 0, say on another machine.
    """

    def __init__(self, folds: int = 10, fold: int | None = None) -> None:
        if folds < 2:
            raise ValueError(f"folds={folds} must be at least 2")
        if fold is not None and not 0 <= fold < folds:
            raise ValueError(f"fold={fold} of {folds} folds: they are counted from 0")
        self.folds, self.fold = folds, fold

    @property
    def networks(self) -> int:
        """One per fold."""
        return self.folds if self.fold is None else 1

    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """One training per fold, in the run's directory."""
        if self.fold is not None:
            samples, validation = self.fold_splits(data, task.seed, self.fold)
            return [train(task, run, task.embedder.copy(), samples, validation=validation, observer=observer)]
        run.begin()  # so that folds are found again as parts of this run
        trained = []
        for fold in range(self.folds):
            observer.stage(f"fold {fold + 1} of {self.folds}")
            samples, validation = self.fold_splits(data, task.seed, fold)
            own = Run.open(run.path / fold_name(fold), of_fold(run.description, fold))
            result = train(task, own, task.embedder.copy(), samples, validation=validation, observer=observer)
            trained.append(replace(result, run=fold_name(fold)))
        return trained

    def split(self, data: DataSet, seed: int) -> tuple[SampleSet, SampleSet | None]:
        """All classes: every fold but one trains on each of them."""
        self.fold_splits(data, seed, 0)
        return data.all_classes, None

    def fewest(self, data: DataSet, seed: int) -> SampleSet:
        """What the fold with the fewest classes learns from."""
        return self.fold_splits(data, seed, self.fold or 0)[0]

    def fold_splits(self, data: DataSet, seed: int, fold: int) -> tuple[SampleSet, SampleSet]:
        """The samples that a fold learns from, and those of its own classes.

        The draw of the folds depends on the seed and the number of classes only; their sizes differ by one
        class at most.

        Raises:
            ValueError: A fold would have fewer than two classes.
        """
        everything = data.all_classes
        if everything.num_classes < 2 * self.folds:
            raise ValueError(
                f"{everything.num_classes} training classes in {self.folds} folds leave one with a single "
                f"class, which has no negatives: set protocol.folds={everything.num_classes // 2} or less"
            )
        order = torch.randperm(everything.num_classes, generator=torch.Generator().manual_seed(seed))
        own = torch.zeros(len(order), dtype=torch.bool)
        own[fold :: self.folds] = True
        return everything.of_classes(order[~own]), everything.of_classes(order[own])


def fold_name(fold: int) -> str:
    """The directory of a fold inside the run of all.

    >>> fold_name(3)
    'fold-03'
    """
    return f"fold-{fold:02d}"


def of_fold(description: Description, fold: int) -> Description:
    """What one fold of a run is, in words."""
    protocol = {**description.terms.get("protocol", {}), "fold": fold}
    text = f"# Fold {fold} of the run in the directory above, which has the recipe.\n{description.text}"
    return replace(description, text=text, terms={**description.terms, "protocol": protocol})
