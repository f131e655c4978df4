"""What protocols with less than all labels share: they take labels away before anything else sees them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nearkin.data import DataSet, SampleSet
from nearkin.protocols.standard import Standard


class LessSupervision(Standard):
    """The training samples of the standard protocol with fewer labels; the last epoch counts.

    Labels are taken away or changed when the data set is opened: what builds, trains and selects is given
    samples that never had others. No label chooses the epoch, since there are few, wrong ones, or none; a
    recipe may name one (``training.stop_after``). The test classes keep their labels, under seal.
    """

    def arrange(self, data: DataSet, seed: int) -> DataSet:
        """The data set with other training labels, and a note that says which."""
        samples, note = self.weakened(data.all_classes, seed)
        return replace(data, train=samples, validation=None, notes=(*data.notes, note))

    @abstractmethod
    def weakened(self, samples: SampleSet, seed: int) -> tuple[SampleSet, str]:
        """Samples with the labels that may be learnt from, and what was done to them in a sentence."""


def drawn_of_each_class(labels: Tensor, wanted: Callable[[int], int], seed: int) -> Tensor:
    """Rows at random, some of each class, in their order.

    Args:
        labels: ``(N,)``.
        wanted: How many rows of a class with so many; all of them where they are fewer.
        seed: Draws them; fewer rows of a class are a part of more of it.

    >>> drawn_of_each_class(torch.tensor([0, 0, 0, 1]), lambda count: 2, 0)
    tensor([0, 1, 3])
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    sizes = labels.bincount().tolist()
    return torch.cat([rows[: wanted(len(rows))] for rows in order.split(sizes)]).sort().values
