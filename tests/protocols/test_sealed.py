from __future__ import annotations

import gc
import types
from dataclasses import replace

import pytest
import torch
from poison import poison_test_splits
from running import execute, new_run

from nearkin.data import DataSet, ImageArray, SampleSet, evaluation_transform
from nearkin.evaluation import retrieval_scores
from nearkin.networks import Embedder, build, embed
from nearkin.protocols import SealedTest, names, prepared, registry, score_test, scored, seal
from nearkin.protocols.sealed import concatenated
from nearkin.recipe import Recipe, open_data
from nearkin.training import Observer


def image_set(names: list[str], seed: int = 0) -> SampleSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (len(names), 1, 16, 16), generator=generator, dtype=torch.uint8)
    return SampleSet(ImageArray(pixels), names)


@pytest.fixture
def network():
    network = build("convnet", embedding_dim=8, size=16, width=4)
    seen = evaluation_transform(network.preprocessing, "none")
    return Embedder(network, training_transform=seen, evaluation_transform=seen)


def test_the_test_split_opens_once(network):
    data_set = DataSet("toy", image_set(list("aabb")), image_set(list("ccdd")))
    sealed = SealedTest(data_set)
    (opened,) = sealed.open([network], (1,))
    assert opened.scores.queries == 4
    with pytest.raises(RuntimeError, match="opened already"):
        sealed.open([network], (1,))
    with pytest.raises(RuntimeError, match="opened already"):
        sealed.unsealed_scores((1,))


def test_queries_search_the_gallery_by_class_name(network):
    query, gallery = image_set(list("ddcc"), seed=1), image_set(list("xccdde"), seed=2)
    data_set = DataSet("toy", image_set(list("aabb")), image_set(list("cdex")), query=query, gallery=gallery)
    scores = score_test(network, data_set, (1, 2, 4, 8)).scores
    numbers = {name: number for number, name in enumerate("cdex")}
    expected = retrieval_scores(
        embed(network.network, query),
        torch.tensor([numbers[n] for n in "ddcc"]),
        gallery=embed(network.network, gallery),
        gallery_labels=torch.tensor([numbers[n] for n in "xccdde"]),
    )
    assert scores == expected


def test_a_data_set_without_test_classes_cannot_be_sealed():
    with pytest.raises(ValueError, match="toy has no test split"):
        seal(DataSet("toy", image_set(list("aabb"))))


def test_several_networks_side_by_side_search_the_gallery():
    query, gallery = image_set(list("dccd")), image_set(list("xccdde"))
    generator = torch.Generator().manual_seed(0)
    sizes = (0.1, 50.0)  # of the embeddings: each network counts as much as the other
    rows = [[size * torch.randn(n, 6, generator=generator) for n in (4, 6)] for size in sizes]
    opened = [scored((1, 2), query, q, gallery, g) for q, g in rows]
    found = concatenated((1, 2), opened)
    numbers = {name: number for number, name in enumerate("cdex")}
    q, g = (
        torch.stack(
            [torch.cat([part[row] / part[row].norm() for part in parts]) for row in range(len(parts[0]))]
        )
        for parts in zip(*rows, strict=True)
    )
    expected = retrieval_scores(
        q,
        torch.tensor([numbers[n] for n in "dccd"]),
        gallery=g,
        gallery_labels=torch.tensor([numbers[n] for n in "xccdde"]),
        recall_at=(1, 2),
    )
    assert found.scores == expected
    assert torch.allclose(found.query_embeddings, q)
    assert torch.allclose(found.gallery_embeddings, g)
    assert (found.queries, found.gallery) == (query, gallery)


class Heard(Observer):
    def __init__(self) -> None:
        self.stages, self.counts = [], []

    def stage(self, text):
        self.stages.append(text)

    def progress(self, done, total):
        self.counts.append((done, total))


def test_a_trunk_sees_all_training_classes_once(network, tmp_path):
    data_set = DataSet(
        "toy", image_set(list("aabb")), image_set(list("eeff")), validation=image_set(list("ccdd"), seed=1)
    )
    data, _ = seal(data_set)
    assert prepared(network, data, Observer()) is data
    cached = replace(network, trunk="pooling", trunk_cache=tmp_path)
    heard = Heard()
    seen = prepared(cached, data, heard)
    assert "8 samples" in heard.stages[0]
    assert heard.counts[-1] == (8, 8)
    for name in ("train", "validation"):
        before, after = getattr(data, name), getattr(seen, name)
        assert after.class_names == before.class_names
        assert after.labels.equal(before.labels)
        assert after.samples.has_flips
        assert torch.allclose(cached.embed(after), network.embed(before), atol=1e-2)
    alone = prepared(cached, replace(data, validation=None), Observer())
    assert (alone.validation, len(alone.train)) == (None, 4)


def test_scoring_tells_how_far_it_is(network):
    heard = Heard()
    data_set = DataSet("toy", image_set(list("aabb")), image_set(list("ccdd")))
    SealedTest(data_set).open([network], (1,), heard)
    assert heard.counts[-1] == (4, 4)
    query, gallery = image_set(list("ddc")), image_set(list("ccdde"))
    heard = Heard()
    SealedTest(replace(data_set, query=query, gallery=gallery)).open([network], (1,), heard)
    assert {total for _, total in heard.counts} == {3, 5}


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
    "closed_set": {"name": "closed_set"},
    "retrained": {"name": "retrained"},
    "unsupervised": {"name": "unsupervised"},
    "semi_supervised": {"name": "semi_supervised", "labelled_classes": 0.5},
    "noisy_labels": {"name": "noisy_labels", "share": 0.3, "noise": "nearest"},
    "few_images": {"name": "few_images", "images_per_class": 4},
}


@pytest.mark.parametrize("protocol", HONEST.values(), ids=HONEST)
def test_training_selection_and_resuming_cannot_reach_the_test_split(protocol, vault, small_recipe, tmp_path):
    recipe = small_recipe | {"protocol": protocol, "sampler": {"batch_size": 20}}
    if protocol["name"] == "unsupervised":
        recipe["unlabelled"] = {"name": "pseudo_labels", "clusters": 10, "batch_size": 40}
    run = new_run(tmp_path / "run", Recipe.parse(recipe))
    with pytest.raises(Interruption):
        execute(run, StopInEpoch())
    assert (vault.opened, vault.unsealed) == (0, 0)
    result = execute(run).result
    assert (vault.opened, vault.unsealed) == (1, 0)
    tested = result.data.test.samples  # of a closed set, images of all classes
    assert result.test.queries == (tested if protocol["name"] == "closed_set" else 240)
    execute(run)
    assert (vault.opened, vault.unsealed) == (1, 0)


def test_every_protocol_is_either_honest_or_says_what_it_is():
    honest = {protocol["name"] for protocol in HONEST.values()}
    assert {*names()} == honest | {"standard_best_on_test"}
    assert [name for name in names() if registry.get(name).test_chooses_epoch] == ["standard_best_on_test"]


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
