"""What is chosen for images, and why, where a recipe leaves it open."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import nearkin
from nearkin import data, networks
from nearkin.cli.display import verdict_lines
from nearkin.data import ImageArray, SampleSet
from nearkin.data.looking import look_at
from nearkin.networks.anatomy import anatomy_of, make_backbone
from nearkin.observer import Observer
from nearkin.recipe import Recipe
from nearkin.recipe.budget import Speed
from nearkin.recipe.errors import RecipeError
from nearkin.recipe.photographs import choices_for_images

LITE = "timm:tf_efficientnet_lite0"


def folder_of(path, *, size, mode="RGB", classes=6, images=4, suffix="png"):
    numbers = np.random.default_rng(0)
    for name in range(classes):
        (path / f"c{name}").mkdir(parents=True)
        for number in range(images):
            pixels = numbers.integers(0, 255, (size[1], size[0], 3)).astype(np.uint8)
            Image.fromarray(pixels).convert(mode).save(path / f"c{name}" / f"{number}.{suffix}")
    return path


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A folder with (random) weights of EfficientNet-Lite0, as somebody has who fetched them."""
    folder = tmp_path_factory.mktemp("weights")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(make_backbone(LITE).module.state_dict(), folder / "tf_efficientnet_lite0.safetensors")
    return folder


@pytest.fixture
def at_hand(weights, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARKIN_WEIGHTS", str(weights))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def chosen(root, values=None, **keywords):
    recipe = Recipe.parse({"data": {"root": str(root)}} | (values or {}))
    return choices_for_images(recipe, data.build("folder", root), **keywords)


def values_of(choices):
    return {key: value for key, (value, _) in choices.items()}


@pytest.mark.parametrize(
    ("size", "mode", "kind"),
    [
        ((160, 120), "RGB", "photographs"),
        ((92, 112), "L", "photographs"),
        ((41, 41), "RGB", "small images"),
        ((105, 105), "1", "drawings"),
    ],
)
def test_images_are_told_apart(tmp_path, size, mode, kind):
    suffix = "pgm" if mode == "L" else "png"
    look = look_at(data.build("folder", folder_of(tmp_path, size=size, mode=mode, suffix=suffix)).train)
    assert (look.kind, (look.width, look.height), look.colour) == (kind, size, mode == "RGB")


def test_vectors_and_texts_are_no_images():
    assert look_at(data.as_data_set((torch.rand(4, 3), [0, 0, 1, 1])).train) is None


@pytest.mark.parametrize("in_bf16", [True, False])
def test_photographs_get_a_pretrained_network_behind_a_cached_trunk(tmp_path, at_hand, monkeypatch, in_bf16):
    monkeypatch.setattr("nearkin.recipe.photographs.steps_are_faster_in_bf16", lambda: in_bf16)
    found = chosen(folder_of(tmp_path / "birds", size=(90, 70)), has_gpu=False)
    assert values_of(found) == {
        "network.name": LITE,
        "network.weights": "imagenet",
        "network.embedding_dim": 512,
        "network.pooling": "avg+max",
        "network.freeze_batch_norm": True,
        "network.pca_head": True,
        "network.cached_trunk": "blocks.4",
        "optimizer.lr": 2e-4,
        "loss.lr": 1e-2,
        "sampler.batch_size": 120,
        "training.epochs": 40,
        "protocol.name": "retrained",
        "evaluation.select": "map_at_r",
    } | ({"training.precision": "bf16"} if in_bf16 else {})
    assert all(reason for _, reason in found.values())


def test_with_a_gpu_all_of_it_is_trained(tmp_path, at_hand):
    found = chosen(folder_of(tmp_path / "birds", size=(90, 70)), has_gpu=True)
    assert "network.cached_trunk" not in found


def test_what_is_said_stays(tmp_path, at_hand):
    said = {
        "optimizer": {"lr": 0.5},
        "loss": {"name": "multi_similarity"},
        "data": {"root": str(tmp_path / "birds"), "transform": "resized_crop"},
    }
    found = chosen(folder_of(tmp_path / "birds", size=(90, 70)), said, has_gpu=False)
    assert not {"optimizer.lr", "loss.lr", "network.cached_trunk", "data.transform"} & set(found)
    factor = chosen(tmp_path / "birds", {"loss": {"lr_factor": 3.0}}, has_gpu=False)
    assert "loss.lr" not in factor


def test_a_file_of_weights_tells_its_network(tmp_path, weights):
    root = folder_of(tmp_path / "birds", size=(90, 70))
    file = weights / "tf_efficientnet_lite0.safetensors"
    renamed = tmp_path / "somebody's.safetensors"
    renamed.write_bytes(file.read_bytes())
    for path in (file, renamed):
        assert values_of(chosen(root, {"network": {"weights": str(path)}}))["network.name"] == LITE
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(RecipeError, match=r"cannot tell which network .*other.*network.name=timm:NAME"):
        chosen(root, {"network": {"weights": str(tmp_path / "other.safetensors")}})


def test_without_weights_and_network_the_error_says_what_to_fetch(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("NEARKIN_WEIGHTS", raising=False)
    with pytest.raises(
        ConnectionError, match=r"fetch the ImageNet weights of tf_efficientnet_lite0 .*--weights FILE"
    ):
        networks.build(LITE, embedding_dim=4, weights="imagenet")


def test_weights_whose_name_has_another_hash_are_refused(tmp_path):
    file = tmp_path / "bn_inception-52deb4733.pth"
    torch.save({}, file)
    with pytest.raises(ValueError, match="is damaged or not what its name says"):
        networks.build("bninception", embedding_dim=4, weights=file)


def test_drawings_are_not_mirrored_and_small_images_keep_their_colours(tmp_path):
    drawings = values_of(chosen(folder_of(tmp_path / "ink", size=(105, 105), mode="1")))
    assert drawings["network.name"] == "convnet"
    assert drawings["network.size"] == 64
    assert drawings["network.channels"] == 1
    assert drawings["data.transform"]["flip"] == 0.0
    small = values_of(chosen(folder_of(tmp_path / "small", size=(41, 41))))
    assert small["network.channels"] == 3
    assert "flip" not in small["data.transform"]


def test_images_that_fit_are_taken_as_they_are():
    pixels = torch.randint(0, 255, (8, 1, 32, 32), dtype=torch.uint8)
    found = data.DataSet("own", SampleSet(ImageArray(pixels), [0, 0, 1, 1, 2, 2, 3, 3]))
    assert choices_for_images(Recipe.parse({}), found) == {}


def test_the_share_of_work_after_a_stage_falls():
    anatomy = anatomy_of("convnet")
    shares = list(anatomy.shares.values())
    assert shares == sorted(shares, reverse=True)
    assert anatomy.trunk(1.0) == next(iter(anatomy.shares))
    assert anatomy.trunk(-1.0) == "pooling"
    assert anatomy.numbers["3"] == 128 * 2 * 2


def test_a_folder_of_photographs_trains_and_goes_on(tmp_path, at_hand):
    root = folder_of(tmp_path / "my birds", size=(60, 70), classes=10, images=3)
    told = []

    class Listener(Observer):
        def tell(self, text):
            told.append(text)

    settings = {"network": {"size": 32}, "epochs": 2, "output": tmp_path / "run"}
    run = nearkin.train(str(root), progress=Listener(), **settings)
    assert [line.split()[0] for line in told] == ["data", "network", "trained", "loss", "length"]
    assert run.result.start.name == "frozen features"
    assert run.terms["network"]["cached_trunk"]
    assert run.result.start.gain.value == pytest.approx(
        run.result.test.recall_at[1] - run.result.start.test.recall_at[1]
    )
    again = nearkin.train(str(root), progress=False, **settings)
    assert again.result == run.result
    words = shlex.split(verdict_lines(run, run.result.start)[-1])
    assert words == ["next", "nearkin", "index", str(run.path), str(root), "-o", "my birds.index"]
    assert nearkin.load(run.path).embed(str(root)).shape == (30, 512)


def test_a_network_sees_more_where_the_images_have_it(tmp_path, at_hand):
    large = chosen(folder_of(tmp_path / "large", size=(300, 260), classes=2, images=2), has_gpu=False)
    assert values_of(large)["network.size"] == 256
    assert values_of(large)["network.cached_trunk"] == "blocks.4"
    small = chosen(folder_of(tmp_path / "small", size=(300, 250), classes=2, images=2), has_gpu=False)
    assert "network.size" not in small
    vit = {"network": {"name": "timm:vit_tiny_patch16_224", "weights": "imagenet"}}
    assert "network.size" not in chosen(tmp_path / "large", vit, has_gpu=False), "it takes one size only"


def test_time_for_the_whole_network_caches_no_trunk(tmp_path, at_hand):
    root = folder_of(tmp_path / "birds", size=(60, 70), classes=10, images=3)
    recipe = Recipe.parse(
        {"data": {"root": str(root)}, "network": {"size": 32}, "training": {"minutes": 1000.0}}
    )
    task = recipe.build()
    assert task.embedder.trunk is None
    assert "cached_trunk" not in task.description.terms["network"]
    assert "retrained" in task.description.terms["protocol"]["name"]


@pytest.fixture
def slow_machine(monkeypatch):
    """A machine on which an image takes a second in the whole network, and less behind a trunk."""

    def speed(recipe, stage, observer):
        left = 1.0 if stage is None else anatomy_of(LITE, recipe.network.keywords).shares.get(stage, 0.01)
        return Speed(0.3 * (1 - left), left, 0.3 * left)

    monkeypatch.setattr("nearkin.recipe.photographs.measured_speed", speed)
    monkeypatch.setattr("nearkin.recipe.photographs.seconds_to_read", lambda *_: 0.01)


def test_minutes_choose_trunk_crops_and_learning_rate_and_say_so(tmp_path, at_hand, slow_machine):
    root = folder_of(tmp_path / "birds", size=(60, 70), classes=10, images=3)
    told = []

    class Listener(Observer):
        def tell(self, text):
            told.append(text)

    def built(minutes, **network):
        told.clear()
        values = {
            "data": {"root": str(root)},
            "network": {"size": 32} | network,
            "training": {"minutes": minutes},
        }
        task = Recipe.parse(values).build(Listener())
        terms = task.description.terms
        return (
            task.embedder.trunk,
            terms["network"]["cached_crops"],
            terms["optimizer"]["lr"],
            terms["training"]["epochs"],
        )

    # Ten of 15 images teach first, and all of them afterwards.
    assert built(2.5)[:3] == ("blocks.4", 4, 2e-4)
    assert (
        "what comes after blocks.4; the rest is computed once for 6 views of each image (4 random" in told[2]
    )
    assert " MB on disk" in told[2]
    assert "fits 2.5 minutes: about 2." in told[4]
    assert built(1.0)[:3] == ("blocks.4", 0, 2e-4)
    assert "views" not in told[2]
    assert built(4.5)[:3] == ("blocks.3", 4, 1e-4)
    assert built(20.0)[:3] == (None, 0, 1e-4)
    assert "all of it" in told[2]
    assert built(2.5, cached_crops=1)[:2] == ("blocks.4", 1)
    assert built(20.0, cached_trunk="blocks.5")[:3] == ("blocks.5", 4, 2e-4)


def test_minutes_leave_crops_that_were_said_to_the_whole_network(tmp_path, at_hand, slow_machine):
    root = folder_of(tmp_path / "birds", size=(60, 70), classes=10, images=3)
    data = {"root": str(root), "transform": {"name": "resized_crop", "flip": 0.0}}
    values = {"data": data, "network": {"size": 32}, "training": {"minutes": 1.0}}
    assert Recipe.parse(values).build().embedder.trunk is None


@pytest.mark.parametrize(
    ("classes", "protocol"),
    [(2, "closed_set"), (3, "closed_set"), (4, "standard"), (7, "standard"), (8, "retrained")],
)
def test_few_classes_start(tmp_path, at_hand, classes, protocol):
    root = folder_of(tmp_path / "few", size=(60, 60), classes=classes, images=6)
    settings = {"network": {"size": 32}, "epochs": 1, "progress": False}
    told = []

    class Listener(Observer):
        def tell(self, text):
            told.append(text)

    run = nearkin.train(str(root), output=tmp_path / "run", **settings | {"progress": Listener()})
    chosen_by = f"{2 * classes} images of these classes that are not trained on choose the best one"
    assert (chosen_by in told[4]) == (protocol == "closed_set")
    assert run.terms["protocol"]["name"] == protocol
    assert run.description.chosen["protocol.name"]
    assert ("closed set" in " ".join(run.result.data.notes)) == (protocol == "closed_set")
    assert nearkin.train(str(root), output=tmp_path / "run", **settings).result == run.result
    assert nearkin.evaluate(run.path, progress=False).opened.scores.recall_at == run.result.test.recall_at


def test_a_protocol_that_is_said_stays(tmp_path, at_hand):
    root = folder_of(tmp_path / "few", size=(60, 60), classes=4, images=4)
    with pytest.raises(ValueError, match="training classes are too few"):
        nearkin.train(str(root), output=tmp_path / "run", protocol="fixed_validation", progress=False)
