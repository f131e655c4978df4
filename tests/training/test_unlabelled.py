"""Samples without labels in a training: what the engine hands over, and runs that go on bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from interruptions import Interruption, StopAtBatch
from running import execute, load_network, new_run

import nearkin
from nearkin.losses.modifiers import OfClusters
from nearkin.losses.self_taught import SelfTaught
from nearkin.recipe import Recipe, RecipeError
from nearkin.training import Run

SEMI = {"name": "semi_supervised", "labelled_classes": 0.5}
METHODS = {
    "instance": {"name": "instance"},
    "pseudo_labels": {"name": "pseudo_labels", "clusters": 12, "images_per_class": 4},
    "mutual": {"name": "pseudo_labels", "form": "mutual", "neighbours": 3, "images_per_class": 4},
    "stml": {"name": "stml", "wide": 24, "decay": 0.9, "neighbours": 3},
}


def recipe(small_recipe, method, protocol, **tables):
    values = copy.deepcopy(small_recipe)
    values["data"] |= {"views": 2}
    values["sampler"] = {"batch_size": 20}
    values["protocol"] = {"name": protocol} if isinstance(protocol, str) else protocol
    values["unlabelled"] = {**METHODS[method], "batch_size": 24}
    if method == "mutual":
        values["loss"] = {"name": "multi_similarity"}
    for table, keys in tables.items():
        values.setdefault(table, {}).update(keys)
    return values


def finish(path, values):
    execute(new_run(path, Recipe.parse(values)))
    return (path / "result.json").read_text()


CASES = [
    ("instance", "unsupervised", {}),
    ("pseudo_labels", "unsupervised", {"training": {"ema": 0.9}}),
    ("mutual", SEMI, {}),
    ("stml", "unsupervised", {}),
    ("stml", SEMI, {"loss": {"name": "multi_similarity", "memory": {"size": 40}}}),
    ("pseudo_labels", SEMI, {"training": {"accumulate": 2}}),
]


@pytest.mark.parametrize(("method", "protocol", "tables"), CASES, ids=[f"{m}-{p}" for m, p, _ in CASES])
def test_an_interrupted_run_ends_with_the_same_result(
    method, protocol, tables, small_recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 1)
    values = recipe(small_recipe, method, protocol, **tables)
    values["training"]["checkpoint_minutes"] = 1e-9
    whole = finish(tmp_path / "whole", values)
    run = new_run(tmp_path / "broken", Recipe.parse(values))
    for stop in (5, 7):
        with pytest.raises(Interruption):
            execute(run, StopAtBatch(stop))
        run = new_run(run.path, Recipe.parse(values))
    assert finish(run.path, values) == whole
    assert torch.equal(*(weights(Run.existing(tmp_path / name)) for name in ("whole", "broken")))


def weights(run):
    return torch.cat([value.flatten().float() for value in run.read_network().values()])


def test_the_teachers_features_are_those_of_the_moving_average(small_recipe, tmp_path, monkeypatch):
    """At the first batch the teacher is the network; later it lags behind."""
    seen = []
    original = SelfTaught.forward

    def forward(
        self, embeddings, labels, *, features=None, teacher_features=None, reduction=None
    ):  # its signature says what it asks for
        seen.append((features.detach(), teacher_features, labels, self.training))
        return original(
            self,
            embeddings,
            labels,
            features=features,
            teacher_features=teacher_features,
            reduction=reduction,
        )

    monkeypatch.setattr(SelfTaught, "forward", forward)
    values = recipe(small_recipe, "stml", "unsupervised", network={"freeze_batch_norm": True})
    execute(new_run(tmp_path / "run", Recipe.parse(values)))
    features, taught, images, training = seen[0]
    torch.testing.assert_close(features, taught, rtol=1e-4, atol=1e-5)
    assert training
    assert (images[0::2] == images[1::2]).all()
    assert len(images.unique()) == len(images) / 2 == 24
    assert (seen[-1][0] - seen[-1][1]).abs().max() > 1e-4
    assert not taught.requires_grad


def test_clusters_are_those_of_the_samples_in_the_batch(small_recipe, tmp_path, monkeypatch):
    seen = []
    original = OfClusters.forward

    def forward(self, embeddings, labels, *, clusters=None, reduction=None):
        seen.append((labels.clone(), clusters.clone()))
        return original(self, embeddings, labels, clusters=clusters, reduction=reduction)

    monkeypatch.setattr(OfClusters, "forward", forward)
    values = recipe(small_recipe, "pseudo_labels", SEMI, unlabelled={"refresh_every": 2})
    execute(new_run(tmp_path / "run", Recipe.parse(values)))
    known = {}
    for ids, clusters in seen:
        assert ((clusters >= 0) & (clusters < 12)).all()
        for one, cluster in zip(ids.tolist(), clusters.tolist(), strict=True):
            assert known.setdefault(one, cluster) == cluster  # within two epochs nothing is refreshed
    assert len(known) > 50


@pytest.mark.parametrize("method", ["pseudo_labels", "stml"])
def test_trunk_chunks_and_bf16_take_samples_without_labels(method, small_recipe, tmp_path):
    values = recipe(
        small_recipe,
        method,
        SEMI,
        data={"transform": "none"},
        network={"cached_trunk": "1", "trunk_cache": str(tmp_path / "cache"), "freeze_batch_norm": True},
        training={"epochs": 1, "precision": "bf16", "chunk": 16},
    )
    run = execute(new_run(tmp_path / "run", values))
    assert run.finished
    assert run.result.disclosure["unlabelled"]["name"] == method
    assert load_network(run).state_dict().keys() == run.recipe.build().embedder.network.state_dict().keys()


def test_runs_without_unlabelled_samples_say_nothing_of_them(small_recipe):
    bare = Recipe.parse(small_recipe)
    assert "unlabelled" not in bare.complete()
    assert "[unlabelled]" not in bare.to_toml()
    said = Recipe.parse(small_recipe | {"unlabelled": {"name": "stml"}})
    assert said.complete()["unlabelled"]["sigma"] == 3.0
    assert Recipe.parse(nearkin.recipe.recipe.tomllib.loads(said.to_toml())).complete() == said.complete()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "moco"}, "unknown method without labels 'moco'"),
        ({"name": "stml", "sigma": -1.0}, "sigma=-1.0 must be a finite number above 0"),
        ({"name": "pseudo_labels", "clusters": 1}, "clusters=1 must be at least 2"),
        ({"name": "instance", "temperature": 0.0}, "temperature=0.0"),
        ({"name": "instance", "sigma": 1.0}, "has no keyword 'sigma'"),
    ],
)
def test_wrong_tables_are_named(table, message, small_recipe):
    with pytest.raises(RecipeError, match=message):
        Recipe.parse(small_recipe | {"unlabelled": table})


def test_mutual_clusters_and_proxies_do_not_go_together(small_recipe, tmp_path):
    values = recipe(small_recipe, "mutual", SEMI, loss={"name": "proxy_anchor"})
    with pytest.raises(ValueError, match=r"choose unlabelled\.form=kmeans, or a loss without them"):
        execute(new_run(tmp_path / "run", Recipe.parse(values)))
