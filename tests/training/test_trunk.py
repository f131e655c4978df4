from __future__ import annotations

import pytest
import torch
from interruptions import Interruption, StopAtBatch
from running import build_network, execute, load_network, new_run

from nearkin.networks import Activations, embed
from nearkin.protocols import prepared, seal
from nearkin.recipe import Recipe, open_data
from nearkin.training import Observer


@pytest.fixture
def trunk_recipe(small_recipe, tmp_path):
    network = small_recipe["network"] | {"cached_trunk": "1", "trunk_cache": str(tmp_path / "cache")}
    return small_recipe | {"network": network, "training": {"epochs": 2}}


def test_only_what_comes_after_the_trunk_moves(trunk_recipe, tmp_path):
    run = new_run(tmp_path / "run", Recipe.parse(trunk_recipe))
    execute(run)
    before = build_network(run.recipe).state_dict()
    after = load_network(run).state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any(name.startswith(("backbone.0.", "backbone.1.")) for name in moved)
    assert any(name.startswith("backbone.2.") for name in moved)
    assert "head.weight" in moved


def test_the_kept_network_takes_images_and_scores_as_the_cached_one(trunk_recipe, tmp_path):
    run = new_run(tmp_path / "run", Recipe.parse(trunk_recipe))
    finished = execute(run)
    images = open_data(run.recipe).test
    past_the_cache = embed(load_network(run), images)
    torch.testing.assert_close(finished.result.opened.query_embeddings, past_the_cache, atol=2e-3, rtol=2e-3)


def splits_of(recipe):
    task = recipe.build()
    data, _ = seal(task.data)
    return task.protocol.split(prepared(task.embedder, data, Observer()), task.seed)


def test_training_sees_activations_with_mirror_images(trunk_recipe):
    recipe = Recipe.parse(trunk_recipe)
    train, validation = splits_of(recipe)
    assert isinstance(train.samples, Activations)
    assert train.samples.has_flips
    data_set = open_data(recipe)
    assert (train.class_names, validation.class_names) == (
        data_set.train.class_names,
        data_set.validation.class_names,
    )
    embeddings = recipe.build().embedder.embed(validation)
    past_the_cache = embed(build_network(recipe), data_set.validation)
    torch.testing.assert_close(embeddings, past_the_cache, atol=2e-3, rtol=2e-3)


def test_one_cache_serves_every_validation_split(trunk_recipe, tmp_path):
    held_out = []
    for share in (0.2, 0.4):
        recipe = Recipe.parse(trunk_recipe | {"protocol": {"validation_share": share}})
        held_out.append(splits_of(recipe)[1].num_classes)
    assert held_out == [6, 12]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_an_interrupted_run_with_everything_on_ends_with_the_same_result(trunk_recipe, tmp_path):
    values = trunk_recipe | {
        "network": trunk_recipe["network"] | {"pca_head": True},
        "loss": {"name": "contrastive", "memory": {"size": 100, "warmup_steps": 2}},
        "training": {"epochs": 3, "head_only": 1},
    }
    whole = new_run(tmp_path / "whole", Recipe.parse(values))
    execute(whole)
    broken = new_run(tmp_path / "broken", Recipe.parse(values))
    with pytest.raises(Interruption):
        execute(broken, StopAtBatch(9))
    execute(broken)
    assert broken.result_file.read_text() == whole.result_file.read_text()


def test_the_backbone_waits_while_the_head_warms_up(small_recipe, tmp_path):
    values = small_recipe | {"training": {"epochs": 1, "head_only": 1}}
    run = new_run(tmp_path / "run", Recipe.parse(values))
    execute(run)
    before = dict(build_network(run.recipe).named_parameters())
    after = dict(load_network(run).named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"head.weight", "head.bias"}


def test_a_pca_head_keeps_more_than_a_random_one(small_recipe, tmp_path):
    def untrained_score(pca):
        values = small_recipe | {
            "network": small_recipe["network"] | {"embedding_dim": 4, "pca_head": pca},
            "training": {"epochs": 1},
        }
        run = new_run(tmp_path / f"{pca}", Recipe.parse(values))
        execute(run)
        return run.metrics()[0]["recall_at_1"]

    assert untrained_score(True) > untrained_score(False)
