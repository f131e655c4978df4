"""Recipes from Python: objects where a recipe has names."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearkin import data as data_room
from nearkin.recipe.choices import GIVEN, PYTHON
from nearkin.recipe.errors import RecipeError
from nearkin.recipe.given import digest_of
from nearkin.recipe.object_names import importable_name, named_instance
from nearkin.recipe.recipe import Recipe, read_toml
from nearkin.recipe.sections import SECTIONS, TrainingRecipe
from nearkin.registry import nearest_name

# Keys that are said so often that they need no table.
_SHORT = {
    **{key: f"training.{key}" for key in TrainingRecipe.model_fields},
    "recall_at": "evaluation.recall_at",
    "batch_size": "sampler.batch_size",
    "embedding_dim": "network.embedding_dim",
    "lr": "optimizer.lr",
    "weights": "network.weights",
    "workers": "data.workers",
    "views": "data.views",
}
_OBJECTS = ("transform", "evaluation_transform", "collate")  # of the data


def recipe_of(data: Any = None, *, network: Any = None, loss: Any = None, **settings: Any) -> Recipe:
    """A recipe from objects, names and settings.

    Args:
        data: A data set, or whatever :func:`nearkin.data.as_data_set` takes; the path of a folder or a table;
            a registered name; the path of a recipe.
        network: A ``torch.nn.Module``, a name, or a table with keywords.
        loss: A module or function ``(embeddings, labels) → scalar``, a name, or a table with keywords.
        **settings: Any table of a recipe (``optimizer={"lr": 1e-4}``, ``protocol="cross_validation"``), any
            key of ``[training]``, ``batch_size``, ``embedding_dim``, ``lr``, ``seed``, ``imports``,
            ``transform``, ``evaluation_transform``, ``collate``, ``preprocessing``.

    Raises:
        RecipeError: A setting is unknown or cannot be; the message says what was meant.
    """
    values, objects = _start(data)
    for key, given in (("network", network), ("loss", loss)):
        if given is not None:
            _choose(values, objects, key, given)
    for key, given in settings.items():
        if given is not None:
            _set(values, objects, key, given)
    for key in ("transform", "evaluation_transform"):
        if f"data.{key}" in objects:
            given = objects[f"data.{key}"]
            _put(values, f"data.{key}", {"name": PYTHON + _type_name(given), GIVEN: digest_of(given)})
    return Recipe.parse(values, source="settings", objects=objects)


def _set(values: dict[str, Any], objects: dict[str, Any], key: str, given: Any) -> None:
    """Say one setting."""
    if key in SECTIONS and key not in ("training", "evaluation"):
        _choose(values, objects, key, given)
    elif key in _OBJECTS and not isinstance(given, str | Mapping):
        name = importable_name(given) if key != "collate" else None
        if name is None:
            objects[f"data.{key}"] = given
        else:
            _put(values, f"data.{key}", {"name": name})
    elif key in _OBJECTS:
        _put(values, f"data.{key}", given)
    elif key == "preprocessing":
        objects[key] = given
    elif key in ("training", "evaluation", "seed", "imports", "terms"):
        _merge(values, key, given)
    elif key in _SHORT:
        _put(values, _SHORT[key], given)
    else:
        known = [*SECTIONS, *_SHORT, *_OBJECTS, "seed", "imports", "terms", "preprocessing"]
        raise RecipeError(f"unknown setting {key}: {nearest_name(key, known)}")


def key_of(word: str) -> str | None:
    """The dotted key of a recipe that a word stands for, if it does.

    >>> key_of("epochs"), key_of("loss"), key_of("colour")
    ('training.epochs', 'loss.name', None)
    """
    if word in ("seed", "terms"):
        return word
    return f"{word}.name" if word in SECTIONS and word not in ("training", "evaluation") else _SHORT.get(word)


def _start(data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the first argument says: a recipe, a place, a name, or an object."""
    if data is None:
        return {}, {}
    if isinstance(data, Recipe):
        return data.said, data.objects
    if isinstance(data, Mapping) and "name" in data:
        return {"data": dict(data)}, {}
    if isinstance(data, str | os.PathLike):
        return from_argument(data), {}
    name = getattr(data, "name", None) if isinstance(data, data_room.DataSet) else None
    return {"data": {"name": f"{PYTHON}{name or _type_name(data)}"}}, {"data": data}


def from_argument(argument: str | os.PathLike[str]) -> dict[str, Any]:
    """The plain values that one word on the command line stands for: a recipe, folder, table or name.

    Raises:
        RecipeError: There is no such thing.
    """
    path = Path(argument)
    text = os.fspath(argument)
    if path.suffix.lower() == ".toml":
        return read_toml(path, kind="recipe")
    if path.is_dir() or path.suffix.lower() in {".csv", ".tsv"}:
        if path.is_dir() and (path / "recipe.toml").is_file():
            return read_toml(path / "recipe.toml", kind="recipe")
        if not path.exists():
            raise RecipeError(f"there is no table {path}")
        return {"data": {"root": text}}
    if text in data_room.names():
        return {"data": {"name": text}}
    if path.is_file() and path.suffix.lower() == ".npy":
        raise RecipeError(f"{path} holds samples without labels: in Python, give the pair (path, labels)")
    if path.is_file():
        raise RecipeError(f"{path} is neither a recipe (.toml) nor a table (.csv) nor a folder of images")
    hint = nearest_name(text, data_room.names())
    raise RecipeError(f"there is no folder, table, recipe or data set {text}: {hint}")


def _choose(values: dict[str, Any], objects: dict[str, Any], key: str, given: Any) -> None:
    """Say a choice: by its name, by a table, or by an object."""
    if isinstance(given, str):
        _merge(values, key, {"name": given})
    elif isinstance(given, Mapping):
        _merge(values, key, given)
    else:
        name = importable_name(given)
        named = named_instance(given, SECTIONS[key]) if name is None else {"name": name}
        if named is not None:
            _merge(values, key, named)
            return
        objects[key] = given
        # Two objects of one type may be two contenders: what they are made of tells them apart.
        _merge(values, key, {"name": PYTHON + _type_name(given), GIVEN: digest_of(given)})


def _type_name(given: Any) -> str:
    if inspect.isfunction(given) or inspect.isclass(given):
        return str(given.__qualname__)
    return type(given).__qualname__


def _merge(values: dict[str, Any], key: str, given: Any) -> None:
    if isinstance(given, Mapping) and isinstance(values.get(key), dict):
        values[key] = {**values[key], **given}
    else:
        values[key] = dict(given) if isinstance(given, Mapping) else given


def _put(values: dict[str, Any], key: str, given: Any) -> None:
    table, _, last = key.partition(".")
    below = values.setdefault(table, {})
    if isinstance(below, str):
        below = values[table] = {"name": below}
    below[last] = given
