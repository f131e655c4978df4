"""Closed set: the classes of tomorrow are those of today, and new images of them are searched for."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nearkin.data import DataSet, SampleSet
from nearkin.data.joining import join_samples
from nearkin.data.samples import ClosedDataSet
from nearkin.observer import Observer
from nearkin.training import NetworkResult, Protocol, Run, Scorer, Task, train
from nearkin.training.protocol import register


@register("closed_set")
class ClosedSet(Protocol):
    """Some images of *every* class are held out for the test, and search among the images trained on.

    For those who will meet the same products tomorrow. Its score is no score of classes never seen, and is
    never ranked beside one: results say that the set is closed.

    Args:
        test_share: The share of each class's images to hold out for the test.
        validation_share: The share of each class's other images that choose the epoch.
    """

    def __init__(self, test_share: float = 0.3, validation_share: float = 0.2) -> None:
        for name, share in (("test_share", test_share), ("validation_share", validation_share)):
            if not 0 < share < 1:
                raise ValueError(f"{name}={share} must lie between 0 and 1")
        self.test_share, self.validation_share = test_share, validation_share

    def arrange(self, data: DataSet, seed: int) -> DataSet:
        """All classes in one set, some images of each for the test; the others are what is found."""
        everything = _merged([one for one in (data.train, data.validation, data.test) if one is not None])
        learnt, tested = held_out(everything.labels, self.test_share, seed, fewest=1)
        if len(tested) == 0:
            raise ValueError("closed_set needs classes of two images or more: all of these have one")
        train_set, test_set = everything.select(learnt), everything.select(tested)
        note = (
            f"a closed set: {len(test_set):,} images of the {test_set.num_classes:,} classes trained on "
            "search among the training images; this is no score of classes never seen"
        )
        return ClosedDataSet(
            data.name,
            train_set,
            test_set,
            query=test_set,
            gallery=train_set,
            notes=(*data.notes, note),
        )

    def split(self, data: DataSet, seed: int) -> tuple[SampleSet, SampleSet | None]:
        """The images to learn from, and two or more of each large enough class that choose the epoch."""
        learnt, chosen = held_out(data.train.labels, self.validation_share, seed, fewest=2)
        if len(chosen) == 0:
            return data.train, None
        return data.train.select(learnt), data.train.select(chosen)

    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """One training, selected on images that are held out."""
        samples, validation = self.split(data, task.seed)
        trained = train(task, run, task.embedder.copy(), samples, validation=validation, observer=observer)
        rule = "last epoch" if validation is None else "best epoch on validation images of the same classes"
        return [replace(trained, rule=rule)]


def held_out(labels: Tensor, share: float, seed: int, *, fewest: int) -> tuple[Tensor, Tensor]:
    """Rows to keep and rows to hold out: a share of each class, which keeps as many as are held out at least.

    Args:
        labels: ``(N,)``.
        share: Of each class, rounded.
        seed: Draws the rows.
        fewest: Rows to hold out of a class at least; smaller classes keep all.

    >>> [len(rows) for rows in held_out(torch.tensor([0, 0, 0, 0, 1]), 0.5, 0, fewest=1)]
    [3, 2]
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        rows = order[labels[order] == label]
        count = max(round(share * len(rows)), fewest)
        if len(rows) >= 2 * fewest:
            out[rows[: min(count, len(rows) // 2)]] = True
    return (~out).nonzero().flatten(), out.nonzero().flatten()


def _merged(sets: list[SampleSet]) -> SampleSet:
    """Samples of several sets in one, classes by name."""
    samples = sets[0].samples
    for one in sets[1:]:
        samples = join_samples(samples, one.samples)
    names = [one.class_names[label] for one in sets for label in one.labels.tolist()]
    return SampleSet(samples, names)
