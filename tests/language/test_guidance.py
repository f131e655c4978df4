from __future__ import annotations

import copy
import json

import pytest
import torch
from interruptions import Interruption, StopAtBatch
from running import execute, new_run
from safetensors.torch import save_file
from torch import Tensor

from nearkin import losses
from nearkin.data import ImageArray, SampleSet
from nearkin.language import guidance
from nearkin.networks import timm_models
from nearkin.recipe import Recipe, RecipeError
from nearkin.training import Observer, Run


class LetterCounts:
    """A small language model: how often each letter occurs in a text."""

    def __init__(self, letters: str = "abcdefghijklmnopqrstuvwxyz") -> None:
        self.letters = letters
        self.asked: list[list[str]] = []

    def __call__(self, texts: list[str]) -> Tensor:
        self.asked.append(texts)
        return torch.tensor([[1.0 + text.count(letter) for letter in self.letters] for text in texts])


@pytest.fixture
def encoder(monkeypatch):
    encoder = LetterCounts()
    monkeypatch.setattr(guidance, "text_encoder", lambda name: encoder)
    return encoder


@pytest.fixture
def last_checkpoints(monkeypatch):
    """The tensors of the last checkpoint of every run, by the name of its directory."""
    kept: dict[str, dict[str, Tensor]] = {}
    write = Run.write_checkpoint

    def written(run, step, checkpoint):
        kept[run.path.name] = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()}
        write(run, step, checkpoint)

    monkeypatch.setattr(Run, "write_checkpoint", written)
    return kept


def with_language(values, loss="multi_similarity", **language):
    return values | {"loss": {"name": loss, "language": language}}


def finish(path, values):
    execute(new_run(path, Recipe.parse(values)))
    result = json.loads((path / "result.json").read_text())
    result.pop("recipe")
    return result


def test_guidance_changes_the_training_and_weight_zero_does_not(small_recipe, encoder, tmp_path):
    plain = finish(tmp_path / "plain", small_recipe | {"loss": {"name": "multi_similarity"}})
    nothing = finish(tmp_path / "nothing", with_language(small_recipe, weight=0.0))
    guided = finish(tmp_path / "guided", with_language(small_recipe))
    assert nothing["test"] == plain["test"]
    assert guided["test"] != plain["test"]
    prompts = encoder.asked[0]
    assert len(prompts) == 27  # the classes to learn from, and none of those to test on
    assert all(prompt.startswith("a photo of a ") and "U+" not in prompt for prompt in prompts)


@pytest.mark.parametrize("loss", ["multi_similarity", "proxy_anchor"])
def test_an_interrupted_run_ends_with_the_same_result(
    loss, small_recipe, encoder, tmp_path, last_checkpoints
):
    values = with_language(small_recipe, loss)
    whole = finish(tmp_path / "whole", values)
    run = new_run(tmp_path / "broken", Recipe.parse(values))
    with pytest.raises(Interruption):
        execute(run, StopAtBatch(8))
    encoder.letters = "abcde" * 5 + "z"  # what was said at the beginning counts, and it is in the checkpoint
    assert finish(run.path, values) == whole
    first, second = last_checkpoints["whole"], last_checkpoints["broken"]
    assert "loss.class_units" in first
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_guidance_goes_around_a_memory(small_recipe, encoder, tmp_path, last_checkpoints):
    values = copy.deepcopy(with_language(small_recipe, "contrastive"))
    values["loss"]["memory"] = {"size": 80}
    finish(tmp_path / "run", values)
    assert {"loss.class_units", "loss.loss.embeddings"} <= set(last_checkpoints["run"])


def test_without_a_language_table_the_loss_is_left_alone(small_recipe):
    task = Recipe.parse(small_recipe | {"loss": {"name": "contrastive"}}).build()
    loss = task.loss(task.data.train, 16, torch.Generator(), Observer())
    assert type(loss) is losses.Contrastive


def test_settings_reach_the_loss(small_recipe, encoder):
    words = {"weight": 3.0, "shift": 0.5, "prompt": "the sign {}", "form": "survey"}
    recipe = Recipe.parse(with_language(small_recipe, **words))
    images = SampleSet(
        ImageArray(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)),
        [0, 1],
        ["U+0041 A latin capital letter a", "U+0042 B latin capital letter b"],
    )
    loss = recipe.build().loss(images, 16, torch.Generator(), Observer())
    assert (loss.weight, loss.shift, loss.form) == (3.0, 0.5, "survey")
    assert encoder.asked == [["the sign latin capital letter a", "the sign latin capital letter b"]]


def test_pseudo_labels_from_a_recipe(small_recipe, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.language.pseudo_labels.user_cache_dir", lambda _: str(tmp_path))
    with torch.random.fork_rng():
        model = timm_models.import_timm().create_model("test_efficientnet")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    recipe = Recipe.parse(
        with_language(
            small_recipe,
            pseudo_labels=True,
            names_per_class=2,
            classifier="timm:test_efficientnet",
            classifier_weights=str(tmp_path / "weights.safetensors"),
        )
    )
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (6, 1, 16, 16), generator=generator, dtype=torch.uint8)
    images = SampleSet(ImageArray(pixels), ["00001", "00002", "00003"] * 2)
    loss = recipe.build().loss(images, 16, torch.Generator(), Observer())
    assert loss.class_units.shape == (3, 2 * 26)
    assert all(prompt.startswith("a photo of a ") for prompt in encoder.asked[0])


def test_a_recipe_with_language_is_written_and_read(tmp_path):
    recipe = Recipe.parse(with_language({}, weight=3.0))
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert "[loss.language]" in recipe.to_toml()
    assert Recipe.read(tmp_path / "recipe.toml") == recipe
    changed = Recipe.read(tmp_path / "recipe.toml", ["loss.language.weight=5.5"])
    assert changed.loss.modifiers[0].keywords["weight"] == 5.5
    assert "[loss.language]" not in Recipe.parse({}).to_toml()


@pytest.mark.parametrize(
    ("language", "message"),
    [
        ({"weigth": 1}, "'language' has no keyword 'weigth': did you mean weight"),
        ({"weight": -1.0}, "loss.language. weight=-1.0 must be a finite number, at least 0"),
        ({"prompt": "a photo"}, "prompt='a photo' has no place for the class name"),
        ({"form": "thesis"}, "form='thesis' must be one of: paper, survey"),
    ],
)
def test_mistakes_in_the_recipe_are_named(language, message):
    with pytest.raises(RecipeError, match=message):
        Recipe.parse(with_language({}, **language))
