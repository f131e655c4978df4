"""Two networks as one, side by side or each by itself, and ridge regression between their features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.image_and_text import IMAGE_AND_TEXT
from nearkin.data.samples import SampleSet
from nearkin.data.two_modalities import EachModality, TwoModalities
from nearkin.networks.activations import Activations
from nearkin.networks.base import Network
from nearkin.networks.embedder import Embedder
from nearkin.networks.embedding import Progress
from nearkin.networks.towers import TwoTowers
from nearkin.networks.wrapped import WrappedNetwork


def tower(embedder: Embedder, number: int) -> Embedder:
    """One of the two networks of an embedder by itself, with how it sees its modality.

    Args:
        embedder: Of :class:`TwoTowers`.
        number: 0 for the first, 1 for the second.

    Raises:
        ValueError: It has one network only, or no such one.
    """
    towers = embedder.network.backbone
    if not isinstance(towers, TwoTowers) or number not in (0, 1):
        raise ValueError(f"there is no network for modality {number!r}: only TwoTowers have two, 0 and 1")
    module = towers[number]
    if not isinstance(module, Network):
        module = WrappedNetwork(module, embedder.network.embedding_dim // 2)
    seen = [
        getattr(one, ("first", "second")[number]) if isinstance(one, EachModality) else one
        for one in (embedder.training_transform, embedder.evaluation_transform)
    ]
    return replace(
        embedder,
        network=module,
        training_transform=seen[0],
        evaluation_transform=seen[1],
        transform_spec=_own_spec(embedder.transform_spec, number),
    )


def _own_spec(spec: Mapping[str, Any] | None, number: int) -> dict[str, Any] | None:
    """How to make the transform of one modality again, of that of both."""
    if spec is None or spec.get("name") != IMAGE_AND_TEXT:
        return None
    return {"name": "as_is"} if number else {**spec, "name": "resized_crop"}


def prepared_pairs(embedder: Embedder, samples: SampleSet, *, progress: Progress | None = None) -> SampleSet:
    """Pairs of two modalities as what the trunks of both networks make of them: each item once.

    Nothing is mirrored: a text may speak of left and right.

    Args:
        embedder: Of :class:`TwoTowers`, with a trunk.
        samples: Of :class:`~nearkin.data.TwoModalities`, prepared or not.
        progress: Called with the items done and the number of all of a modality.
    """
    pairs = samples.samples
    assert isinstance(pairs, TwoModalities)
    if isinstance(pairs.first, Activations):
        return samples
    sides, places = [], []
    for number in (0, 1):
        items, _ = pairs.items(number)
        unlabelled = SampleSet(items, torch.zeros(len(items), dtype=torch.long))
        seen = replace(tower(embedder, number), trunk_crops=0).prepared(unlabelled, progress=progress)
        sides.append(seen.samples)
        places.append(pairs.pairs[:, number].unique(return_inverse=True)[1])
    made = TwoModalities(sides[0], sides[1], torch.stack(places, dim=1), pairs.names)
    return SampleSet(made, samples.labels, samples.class_names)


def with_heads(towers: Sequence[Network], centres: Sequence[Tensor], weights: Tensor) -> TwoTowers:
    """Networks whose embeddings are features less their centre; those of the second go through weights.

    Args:
        towers: Two networks that give features, ``(B, F)`` and ``(B, G)``.
        centres: ``(F,)`` and ``(G,)``.
        weights: ``(G, F)``, from the features of the second to those of the first.
    """
    made = []
    for network, centre, matrix in zip(
        towers, centres, (torch.eye(weights.shape[1], dtype=weights.dtype), weights), strict=True
    ):
        replica = network.headless()
        head = nn.Linear(*matrix.shape)
        with torch.no_grad():
            head.weight.copy_(matrix.T)
            head.bias.copy_(-centre @ matrix)
        replica.head, replica.embedding_dim = head, matrix.shape[1]
        made.append(replica)
    return TwoTowers(*made)


def ridge(inputs: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """The weights ``(G, F)`` that predict centred targets ``(N, F)`` from centred inputs ``(N, G)``.

    Args:
        inputs: X.
        targets: Y.
        penalty: λ, in multiples of the mean square of the columns of X: XᵀX + λ · tr(XᵀX)/G · 1.

    >>> ridge(torch.eye(2).double(), torch.eye(2).double(), 1.0)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    gram = inputs.T @ inputs
    scale = penalty * gram.diagonal().mean()
    penalised = gram + scale * torch.eye(len(gram), dtype=gram.dtype)
    weights: Tensor = torch.linalg.solve(penalised, inputs.T @ targets)
    return weights
