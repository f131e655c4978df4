"""Noisy labels: a share of the training labels is wrong."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.data import DataSet, SampleSet
from nearkin.observer import Observer
from nearkin.protocols.less_supervision import LessSupervision
from nearkin.training import NetworkResult, Run, Scorer, Task
from nearkin.training.protocol import register

NOISE = ("uniform", "nearest")


@register("noisy_labels")
class NoisyLabels(LessSupervision):
    """The labels of a share of the training samples, at random, are replaced by wrong ones.

    The draw depends on the seed: with the same one, the wrong labels of a smaller share are a part of those
    of a larger one. Test labels are right.

    Args:
        share: Of all training samples, rounded; 0 for none.
        noise: "uniform": any other class, all equally likely. "nearest": the class whose mean feature, by the
            network as training starts from it, is nearest to that of the right one, as people err; these
            labels are replaced when training begins, and the true ones are seen by nothing that learns.
    """

    def __init__(self, share: float = 0.2, noise: str = "uniform") -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share={share} must be at least 0 and below 1")
        if noise not in NOISE:
            raise ValueError(f"noise={noise!r} must be one of: {', '.join(NOISE)}")
        self.share, self.noise = share, noise

    def weakened(self, samples: SampleSet, seed: int) -> tuple[SampleSet, str]:
        """The samples with uniform noise in their labels; for "nearest", as they are."""
        wrong = wrong_rows(len(samples), self.share, seed)
        note = f"the labels of {len(wrong):,} of {len(samples):,} training samples are wrong ({self.noise})"
        if self.noise == "nearest":
            return samples, note
        return samples.relabelled(uniformly_wrong(samples.labels, wrong, seed)), note

    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """One training on all classes, with the wrong labels."""
        if self.noise == "nearest":
            observer.stage("looking for the nearest class of each")
            samples = data.all_classes
            features = task.embedder.embed(samples, what="features", progress=observer.progress)
            labels = samples.labels.clone()
            wrong = wrong_rows(len(samples), self.share, task.seed)
            labels[wrong] = nearest_classes(features, labels)[labels[wrong]]
            data = replace(data, train=samples.relabelled(labels), validation=None)
            task = replace(task, data=data)
        return super().train(task, run, data, observer, score_test)


def wrong_rows(samples: int, share: float, seed: int) -> Tensor:
    """Which rows get a wrong label: those of a smaller share are among those of a larger one.

    >>> len(wrong_rows(10, 0.2, seed=0))
    2
    """
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    return order[: round(share * samples)]


def uniformly_wrong(labels: Tensor, wrong: Tensor, seed: int) -> Tensor:
    """Labels ``(N,)`` with another class, drawn uniformly, in the rows ``wrong``.

    Raises:
        ValueError: There is one class only.
    """
    classes = int(labels.max()) + 1
    if classes < 2:
        raise ValueError("noisy_labels needs two training classes or more")
    generator = torch.Generator().manual_seed(seed + 1)  # of another stream than the rows themselves
    drawn = torch.randint(classes - 1, (len(labels),), generator=generator)[wrong]
    changed = labels.clone()
    changed[wrong] = drawn + (drawn >= labels[wrong])  # one of the others: the own one is stepped over
    return changed


def nearest_classes(features: Tensor, labels: Tensor) -> Tensor:
    """The class whose mean of unit features is nearest to that of each, ``(C,)``.

    Args:
        features: ``(N, F)``.
        labels: ``(N,)``, every class from 0 on.
    """
    units = normalize(features.double(), dim=1)
    means = units.new_zeros(int(labels.max()) + 1, units.shape[1]).index_add_(0, labels, units)
    means = normalize(means, dim=1)
    return (means @ means.T).fill_diagonal_(-torch.inf).argmax(dim=1)
