from __future__ import annotations

import pytest
import torch

from nearkin.data import DataSet, ImageArray, ImageSet
from nearkin.evaluation import retrieval_scores
from nearkin.networks import build, embed
from nearkin.protocols import SealedTest, score_test
from nearkin.training import Recipe


def image_set(names: list[str], seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (len(names), 1, 16, 16), generator=generator, dtype=torch.uint8)
    return ImageSet(ImageArray(pixels), names)


@pytest.fixture
def network():
    return build("convnet", embedding_dim=8, size=16, width=4)


def test_the_test_split_opens_once(network):
    data_set = DataSet("toy", image_set(list("aabb")), image_set(list("ccdd")))
    sealed = SealedTest(data_set)
    assert (sealed.num_images, sealed.num_classes) == (4, 2)
    opened = sealed.open(network, Recipe())
    assert opened.scores.queries == 4
    with pytest.raises(RuntimeError, match="opened already"):
        sealed.open(network, Recipe())


def test_queries_search_the_gallery_by_class_name(network):
    query, gallery = image_set(list("ddcc"), seed=1), image_set(list("xccdde"), seed=2)
    data_set = DataSet("toy", image_set(list("aabb")), image_set(list("cdex")), query=query, gallery=gallery)
    scores = score_test(network, data_set, Recipe()).scores
    numbers = {name: number for number, name in enumerate("cdex")}
    expected = retrieval_scores(
        embed(network, query),
        torch.tensor([numbers[n] for n in "ddcc"]),
        gallery=embed(network, gallery),
        gallery_labels=torch.tensor([numbers[n] for n in "xccdde"]),
    )
    assert scores == expected
