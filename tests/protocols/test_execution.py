from __future__ import annotations

import pytest
from PIL import Image

from nearkin import data
from nearkin.evaluation import retrieval_scores
from nearkin.protocols import execute, open_data, training_splits
from nearkin.protocols import execution as execution_module
from nearkin.protocols.sealed import SealedTest
from nearkin.training import Recipe, Run


def test_fixed_validation_uses_the_data_sets_own_split(small_recipe):
    recipe = Recipe.parse(small_recipe)
    data_set = open_data(recipe)
    train, validation = training_splits(recipe, data_set)
    assert (train, validation) == (data_set.train, data_set.validation)


def test_fixed_validation_holds_out_training_classes_where_there_is_none(small_recipe):
    recipe = Recipe.parse(small_recipe | {"protocol": {"validation_share": 0.25}})
    whole = open_data(recipe)
    train, validation = training_splits(recipe, data.DataSet("glyphs", whole.train, whole.test))
    assert (train.num_classes, validation.num_classes) == (20, 7)
    assert not set(train.class_names) & set(validation.class_names)


def test_standard_trains_without_validation_and_takes_the_last_epoch(small_recipe, tmp_path):
    values = small_recipe | {"protocol": {"name": "standard"}}
    result = execute(Run.open(tmp_path / "run", Recipe.parse(values))).result
    assert result["selection"] == {"rule": "last epoch", "epoch": 2}
    assert result["validation"] is None
    assert result["data"]["validation"] is None


def test_the_chosen_epoch_is_the_best_on_validation(small_recipe, tmp_path):
    run = Run.open(tmp_path / "run", Recipe.parse(small_recipe | {"training": {"epochs": 5}}))
    result = execute(run).result
    rows = [row for row in run.metrics() if row["epoch"] > 0]
    best = max(row["recall_at_1"] for row in rows)
    first_best = next(row["epoch"] for row in rows if row["recall_at_1"] == best)
    assert result["selection"]["epoch"] == first_best
    assert result["validation"]["recall_at_1"] == best


def test_the_test_split_is_read_once_and_last(small_recipe, tmp_path, monkeypatch):
    events = []

    class Watched(SealedTest):
        def open(self, *args):
            events.append("test")
            return super().open(*args)

    def watched_train(run, images, validation, observer):
        events.append("train")
        assert not set(images.class_names) & test_classes
        assert not set(validation.class_names) & test_classes
        return train(run, images, validation, observer)

    recipe = Recipe.parse(small_recipe)
    test_classes = set(open_data(recipe).test.class_names)
    train = execution_module.train
    monkeypatch.setattr(execution_module, "SealedTest", Watched)
    monkeypatch.setattr(execution_module, "train", watched_train)
    execute(Run.open(tmp_path / "run", recipe))
    assert events == ["train", "test"]


def test_a_finished_run_is_only_read(small_recipe, tmp_path, monkeypatch):
    run = Run.open(tmp_path / "run", Recipe.parse(small_recipe))
    first = execute(run)
    monkeypatch.setattr(execution_module, "train", lambda *_: pytest.fail("trained again"))
    again = execute(run)
    assert again.result == first.result
    assert again.opened is None


def test_the_result_discloses_what_was_done(small_recipe, tmp_path):
    result = execute(Run.open(tmp_path / "run", Recipe.parse(small_recipe))).result
    assert result["data"]["train"] == {"images": 216, "classes": 27}
    assert result["data"]["test"] == {"images": 240, "classes": 30}
    assert result["recipe"]["loss"]["name"] == "proxy_anchor"
    assert {"torch", "nearkin", "python"} <= set(result["versions"])
    assert result["network"]["preprocessing"]["size"] == 16


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of four classes with one file that is no image; returns a recipe for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "photos"
    for shade, name in enumerate("abcd"):
        (root / name).mkdir(parents=True)
        for number in range(4):
            Image.effect_noise((24, 20), 20 + 40 * shade + number).convert("RGB").save(
                root / name / f"{number}.png"
            )
    (root / "a" / "notes.jpg").write_text("not an image")
    return {
        "data": {"name": "folder", "root": str(root), "transform": "simple_crop"},
        "network": {"size": 16, "width": 4, "channels": 3, "embedding_dim": 8},
        "sampler": {"batch_size": 4},
        "training": {"epochs": 1},
        "protocol": {"name": "standard"},
    }


def test_a_bad_image_stops_the_run_before_training(photos, tmp_path):
    run = Run.open(tmp_path / "run", Recipe.parse(photos))
    with pytest.raises(ValueError, match=r"1 images cannot be read: .*notes.jpg: .*--skip-bad"):
        execute(run)
    assert run.metrics() == []


def test_bad_images_are_left_out_and_disclosed_on_request(photos, tmp_path):
    photos["data"]["skip_bad"] = True
    result = execute(Run.open(tmp_path / "run", Recipe.parse(photos))).result
    assert result["data"]["train"] == {"images": 8, "classes": 2}
    assert "notes.jpg" in result["data"]["notes"][-1]


def test_one_validation_class_is_too_few(photos, tmp_path):
    photos["data"]["skip_bad"] = True
    photos["protocol"] = {"validation_share": 0.5}
    with pytest.raises(ValueError, match="validation_share=0.5 of 2 classes"):
        execute(Run.open(tmp_path / "run", Recipe.parse(photos)))


@pytest.mark.slow
def test_a_trained_network_beats_raw_pixels_by_far(glyphs_root, tmp_path):
    run = Run.open(tmp_path / "run", Recipe.parse({"data": {"root": str(glyphs_root)}}))
    test = open_data(run.recipe).test
    raw = retrieval_scores(test.images.pixels.flatten(1).float(), test.labels, recall_at=(1,)).recall_at[1]
    assert raw < 0.45
    assert execute(run).result["test"]["recall_at_1"] > raw + 0.2


def test_a_run_keeps_the_scores_of_every_query_and_what_it_took(small_recipe, tmp_path):
    run = Run.open(tmp_path / "run", Recipe.parse(small_recipe))
    assert run.queries() is None
    assert run.cost() is None
    finished = execute(run)
    scores, labels = run.queries()
    assert scores.to_dict() == finished.result["test"]
    assert labels.equal(finished.opened.queries.labels)
    again = scores.per_query.scores((1,))["recall_at_1"].mean().item()
    assert again == pytest.approx(finished.result["test"]["recall_at_1"])
    cost = run.cost()
    seconds = sum(row["seconds"] for row in run.metrics()[1:])
    assert cost["training_seconds"] == pytest.approx(seconds, abs=1e-3)
    assert cost["peak_memory_bytes"] > 10_000_000
