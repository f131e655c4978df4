from __future__ import annotations

import pytest
import torch
from PIL import Image

from nearkin.evaluation import retrieval_scores
from nearkin.protocols import execute, fixed_validation, open_data
from nearkin.protocols.disclosure import disclosure
from nearkin.training import Recipe, Run


def test_a_finished_run_is_only_read(small_recipe, tmp_path, monkeypatch):
    run = Run.open(tmp_path / "run", Recipe.parse(small_recipe))
    first = execute(run)
    monkeypatch.setattr(fixed_validation, "train", lambda *_: pytest.fail("trained again"))
    again = execute(run)
    assert again.result == first.result
    assert again.opened is None


def test_the_result_discloses_what_was_done(small_recipe, tmp_path):
    result = execute(Run.open(tmp_path / "run", Recipe.parse(small_recipe))).result
    assert result["data"]["train"] == {"images": 216, "classes": 27}
    assert result["data"]["test"] == {"images": 240, "classes": 30}
    assert result["recipe"]["loss"]["name"] == "proxy_anchor"
    assert {"torch", "nearkin", "python"} <= set(result["disclosure"]["libraries"])
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
    raw = retrieval_scores(test.samples.pixels.flatten(1).float(), test.labels, recall_at=(1,)).recall_at[1]
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


def test_the_disclosure_says_what_the_score_depends_on(small_recipe, tmp_path):
    values = small_recipe | {
        "loss": {"name": "margin"},
        "network": small_recipe["network"] | {"head_lr_factor": 5},
    }
    told = execute(Run.open(tmp_path / "run", Recipe.parse(values))).result["disclosure"]
    assert told["learning rates"] == pytest.approx({"backbone": 2e-3, "head": 1e-2, "loss": 2e-2})
    assert told["hyperparameters"]["mining"] == "distance_weighted"
    assert (told["network"], told["pooling"], told["batch norm"]) == ("convnet", "avg", "trained")
    assert (told["weights"], told["embedding size"]) == ("random, seed 0", 16)
    assert told["libraries"]["torch"] == torch.__version__
    other = disclosure(Recipe.parse(values | {"seed": 1}))
    assert {key for key in told if told[key] != other[key]} == {"seed", "weights", "hash of the weights"}
