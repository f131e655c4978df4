"""Recipes from Python objects, what they leave unsaid, their text, their ranges and their errors."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from other_peoples_data import Pairs
from PIL import Image
from pydantic import BaseModel
from torch import nn

from nearkin import losses
from nearkin.data import ImageArray, SampleSet, as_data_set
from nearkin.observer import Observer
from nearkin.protocols.cross_validation import CrossValidation
from nearkin.recipe import Recipe, RecipeError, override
from nearkin.recipe.choices import Choice
from nearkin.recipe.given import digest_of
from nearkin.recipe.object_names import importable_name, named_instance
from nearkin.recipe.objects import from_argument, recipe_of
from nearkin.recipe.sections import (
    SECTIONS,
    LanguageRecipe,
    LossRecipe,
    MemoryRecipe,
    ProtocolRecipe,
    TrackerRecipe,
    TransformRecipe,
)


def own_loss(embeddings, labels, scale: float = 1.0):
    return scale * embeddings.sum()


class OwnNetwork(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, vectors):
        return self.layer(vectors)


def vectors() -> tuple[np.ndarray, list[int]]:
    return np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32), [n // 4 for n in range(48)]


# What a recipe does not say stays unsaid.


def test_another_loss_gets_its_own_sampler(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(Recipe.parse({}).to_toml())
    assert Recipe.read(file).resolved().sampler.name == "random"
    assert Recipe.read(file, ["loss.name=multi_similarity"]).resolved().sampler.name == "balanced"


@pytest.mark.parametrize("recipe", [Recipe(), Recipe.parse({}), recipe_of()])
def test_so_it_does_in_python(recipe):
    changed = recipe.changed({"loss.name": "multi_similarity"})
    assert changed.resolved().sampler.name == "balanced"
    assert changed.said == {"loss": {"name": "multi_similarity"}}


def test_a_recipe_made_directly_remembers_what_it_was_told():
    recipe = Recipe(loss={"name": "triplet", "margin": 0.3}, seed=4).changed({"training.epochs": 3})
    assert (recipe.loss.name, recipe.loss.keywords, recipe.seed) == ("triplet", {"margin": 0.3}, 4)
    assert recipe.said["training"] == {"epochs": 3}


def test_a_resolved_recipe_says_everything_and_keeps_it():
    resolved = Recipe.parse({}).resolved()
    assert resolved.said["sampler"]["name"] == "random"
    assert resolved.changed({"loss.name": "triplet"}).sampler.name == "random"


def test_the_written_recipe_says_what_was_chosen_and_why():
    text = Recipe.parse({"loss": {"name": "triplet"}}).to_toml()
    assert 'name = "balanced"  # chosen: triplet compares the samples of a batch' in text
    assert "# epochs = 12  # default" in text
    assert '\nname = "triplet"\n' in text


def test_a_run_leaves_what_was_fitted_to_its_data_unsaid():
    task = recipe_of(vectors(), network=nn.Linear(4, 2), loss="triplet").build()
    assert "# batch_size = " in task.description.text
    assert "training classes with 4 samples of each cannot fill a batch of 180" in task.description.text
    assert task.description.terms["sampler"]["batch_size"] < 180


def test_small_classes_give_fewer_samples_to_a_batch_of_the_same_size():
    few = (torch.randn(600, 4), [number // 3 for number in range(600)])
    task = recipe_of(few, network=nn.Linear(4, 2), loss="triplet").build()
    assert task.description.chosen["sampler.images_per_class"] == (
        "most training classes have fewer than 5 samples"
    )
    assert task.description.chosen["sampler.batch_size"] == "default"
    assert task.description.terms["sampler"]["batch_size"] == 180


def test_none_takes_a_value_away():
    recipe = Recipe.parse({"loss": {"name": "triplet", "margin": 0.3}, "seed": 2})
    assert recipe.changed({"loss.margin": None, "seed": None}).said == {"loss": {"name": "triplet"}}


# Text.

LOSSES = {
    "triplet": {
        "margin": (st.just(0.0) | st.floats(1e-6, 2)),
        "metric": st.sampled_from(["cosine", "squared_euclidean"]),
    },
    "contrastive": {"margin": (st.just(0.0) | st.floats(1e-6, 1))},
    "multi_similarity": {"alpha": st.floats(0.1, 10), "mining": st.sampled_from(["all", "semi_hard"])},
    "proxy_anchor": {"alpha": st.floats(1, 64)},
}


@st.composite
def settings_of_a_recipe(draw) -> dict[str, Any]:
    """Random settings, each said or not."""
    loss = draw(st.sampled_from(sorted(LOSSES)))
    keywords = {key: draw(value) for key, value in LOSSES[loss].items() if draw(st.booleans())}
    maybe: dict[str, dict[str, Any]] = {
        "optimizer": {
            "name": st.sampled_from(["adamw", "sgd", "torch:RAdam"]),
            "lr": st.floats(1e-9, 1e3),
            "weight_decay": (st.just(0.0) | st.floats(1e-6, 1)),
            "clip": st.floats(1e-3, 100),
        },
        "schedule": {
            "warmup": (st.just(0.0) | st.floats(1e-6, 9)),
            "name": st.sampled_from(["cosine", "constant"]),
        },
        "training": {
            "epochs": st.integers(1, 10**6),
            "ema": st.floats(0.5, 0.9999),
            "precision": st.sampled_from(["fp32", "bf16"]),
            "trackers": st.lists(st.just("tensorboard"), max_size=1),
        },
        "network": {"embedding_dim": st.integers(1, 4096), "pooling": st.sampled_from(["avg", "avg+max"])},
        "evaluation": {"recall_at": st.lists(st.integers(1, 1000), min_size=1, max_size=4)},
        "data": {
            "root": st.text("abc äß\\\"'#[]=\n\t", min_size=1, max_size=9).filter(lambda t: t.strip()),
            "workers": st.integers(0, 8),
        },
    }
    values: dict[str, Any] = {"loss": {"name": loss, **keywords}}
    if loss != "proxy_anchor" and draw(st.booleans()):
        values["loss"]["memory"] = {"size": draw(st.integers(1, 10**6))}
    for table, keys in maybe.items():
        values[table] = {key: draw(value) for key, value in keys.items() if draw(st.booleans())}
    if draw(st.booleans()):
        values["seed"] = draw(st.integers(0, 2**63 - 1))
    return values


@given(settings_of_a_recipe())
def test_a_written_recipe_reads_as_the_same_recipe(tmp_path_factory, values):
    recipe = Recipe.parse(values)
    file = tmp_path_factory.getbasetemp() / "round-trip.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    again = Recipe.read(file)
    assert again.said == recipe.said
    assert again == recipe
    assert again.complete() == recipe.complete()
    json.dumps(recipe.complete(), allow_nan=False)


@given(settings_of_a_recipe())
def test_complete_settings_are_a_recipe_of_the_same_settings(values):
    whole = Recipe.parse(values).complete()
    assert Recipe.parse(whole).complete() == whole


# Ranges.


def numbers() -> list[tuple[str, Any]]:
    """Every number of a recipe with its field: (dotted key, field)."""
    tables: dict[str, type[BaseModel]] = {
        **SECTIONS,
        "loss.memory": MemoryRecipe,
        "loss.language": LanguageRecipe,
        "": Recipe,
    }
    found = []
    for table, model in tables.items():
        for key, field in model.model_fields.items():
            told = str(field.annotation)
            is_number = any(kind in told for kind in ("int", "float"))
            if is_number and not any(kind in told for kind in ("Recipe", "Literal")):
                found.append((f"{table}.{key}".strip("."), field))
    return found


@pytest.mark.parametrize("key", [key for key, _ in numbers()])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -(10**30), 10**30, 1e308])
def test_every_number_has_a_finite_range_that_its_error_names(key, value):
    values: dict[str, Any] = {"loss": {"name": "contrastive"}}
    if key.startswith("loss.memory"):
        values["loss"]["memory"] = {"size": 10}
    *path, last = key.split(".")
    table = values
    for part in path:
        table = table.setdefault(part, {})
    table[last] = [value] if last == "recall_at" else value
    with pytest.raises(RecipeError, match=key.replace(".", r"\.")) as caught:
        Recipe.parse(values)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert any(word in str(caught.value) for word in ("than", "finite", "integer", "number", "at most"))


def test_there_are_numbers_to_check():
    assert {"seed", "optimizer.lr", "training.epochs", "loss.memory.size", "data.views"} <= {
        key for key, _ in numbers()
    }


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_keyword_must_be_finite_too(value):
    with pytest.raises(RecipeError, match="margin"):
        Recipe.parse({"loss": {"name": "triplet", "margin": value}})


@pytest.mark.parametrize("setting", ["loss.name={}", "loss.name=[[]]", "loss={}", "data.difficulty=nan"])
def test_values_of_another_kind_are_errors_of_one_line(setting):
    if setting == "loss={}":
        assert Recipe.parse(override({}, [setting])).loss.name == "proxy_anchor"
        return
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(override({}, [setting]))
    assert "\n" not in str(caught.value)


def test_an_error_does_not_repeat_a_long_input():
    with pytest.raises(RecipeError) as caught:
        Recipe.parse({"loss": {"name": "x" * 100_000}})
    assert len(str(caught.value)) < 1000


# module:object.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:thing", "cannot import no_such_module"),
        ("torch.nn:NoSuchThing", "torch.nn has no NoSuchThing"),
        ("math:pi", "math:pi is not a class or function, but float"),
        (":thing", "thing"),
        ("torch:", "torch"),
    ],
)
def test_what_cannot_be_imported_is_named(name, message):
    with pytest.raises(RecipeError, match=message) as caught:
        Recipe.parse({"loss": {"name": name}})
    assert "\n" not in str(caught.value)


def test_an_object_takes_its_parameters_as_keys():
    loss = f"{__name__}:own_loss"
    assert Recipe.parse({"loss": {"object": loss, "scale": 2.0}}).loss.keywords == {"scale": 2.0}
    with pytest.raises(RecipeError, match="has no keyword 'scal': did you mean scale"):
        Recipe.parse({"loss": {"name": loss, "scal": 2.0}})
    with pytest.raises(RecipeError, match="scale must be of type float"):
        Recipe.parse({"loss": {"name": loss, "scale": "much"}})
    with pytest.raises(RecipeError, match="say name or object, not both"):
        Recipe.parse({"loss": {"name": loss, "object": loss}})


def test_a_module_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('out of order')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match="broken_module failed to import: RuntimeError"):
        Recipe.parse({"imports": ["broken_module"]})
    with pytest.raises(RecipeError, match="cannot import broken_module: out of order"):
        Recipe.parse({"loss": {"name": "broken_module:Loss"}})
    with pytest.raises(RecipeError, match="there is no module not_there"):
        Recipe.parse({"imports": ["not_there"]})


def test_modules_of_the_working_directory_are_found(tmp_path, monkeypatch):
    (tmp_path / "beside_the_recipe.py").write_text("def loss(embeddings, labels): return embeddings.sum()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    assert Recipe.parse({"loss": {"name": "beside_the_recipe:loss"}}).loss.name == "beside_the_recipe:loss"


# Objects.


def test_what_can_be_imported_is_named_and_the_rest_is_marked():
    assert importable_name(own_loss) == f"{__name__}:own_loss"
    assert importable_name(OwnNetwork) == f"{__name__}:OwnNetwork"
    assert importable_name(lambda embeddings, labels: 0) is None
    assert importable_name(OwnNetwork()) is None
    recipe = recipe_of(vectors(), network=OwnNetwork(), loss=own_loss)
    assert recipe.network.name == "python:OwnNetwork"
    assert recipe.data.name == "python:tuple"
    assert recipe.loss.name == f"{__name__}:own_loss"
    assert set(recipe.objects) == {"network", "data"}


def own_function(scale: float):
    return lambda embeddings, labels: scale * embeddings.sum()


def test_objects_of_one_type_are_told_apart_by_their_make_and_not_by_their_weights():
    pml = pytest.importorskip("pytorch_metric_learning.losses")
    makes = [
        lambda: nn.Sequential(nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2)),
        lambda: pml.CircleLoss(m=0.4),
        lambda: pml.CircleLoss(m=0.25),
        lambda: own_function(1.0),
        lambda: own_function(2.0),
        lambda: functools.partial(own_loss, scale=2.0),
        lambda: functools.partial(own_loss, scale=3.0),
        lambda: lambda embeddings, labels: embeddings.sum(),
        lambda: lambda embeddings, labels: embeddings.mean(),
    ]
    assert all(digest_of(make()) == digest_of(make()) for make in makes)
    assert len({digest_of(make()) for make in makes}) == len(makes)
    first, second = (recipe_of(loss=pml.CircleLoss(m=m)).complete() for m in (0.4, 0.25))
    assert first != second


def test_a_data_set_is_called_by_its_name():
    pixels = torch.zeros(8, 1, 4, 4, dtype=torch.uint8)
    named = as_data_set(SampleSet(ImageArray(pixels), [0, 0, 1, 1, 2, 2, 3, 3]), name="squares")
    assert recipe_of(named).data.name == "python:squares"


@pytest.mark.parametrize("missing", ["network", "data", "loss"])
def test_objects_that_were_not_given_again_are_asked_for(missing):
    recipe = recipe_of(vectors(), network=OwnNetwork(), loss=lambda embeddings, labels: embeddings.sum())
    objects = {key: value for key, value in recipe.objects.items() if key != missing}
    with pytest.raises(ValueError, match=f"{missing} of this recipe was given in Python") as caught:
        Recipe.parse(recipe.said, objects=objects).build()
    assert "\n" not in str(caught.value)


def test_a_python_name_cannot_be_typed_into_a_recipe_and_trained():
    with pytest.raises(ValueError, match=r"was given in Python \(tuple\): pass it again"):
        Recipe.parse({"data": {"name": "python:tuple"}}).build()


def test_settings_are_tables_short_keys_or_objects():
    recipe = recipe_of(
        "glyphs",
        loss={"name": "triplet", "margin": 0.2},
        optimizer={"lr": 0.1},
        epochs=3,
        batch_size=20,
        embedding_dim=8,
        protocol="standard",
        recall_at=(1, 5),
        seed=7,
        transform="none",
    )
    assert recipe.said == {
        "data": {"name": "glyphs", "transform": "none"},
        "loss": {"name": "triplet", "margin": 0.2},
        "optimizer": {"lr": 0.1},
        "training": {"epochs": 3},
        "sampler": {"batch_size": 20},
        "network": {"embedding_dim": 8},
        "protocol": {"name": "standard"},
        "evaluation": {"recall_at": [1, 5]},
        "seed": 7,
    }


def test_a_recipe_in_python_may_be_changed_on_the_way():
    assert recipe_of(Recipe.parse({"loss": {"name": "triplet"}}), lr=0.5).said == {
        "loss": {"name": "triplet"},
        "optimizer": {"lr": 0.5},
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 3}, "unknown setting epoch: did you mean epochs?"),
        ({"optimiser": {}}, "unknown setting optimiser: did you mean optimizer?"),
        ({"loss": 3}, "loss"),
        ({"network": "convnett"}, "did you mean convnet?"),
    ],
)
def test_a_wrong_setting_is_told_in_a_line(settings, message):
    with pytest.raises((RecipeError, ValueError), match=message):
        recipe_of("glyphs", **settings).build()


def test_one_word_stands_for_a_recipe_a_folder_a_table_a_run_or_a_name(tmp_path):
    (tmp_path / "r.toml").write_text("seed = 3")
    (tmp_path / "t.csv").write_text("path,label\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("seed = 4")
    (tmp_path / "notes.txt").write_text("x")
    assert from_argument(tmp_path / "r.toml") == {"seed": 3}
    assert from_argument(tmp_path / "t.csv") == {"data": {"root": str(tmp_path / "t.csv")}}
    assert from_argument(tmp_path) == {"data": {"root": str(tmp_path)}}
    assert from_argument(tmp_path / "run") == {"seed": 4}
    assert from_argument("glyphs") == {"data": {"name": "glyphs"}}
    for wrong, message in [
        (tmp_path / "notes.txt", "neither a recipe"),
        (tmp_path / "no.csv", "there is no table"),
        (tmp_path / "no.toml", "there is no recipe"),
        ("glyps", "did you mean glyphs"),
    ]:
        with pytest.raises(RecipeError, match=message):
            from_argument(wrong)


def test_a_root_without_a_name_is_never_the_embedded_data():
    assert Recipe.parse({"data": {"root": "photos"}}).resolved().data.name == "folder"
    assert Recipe.parse({"data": {"root": "photos.csv"}}).resolved().data.name == "csv"


def test_every_choice_is_of_one_kind():
    for section in ("data", "network", "loss", "sampler", "optimizer", "schedule", "protocol"):
        assert issubclass(SECTIONS[section], Choice)
    assert issubclass(TransformRecipe, Choice)
    assert issubclass(TrackerRecipe, Choice)


@pytest.mark.parametrize(("kind", "samples"), [("texts", ["a", "b"] * 12), ("vectors", np.eye(24))])
def test_samples_that_are_no_images_are_refused_by_networks_that_take_them(kind, samples):
    recipe = recipe_of((samples, [number // 2 for number in range(24)]), loss="triplet")
    with pytest.raises(ValueError, match=f"network convnet takes images, and the samples are {kind}: give "):
        recipe.build()


def test_pictures_of_a_dataset_are_resized_where_they_do_not_fit():
    pictures = [(Image.new("RGB", (24, 20), number), number // 2) for number in range(24)]
    task = recipe_of(Pairs(pictures), network={"name": "convnet", "channels": 3}, loss="triplet").build()
    assert task.description.chosen["data.transform"].startswith("resized_crop: ")
    batch = task.embedder.evaluation_transform(task.data.train.samples, [0, 1], [0, 0])
    assert batch.shape == (2, 3, 32, 32)


def test_whole_numbers_are_refused_with_what_to_do():
    pixels = np.zeros((24, 8, 8, 3), dtype=np.uint8)
    recipe = recipe_of((pixels, [number // 2 for number in range(24)]), network=nn.Conv2d(3, 2, 8))
    with pytest.raises(ValueError, match="give a transform, such as lambda image: image / 255"):
        recipe.build()


def test_a_transform_is_a_function():
    with pytest.raises(TypeError, match="transform must be a function, not 3"):
        recipe_of(vectors(), network=nn.Linear(4, 2), transform=3).build()


def test_what_cannot_be_called_with_embeddings_and_labels_is_no_loss():
    wanted = r"a loss is called with embeddings and labels, and .*\(embeddings\) is not"
    with pytest.raises(ValueError, match=wanted):
        recipe_of(vectors(), network=nn.Linear(4, 2), loss=lambda embeddings: embeddings.sum()).build()
    with pytest.raises(ValueError, match="TripletMarginLoss"):
        recipe_of(vectors(), network=nn.Linear(4, 2), loss=nn.TripletMarginLoss()).build()


class Margin(nn.Module):
    """A loss of one's own that keeps what it was made with."""

    def __init__(self, margin: float = 0.5, powers: tuple[int, ...] = (1,), **_: Any) -> None:
        super().__init__()
        self.margin, self.powers = margin, powers

    def forward(self, embeddings, labels):
        return embeddings.sum() * self.margin


class Hides(Margin):
    def __init__(self, margin: float = 0.5) -> None:
        super().__init__(1.0)
        self._hidden = margin


class Learns(Margin):
    def __init__(self, margin: float = 0.5) -> None:
        super().__init__(margin)
        self.weight = nn.Parameter(torch.zeros(2))


def test_instances_that_can_be_named():
    named = functools.partial(named_instance, section=LossRecipe)
    assert named(Margin()) == {"name": f"{__name__}:Margin"}
    assert named(Margin(0.3, powers=(1, 2))) == {
        "name": f"{__name__}:Margin",
        "margin": 0.3,
        "powers": (1, 2),
    }
    assert named(losses.build("triplet", margin=0.3, mining="hard")) == {
        "name": "triplet",
        "margin": 0.3,
        "mining": "hard",
    }
    assert named_instance(CrossValidation(folds=3), ProtocolRecipe) == {
        "name": "cross_validation",
        "folds": 3,
    }


def changed(loss: nn.Module, **attributes: Any) -> nn.Module:
    for name, value in attributes.items():
        setattr(loss, name, value)
    return loss


@pytest.mark.parametrize(
    "loss",
    [
        Hides(0.3),
        Learns(),
        Margin(torch.tensor(0.3)),
        Margin(margin=lambda: 0),
        changed(Margin(), scale=2.0),
        changed(Margin(), inner=nn.Linear(2, 2)),
        changed(Margin(), function=lambda: 0),
        Margin().eval(),
        losses.build("triplet", reduction="none"),
        losses.build("triplet", generator=torch.Generator().manual_seed(7)),
        losses.build("proxy_anchor", num_classes=2, embedding_dim=2),
    ],
)
def test_instances_that_a_name_would_not_make_again(loss):
    assert named_instance(loss, LossRecipe) is None
    assert recipe_of(vectors(), network=nn.Linear(4, 2), loss=loss).loss.name.startswith("python:")


def test_an_instance_is_written_by_its_name_and_keywords():
    recipe = recipe_of(vectors(), network=nn.Linear(4, 2), loss=Margin(0.3))
    assert recipe.said["loss"] == {"name": f"{__name__}:Margin", "margin": 0.3}
    assert "loss" not in recipe.objects
    task = recipe.build()
    loss = task.loss(task.data.train, 2, torch.Generator(), Observer())
    assert (type(loss.loss), loss.loss.margin) == (Margin, 0.3)
