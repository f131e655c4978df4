"""Two modalities: searched in both directions, beside ridge regression between their frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nearkin.data import SampleSet
from nearkin.data.two_modalities import TwoModalities
from nearkin.evaluation import RetrievalScores
from nearkin.networks import Embedder, Network, TwoTowers, WrappedNetwork
from nearkin.networks.two_towers import ridge, tower, with_heads
from nearkin.observer import Observer
from nearkin.protocols.sealed import scored
from nearkin.training import Task, TestEmbeddings

RIDGE = "ridge regression between frozen features"
_PENALTIES = tuple(10.0**power for power in range(-3, 4))
_HELD_OUT = 0.3  # of the training classes, to choose the penalty on


def are_two(samples: SampleSet) -> bool:
    """Whether samples are pairs of two modalities."""
    return isinstance(samples.samples, TwoModalities)


def directions(
    opened: TestEmbeddings, samples: SampleSet, recall_at: Sequence[int]
) -> dict[str, RetrievalScores]:
    """Scores of both directions of search by their names, such as ``text_to_image``; none for one modality.

    Args:
        opened: The second modality searches in the first.
        samples: The test samples.
        recall_at: The values of k.
    """
    if not isinstance(samples.samples, TwoModalities):
        return {}
    assert opened.gallery is not None
    assert opened.gallery_embeddings is not None
    first, second = samples.samples.names
    back = scored(
        recall_at, opened.gallery, opened.gallery_embeddings, opened.queries, opened.query_embeddings
    )
    return {
        f"{second}_to_{first}": replace(opened.scores, per_query=None),
        f"{first}_to_{second}": replace(back.scores, per_query=None),
    }


def has_ridge(task: Task) -> bool:
    """Whether there are features of both modalities that ridge regression can go between."""
    return are_two(task.data.train) and all(_features(task.embedder, number) is not None for number in (0, 1))


def ridge_start(task: Task, observer: Observer) -> Embedder:
    """Frozen features of both modalities, the second mapped to the first; learnt from training pairs alone.

    The penalty is chosen on training classes that are held out for it.
    """
    observer.stage(f"fitting {RIDGE}")
    samples = task.data.all_classes
    assert isinstance(samples.samples, TwoModalities)
    sides = []
    for number, items in enumerate((samples.samples.first, samples.samples.second)):
        found = _features(task.embedder, number)
        assert found is not None
        used = samples.samples.pairs[:, number]
        needed, places = used.unique(return_inverse=True)
        own = SampleSet(items.select(needed.tolist()), torch.zeros(len(needed), dtype=torch.long))
        sides.append((found.network, found.embed(own, progress=observer.progress)[places].double()))
    (first, one), (second, other) = sides
    penalty = _penalty(one, other, samples.labels, task.seed)
    fitted = with_heads((first, second), *_fit(one, other, penalty))
    return replace(task.embedder, network=WrappedNetwork(fitted, 2 * one.shape[1]))


def _features(embedder: Embedder, number: int) -> Embedder | None:
    """What a tower builds on: vectors as they are, or the features of a network of ours."""
    towers = embedder.network.backbone
    if not isinstance(towers, TwoTowers):
        return None
    own = tower(embedder, number)
    module = towers[number]
    if isinstance(module, Network):
        return replace(own, network=module.headless())
    width = getattr(_first_layer(module), "in_features", None)
    return None if width is None else replace(own, network=WrappedNetwork(nn.Identity(), width))


def _first_layer(module: nn.Module) -> nn.Module:
    """The layer that is given the inputs, of a row of layers."""
    return _first_layer(module[0]) if isinstance(module, nn.Sequential) and len(module) else module


def _fit(one: Tensor, other: Tensor, penalty: float) -> tuple[tuple[Tensor, Tensor], Tensor]:
    centres = one.mean(dim=0), other.mean(dim=0)
    return centres, ridge(other - centres[1], one - centres[0], penalty)


def _penalty(one: Tensor, other: Tensor, labels: Tensor, seed: int) -> float:
    """The penalty with the best Recall@1 from the second to the first on classes that are held out."""
    classes = int(labels.max()) + 1
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    held_out = torch.isin(labels, order[: max(round(_HELD_OUT * classes), 1)])
    if held_out.all():
        return 1.0
    found = {}
    for penalty in _PENALTIES:
        centres, weights = _fit(one[~held_out], other[~held_out], penalty)
        images, predicted = one[held_out] - centres[0], (other[held_out] - centres[1]) @ weights
        found[penalty] = _share_found(predicted, images, labels[held_out])
    return max(found, key=found.__getitem__)


def _share_found(queries: Tensor, gallery: Tensor, labels: Tensor) -> float:
    queries, gallery = (nn.functional.normalize(one, dim=1) for one in (queries, gallery))
    nearest = torch.cat([(part @ gallery.T).argmax(dim=1) for part in queries.split(1024)])
    return float((labels[nearest] == labels).double().mean())
