"""Cross-validation over classes: a network per fold, and every training class is validated exactly once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nearkin.data import SampleSet
from nearkin.protocols.base import Learnt, Protocol, register
from nearkin.protocols.opened import Opened, concatenated
from nearkin.protocols.training_data import TrainingData
from nearkin.training import Observer, Recipe, Run, train

DEFAULT_FOLDS = 10


@register("cross_validation")
class CrossValidation(Protocol):
    """The training classes in random folds; each fold selects the epoch of the network that did not see it.

    Thesis, section 5.1: ten folds, and the mean and standard deviation (of a sample, n − 1) of the networks'
    test scores. Beside them stands the score of the concatenated embeddings: each network's of length 1, in
    a row, as in Musgrave, Belongie, Lim. A Metric Learning Reality Check. ECCV 2020.

    Every fold is a run of its own in ``fold-00``, ``fold-01``, …; with ``protocol.fold`` only that one is
    trained and tested, say on another machine.
    """

    def train(self, run: Run, data: TrainingData, observer: Observer) -> list[Learnt]:
        """One training per fold, in the run's directory."""
        if run.recipe.protocol.fold is not None:
            return [_train_fold(run, data, observer)]
        folds = range(run.recipe.protocol.folds or DEFAULT_FOLDS)
        learnt = []
        for fold in folds:
            observer.stage(f"fold {fold + 1} of {len(folds)}")
            learnt.append(_train_fold(fold_run(run, fold), data, observer))
        return learnt

    def conclude(self, run: Run, learnt: Sequence[Learnt], opened: Sequence[Opened]) -> Opened:
        """Write means over the folds where other results have one network's scores, and every fold's."""
        if run.recipe.protocol.fold is not None:
            return super().conclude(run, learnt, opened)
        together = concatenated(run.recipe, opened)
        results = [one.run.result() or {} for one in learnt]
        run.write_cost(_total_cost([one.run.cost() or {} for one in learnt]))
        run.write_result(_result(run.recipe, results, together.scores.to_dict()))
        return together


def fold_run(run: Run, fold: int) -> Run:
    """The run of one fold inside the run of all."""
    return Run.open(run.path / f"fold-{fold:02d}", run.recipe.changed({"protocol.fold": fold}))


def fold_splits(recipe: Recipe, data: TrainingData) -> tuple[SampleSet, SampleSet]:
    """The images that a fold learns from, and those of its own classes.

    The draw of the folds depends on the seed and the number of classes only; their sizes differ by one class
    at most.

    Raises:
        ValueError: A fold would have fewer than two classes, or there is no such fold.
    """
    everything = data.all_classes
    folds, fold = recipe.protocol.folds or DEFAULT_FOLDS, recipe.protocol.fold or 0
    if fold >= folds:
        raise ValueError(f"protocol.fold={fold} of {folds} folds: they are counted from 0")
    if everything.num_classes < 2 * folds:
        raise ValueError(
            f"{everything.num_classes} classes in {folds} folds leave one with a single class, and kin "
            "cannot be told from strangers there: lower protocol.folds"
        )
    order = torch.randperm(everything.num_classes, generator=torch.Generator().manual_seed(recipe.seed))
    own = torch.zeros(len(order), dtype=torch.bool)
    own[fold::folds] = True
    return everything.of_classes(order[~own]), everything.of_classes(order[own])


def _train_fold(run: Run, data: TrainingData, observer: Observer) -> Learnt:
    images, validation = fold_splits(run.recipe, data)
    trained = train(run, images, validation, observer)
    return Learnt(run, trained, images, validation, "best epoch on validation classes")


def _result(recipe: Recipe, folds: list[dict[str, Any]], together: dict[str, Any]) -> dict[str, Any]:
    """In the shape of other results; what all folds share is the first one's."""
    return folds[0] | {
        "recipe": recipe.to_dict(),
        "selection": {"rule": f"mean of {len(folds)} folds, best epoch on validation classes", "epoch": None},
        "test": over_folds(statistics.fmean, [fold["test"] for fold in folds]),
        "test_standard_deviation": over_folds(statistics.stdev, [fold["test"] for fold in folds]),
        "concatenated": together,
        "warnings": [f"fold {n}: {text}" for n, fold in enumerate(folds) for text in fold["warnings"]],
        "validation": over_folds(statistics.fmean, [fold["validation"] for fold in folds]),
        "folds": [
            {"run": f"fold-{number:02d}"}
            | {key: fold[key] for key in ("selection", "validation", "test", "data")}
            for number, fold in enumerate(folds)
        ],
    }


def over_folds(
    statistic: Callable[[list[float]], float], scores: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """A statistic of every score over the folds.

    >>> over_folds(statistics.fmean, [{"recall_at_1": 0.5}, {"recall_at_1": 0.7}])
    {'recall_at_1': 0.6}
    """
    return {name: statistic([fold[name] for fold in scores]) for name in scores[0]}


def _total_cost(folds: Sequence[Mapping[str, float | int]]) -> dict[str, float | int]:
    """Folds train one after the other: times add up, memory does not."""
    seconds = {
        name: round(sum(fold[name] for fold in folds), 3)
        for name in ("training_seconds", "seconds_per_epoch")
    }
    return seconds | {"peak_memory_bytes": max(fold["peak_memory_bytes"] for fold in folds)}
