"""Noisy labels: a share of the training labels is wrong."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.atomic import write_json
from nearkin.data import UNKNOWN, DataSet, SampleSet
from nearkin.evaluation import nearest_neighbours
from nearkin.evaluation.diagnostics import label_doubts
from nearkin.losses import Loss, SubCenterArcFace
from nearkin.observer import Observer
from nearkin.protocols.less_supervision import LessSupervision
from nearkin.training import NetworkResult, Run, Scorer, Task, train
from nearkin.training.protocol import register
from nearkin.training.resuming import grouped

NOISE = ("uniform", "nearest")
CLEANING = ("neighbours", "sub_centres")
QUALITY = "label_quality.json"
CLEANER = "selection_of_labels"
"""The directory of a training that only looked for wrong labels."""


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
        clean: "neighbours": labels that none of a sample's nearest neighbours has, by the features of the
            network as training starts from it, are taken for wrong and away (see the doubts of
            :func:`nearkin.evaluation.diagnostics`). Such samples are left out, or learnt from without a
            label (``[unlabelled]``). How many of them were wrong is in ``label_quality.json`` of the run.
            "sub_centres": a network is trained on all labels with ``sub_center_arcface`` first, as long as
            the recipe trains, and labels of samples far from their class's dominant centre are taken away.
        neighbours: How many nearest neighbours are asked.
        degrees: From which angle on a sample is far from the dominant centre.
    """

    def __init__(
        self,
        share: float = 0.2,
        noise: str = "uniform",
        clean: str | None = None,
        neighbours: int = 10,
        degrees: float = 75.0,
    ) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share={share} must be at least 0 and below 1")
        if noise not in NOISE:
            raise ValueError(f"noise={noise!r} must be one of: {', '.join(NOISE)}")
        if clean is not None and clean not in CLEANING:
            raise ValueError(f"clean={clean!r} must be one of: {', '.join(CLEANING)}")
        if neighbours < 1:
            raise ValueError(f"neighbours={neighbours} must be at least 1")
        if not 0 < degrees < 180:
            raise ValueError(f"degrees={degrees} must lie between 0 and 180")
        self.degrees = degrees
        self.share, self.noise, self.clean, self.neighbours = share, noise, clean, neighbours

    def weakened(self, samples: SampleSet, seed: int) -> tuple[SampleSet, str]:
        """The samples with uniform noise in their labels; for "nearest", as they are."""
        wrong = wrong_rows(len(samples), self.share, seed)
        if self.noise == "nearest":
            return samples, self._note(len(samples))
        return samples.relabelled(uniformly_wrong(samples.labels, wrong, seed)), self._note(len(samples))

    def _note(self, samples: int) -> str:
        wrong = round(self.share * samples)
        return f"the labels of {wrong:,} of {samples:,} training samples are wrong ({self.noise})"

    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """One training on all classes, with the wrong labels that are left."""
        if self.noise == "nearest" or self.clean is not None:
            observer.stage("looking for nearest classes and neighbours")
            samples = data.all_classes
            features = task.embedder.embed(samples, what="features", progress=observer.progress)
            labels = samples.labels.clone()
            wrong = wrong_rows(len(samples), self.share, task.seed)
            if self.noise == "nearest":
                labels[wrong] = nearest_classes(features, labels)[labels[wrong]]
            if self.clean is not None:
                doubted = self._doubted(task, run, samples.relabelled(labels), features, observer)
                labels[doubted] = UNKNOWN
                # Where images were left out after the labels were drawn, rows are not what they were.
                if run.writes and self._note(len(samples)) in data.notes:
                    run.begin()
                    write_json(run.path / QUALITY, label_quality(len(samples), wrong, doubted))
            data = replace(data, train=samples.relabelled(labels), validation=None)
            task = replace(task, data=data)
        trained = super().train(task, run, data, observer, score_test)
        if self.clean == "sub_centres" and run.writes:
            Run(run.path / CLEANER, run.description).remove_checkpoints()
        return trained

    def _doubted(
        self, task: Task, run: Run, samples: SampleSet, features: Tensor, observer: Observer
    ) -> Tensor:
        """Rows whose labels are taken for wrong, in their order."""
        if self.clean == "neighbours":
            return doubtful_rows(features, samples.labels, self.neighbours)
        run.begin()  # so that the first training is found again as a part of this run
        own = Run.open(run.path / CLEANER, run.description)
        observer.stage("training with sub-centres, to find wrong labels")
        trained = train(
            replace(task, loss=_with_sub_centres, unlabelled=None),
            own,
            task.embedder.copy(),
            samples,
            observer=observer,
        )
        assert trained.embedder is not None
        checkpoint = own.last_checkpoint()
        assert checkpoint is not None
        embeddings = trained.embedder.embed(samples, progress=observer.progress)
        loss = SubCenterArcFace(samples.num_classes, embeddings.shape[1])
        loss.load_state_dict(grouped(checkpoint.tensors)["loss"])
        far = loss.far_from_dominant_centre(embeddings, samples.labels, degrees=self.degrees)
        if bool(far.all()):
            raise ValueError(
                f"all samples are further than {self.degrees:g} degrees from their class's dominant centre, "
                "so that no label would be left: train longer, or choose a larger protocol.degrees"
            )
        return far.nonzero().flatten()


def _with_sub_centres(
    samples: SampleSet, embedding_dim: int, generator: torch.Generator, observer: Observer
) -> Loss:
    return SubCenterArcFace(samples.num_classes, embedding_dim, generator=generator)


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


def doubtful_rows(features: Tensor, labels: Tensor, neighbours: int) -> Tensor:
    """Rows whose label none of their nearest neighbours has, in their order.

    Args:
        features: ``(N, F)``.
        labels: ``(N,)``, those that are given, right or wrong.
        neighbours: How many are asked; all others where they are fewer.

    >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
    >>> doubtful_rows(points, torch.tensor([0, 0, 1, 1, 1]), 2)
    tensor([2])
    """
    _, found = nearest_neighbours(features.float(), min(neighbours, len(features) - 1))
    return torch.tensor(sorted(doubt.index for doubt in label_doubts(found, labels)), dtype=torch.long)


def label_quality(samples: int, wrong: Tensor, doubted: Tensor) -> dict[str, float | int]:
    """How well doubts find wrong labels.

    >>> label_quality(10, torch.tensor([1, 2, 3, 4]), torch.tensor([3, 4, 5]))["recall"]
    0.5
    """
    found = int(torch.isin(doubted, wrong).sum())
    return {
        "samples": samples,
        "wrong": len(wrong),
        "doubted": len(doubted),
        "found": found,
        "precision": found / max(len(doubted), 1),
        "recall": found / max(len(wrong), 1),
    }
