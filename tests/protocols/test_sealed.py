from __future__ import annotations

import gc
import types
import typing

import pytest
import torch
from poison import poison_test_splits

from nearkin.data import DataSet, ImageArray, SampleSet
from nearkin.evaluation import retrieval_scores
from nearkin.networks import build, embed
from nearkin.protocols import SealedTest, execute, names, open_data, score_test, seal
from nearkin.protocols.base import registry
from nearkin.recipe.recipe import ProtocolRecipe
from nearkin.training import Observer, Recipe, Run


def image_set(names: list[str], seed: int = 0) -> SampleSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (len(names), 1, 16, 16), generator=generator, dtype=torch.uint8)
    return SampleSet(ImageArray(pixels), names)


@pytest.fixture
def network():
    return build("convnet", embedding_dim=8, size=16, width=4)


def test_the_test_split_opens_once(network):
    data_set = DataSet("toy", image_set(list("aabb")), image_set(list("ccdd")))
    sealed = SealedTest(data_set)
    assert (sealed.num_images, sealed.num_classes) == (4, 2)
    (opened,) = sealed.open([network], Recipe())
    assert opened.scores.queries == 4
    with pytest.raises(RuntimeError, match="opened already"):
        sealed.open([network], Recipe())
    with pytest.raises(RuntimeError, match="opened already"):
        sealed.unsealed_scores(Recipe())


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


@pytest.fixture
def vault(monkeypatch):
    return poison_test_splits(monkeypatch)


def test_whoever_touches_the_poisoned_test_split_is_caught(vault, small_recipe):
    test = open_data(Recipe.parse(small_recipe)).test
    for leak in (
        lambda: test.labels,
        lambda: test.samples,
        lambda: test[0],
        lambda: len(test),
        lambda: test.select([0]),
    ):
        with pytest.raises(AssertionError, match="somebody asked the test split"):
            leak()


class Interruption(Exception):
    pass


class StopInEpoch(Observer):
    """Breaks off in the middle of the second epoch of every training."""

    def step(self, *, epoch, batch, **_):
        if (epoch, batch) == (1, 2):
            raise Interruption


HONEST = {
    "standard": {"name": "standard"},
    "fixed_validation": {"name": "fixed_validation"},
    "a share": {"name": "fixed_validation", "validation_share": 0.3},
    "cross_validation": {"name": "cross_validation", "folds": 2},
    "one fold": {"name": "cross_validation", "folds": 3, "fold": 1},
}


@pytest.mark.parametrize("protocol", HONEST.values(), ids=HONEST)
def test_training_selection_and_resuming_cannot_reach_the_test_split(protocol, vault, small_recipe, tmp_path):
    run = Run.open(tmp_path / "run", Recipe.parse(small_recipe | {"protocol": protocol}))
    with pytest.raises(Interruption):
        execute(run, StopInEpoch())
    assert (vault.opened, vault.unsealed) == (0, 0)
    result = execute(run).result
    assert (vault.opened, vault.unsealed) == (1, 0)
    assert result["test"]["queries"] == 240
    execute(run)
    assert (vault.opened, vault.unsealed) == (1, 0)


def test_every_protocol_is_either_honest_or_says_what_it_is():
    honest = {protocol["name"] for protocol in HONEST.values()}
    assert {*names()} == honest | {"standard_best_on_test"}
    assert [name for name in names() if registry.get(name).test_chooses_epoch] == ["standard_best_on_test"]


def test_recipes_know_every_protocol():
    assert sorted(typing.get_args(ProtocolRecipe.model_fields["name"].annotation)) == names()


def test_training_data_does_not_lead_to_the_test_split(small_recipe):
    training_data, sealed = seal(open_data(Recipe.parse(small_recipe)))
    test = sealed._data_set.test
    seen, waiting = set(), [training_data]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | types.ModuleType):
            continue
        seen.add(id(thing))
        assert thing is not test
        assert thing is not sealed
        assert thing is not test.samples.pixels
        waiting += gc.get_referents(thing)
    assert id(training_data.train.samples.pixels) in seen
