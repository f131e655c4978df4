"""Real features of real birds: the numbers that were measured on this copy of CUB with other code."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import data, networks


def recall_at_1(embeddings, labels):
    """Percent of images whose nearest neighbour by cosine, itself excluded, is of their class."""
    embeddings = normalize(embeddings)
    similarities = embeddings @ embeddings.T
    similarities.fill_diagonal_(-2)
    return 100 * (labels[similarities.argmax(dim=1)] == labels).float().mean().item()


@pytest.mark.slow
def test_recall_of_frozen_features_on_cub(shared, tmp_path):
    caches = os.environ.get("NEARKIN_TEST_CACHE", tmp_path)  # kept from run to run, minutes become seconds
    birds = data.build("cub200", root=shared / "datasets")
    assert (len(birds.train), len(birds.test), birds.notes) == (5_864, 5_924, ())

    def features(pooling, split):
        network = networks.build(
            "timm:tf_efficientnet_lite0",
            embedding_dim=512,
            pooling=pooling,
            weights=shared / "weights" / "tf_efficientnet_lite0.safetensors",
        )
        activations, rest = networks.cache_activations(network, "blocks.6", split, caches, flips=False)
        transform = networks.ActivationTransform()
        return rest, networks.embed(rest, activations, what="features", transform=transform)

    _, averages = features("avg", birds.test)
    assert recall_at_1(averages, birds.test.labels) == pytest.approx(55.4, abs=0.5)
    network, sums = features("avg+max", birds.test)
    assert recall_at_1(sums, birds.test.labels) == pytest.approx(57.2, abs=0.6)
    networks.initialise_head_with_pca(network, features("avg+max", birds.train)[1])
    with torch.no_grad():
        embeddings = network.head(sums)
    assert recall_at_1(embeddings, birds.test.labels) == pytest.approx(57.0, abs=0.7)
