"""Modifiers in a training: what the engine hands them, and that runs go on bit for bit."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from interruptions import Interruption, StopAtBatch
from running import execute, load_network, new_run

import nearkin
from nearkin import losses
from nearkin.losses.modifiers import Distil
from nearkin.networks import Network
from nearkin.networks.base import WithFeatures
from nearkin.recipe import Recipe
from nearkin.training import Result, Run
from nearkin.training.averaging import WeightAverage

SMALL_S2SD = {"sizes": [24, 32], "weight": 5.0, "feature_weight": 5.0, "feature_after": 3}
COMBINED = {
    "mixup": {"weight": 0.2},
    "matryoshka": {"sizes": [16, 8, 4]},
    "memory": {"size": 80},
    "s2sd": SMALL_S2SD,
    "distil": {"weight": 0.05, "decay": 0.9},
}


def changed(values, **tables):
    values = copy.deepcopy(values)
    for table, keys in tables.items():
        values.setdefault(table, {}).update(keys)
    return values


def finish(path, values):
    execute(new_run(path, Recipe.parse(values)))
    return (path / "result.json").read_text()


VARIANTS = {
    "s2sd": {"loss": {"name": "proxy_anchor", "s2sd": SMALL_S2SD}},
    "distil(ema)": {"loss": {"name": "multi_similarity", "distil": {"decay": 0.9}}, "training": {"ema": 0.9}},
    "all, groups of batches": {
        "loss": {"name": "multi_similarity", **COMBINED},
        "training": {"accumulate": 2},
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_an_interrupted_run_ends_with_the_same_result(name, small_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 1)
    values = changed(small_recipe, **VARIANTS[name])
    values["training"]["checkpoint_minutes"] = 1e-9
    whole = finish(tmp_path / "whole", values)
    run = new_run(tmp_path / "broken", Recipe.parse(values))
    for stop in (5, 4):
        with pytest.raises(Interruption):
            execute(run, StopAtBatch(stop))
        run = new_run(run.path, Recipe.parse(values))
    assert finish(run.path, values) == whole


@pytest.mark.parametrize("loss", ["proxy_anchor", "multi_similarity"])
def test_weight_0_trains_the_bare_loss(loss, small_recipe, tmp_path):
    bare = new_run(tmp_path / "bare", changed(small_recipe, loss={"name": loss}))
    around = {
        "mixup": {"weight": 0.0},
        "matryoshka": {"sizes": [16]},
        "s2sd": {"sizes": [], "feature_weight": 0.0},
        "distil": {"weight": 0.0},
    }
    modified = new_run(tmp_path / "modified", changed(small_recipe, loss={"name": loss, **around}))
    execute(bare)
    execute(modified)
    first, second = load_network(bare).state_dict(), load_network(modified).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_branches_are_not_in_the_model_and_every_modifier_is_told(small_recipe, tmp_path):
    run = new_run(tmp_path / "run", changed(small_recipe, loss={"name": "multi_similarity", **COMBINED}))
    finished = execute(run)
    assert load_network(run).state_dict().keys() == run.recipe.build().embedder.network.state_dict().keys()
    told = finished.result.disclosure["modifiers"]
    assert list(told) == ["mixup", "matryoshka", "memory", "s2sd", "distil"]
    assert told["mixup"] == {"weight": 0.2, "alpha": 2.0}
    assert told["distil"]["teacher"] == "ema"
    assert "mixup" not in finished.result.disclosure["hyperparameters"]


def test_gradient_caching_gives_the_same_training(small_recipe, tmp_path):
    """With features and a teacher, in chunks as in one piece, up to rounding."""
    weights = []
    for chunk in (None, 16):
        values = changed(
            small_recipe,
            network={"freeze_batch_norm": True},
            loss={"name": "proxy_anchor", "s2sd": SMALL_S2SD, "distil": {"decay": 0.9}},
            training={"epochs": 1} | ({} if chunk is None else {"chunk": chunk}),
            optimizer={"name": "sgd", "lr": 1e-3},
        )
        run = new_run(tmp_path / str(chunk), values)
        execute(run)
        weights.append(load_network(run).state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-5)


def test_views_trunk_and_bf16_take_modifiers(small_recipe, tmp_path):
    values = changed(
        small_recipe,
        data={"views": 2, "transform": "none"},
        network={"cached_trunk": "1", "trunk_cache": str(tmp_path / "cache")},
        loss={"name": "multi_similarity", "s2sd": SMALL_S2SD, "distil": {"decay": 0.9}},
        training={"epochs": 1, "precision": "bf16"},
    )
    assert execute(new_run(tmp_path / "run", values)).finished


def test_a_trained_model_teaches(small_recipe, tmp_path):
    teacher = tmp_path / "teacher"
    execute(new_run(teacher, changed(small_recipe, training={"epochs": 1})))
    seen = []
    original = Distil.forward

    @functools.wraps(original)  # its signature says what it asks for
    def forward(self, embeddings, labels, **keywords):
        seen.append((self.taught, keywords["ids"], "teacher" in keywords))
        return original(self, embeddings, labels, **keywords)

    values = changed(
        small_recipe,
        loss={"name": "multi_similarity", "distil": {"teacher": str(teacher)}},
        network={"cached_trunk": "1", "trunk_cache": str(tmp_path / "cache")},
        training={"epochs": 1},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Distil, "forward", forward)
        run = new_run(tmp_path / "run", values)
        execute(run)
    taught, ids, has_teacher = seen[0]
    task = run.recipe.build()
    train, _ = task.protocol.split(task.data.without_test(), task.seed)
    assert not has_teacher
    torch.testing.assert_close(taught, nearkin.load(teacher).embed(train))
    assert int(ids.max()) < len(train)


def test_a_teacher_that_is_not_there_is_said_before_anything_runs(small_recipe, tmp_path):
    values = changed(small_recipe, loss={"name": "triplet", "distil": {"teacher": str(tmp_path / "no")}})
    with pytest.raises(ValueError, match="neither 'ema' nor the folder of a trained model"):
        Recipe.parse(values).build()


def test_the_teacher_is_the_moving_average_in_evaluation_mode():
    network = nearkin.networks.build("convnet", size=16, width=4, embedding_dim=8, seed=0).train()
    average = WeightAverage(network, decay=0.5)
    images = torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    network(images)  # moves its batch norm
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)
    average.update()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found, in_parts = average.embed(images), average.embed(images, chunk=4)
    with average.in_place(), torch.no_grad():
        expected = network.eval()(images)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(in_parts, expected)
    network.train()
    average.embed(images)
    assert network.training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_embeddings_and_features_come_from_one_pass():
    network = nearkin.networks.build("convnet", size=16, width=4, embedding_dim=8, seed=0).eval()
    images = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    both = WithFeatures(network)
    embeddings, features = both.parted(both(images))
    assert torch.equal(embeddings, network(images))
    assert torch.equal(features, network.features(images))


def test_a_network_that_does_not_say_how_features_become_embeddings():
    class Own(Network):
        def features(self, inputs):
            return inputs

        def forward(self, inputs):
            return inputs

        def param_groups(self, lr, head_lr=None):
            return []

    with pytest.raises(ValueError, match="Own does not say how its features become embeddings"):
        WithFeatures(Own())(torch.ones(2, 2))


def test_a_loss_of_ones_own_that_names_features_gets_them(small_recipe, tmp_path):
    shapes = []

    def own(embeddings, labels, features):
        shapes.append((tuple(embeddings.shape), tuple(features.shape)))
        return (embeddings.square().mean() - 1).square() + features.mean() * 0

    run = nearkin.train(
        small_recipe["data"],
        network=small_recipe["network"],
        loss=own,
        epochs=1,
        batch_size=40,
        output=tmp_path / "run",
        progress=False,
    )
    assert run.finished
    assert shapes[0][0] == (40, 16)
    assert shapes[0][1][0] == 40


def test_a_loss_that_takes_any_keyword_asks_for_none():
    assert not losses.as_loss(lambda embeddings, labels, **keywords: embeddings.sum()).asks("features")


def test_sizes_above_the_network_s_are_said_before_anything_runs(small_recipe):
    values = changed(small_recipe, loss={"name": "contrastive", "matryoshka": {"sizes": [32, 16]}})
    with pytest.raises(ValueError, match=r"sizes=\[32, 16\]: 32 is more than network\.embedding_dim=16"):
        Recipe.parse(values).build()


def test_every_size_of_a_matryoshka_is_tested_and_embedded_by_itself(small_recipe, tmp_path):
    values = changed(small_recipe, loss={"name": "proxy_anchor", "matryoshka": {"sizes": [16, 4]}})
    run = new_run(tmp_path / "run", values)
    result = execute(run).result
    assert list(result.test_by_size) == [16, 4]
    assert result.test_by_size[16] == result.test
    opened = result.opened
    small = nearkin.load(run.path).embed(opened.queries, dim=4)
    scores = nearkin.evaluation.retrieval_scores(small, opened.queries.labels)
    assert result.test_by_size[4].recall_at[1] == pytest.approx(scores.recall_at[1], abs=0.01)
    assert Result.from_dict(result.to_dict()).test_by_size == result.test_by_size
    assert Run.existing(run.path).result.test_by_size == result.test_by_size
