"""Pages that are written by the code: every key of a recipe, and every name that a room exports."""

from __future__ import annotations

import ast
import html
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nearkin.recipe.choices import Choice
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import SECTIONS, ModifierRecipe, TrackerRecipe, TransformRecipe

SOURCE = Path(__file__).parents[2] / "src" / "nearkin"
ROOMS = {
    "data": "samples with labels, splits, transforms",
    "sampling": "which samples form a batch",
    "unlabelled": "how samples without a label are learnt from",
    "networks": "sample to embedding",
    "mining": "which pairs and triplets of a batch count",
    "losses": "embeddings and labels to one number",
    "evaluation": "embeddings and labels to scores",
    "explain": "pictures of what a loss does",
    "model": "what a training leaves",
    "training": "a task, its run and its result",
    "protocols": "how a run is selected and tested",
    "recipe": "text to objects",
    "tournament": "runs to rankings and a report",
    "index": "a model and many samples: search, duplicates, clusters",
    "publishing": "a model and its card as a repository of the Hugging Face Hub",
    "language": "language models: what they know about class names, and texts as samples",
    "serving": "HTTP API and web page over an index",
    "classical": "linear and kernel metric learning",
    "distributed": "several processes",
}
"""The rooms whose ``__all__`` is public, and what each is about."""

_TOP = {
    "Functions": [
        "api.train",
        "api.load",
        "api.evaluate",
        "api.export",
        "api.publish",
        "api.tune",
        "api.tournament",
        "api.compare",
    ],
    "Objects": [
        "recipe.Recipe",
        "training.Task",
        "training.Run",
        "training.Result",
        "model.Model",
        "index.Index",
    ],
}


# API pages.


def exported(room: str) -> list[str]:
    """The names of a room's ``__all__``, read without importing anything."""
    file = SOURCE / room / "__init__.py"
    tree = ast.parse((file if file.exists() else SOURCE / f"{room}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def api_pages() -> Iterator[tuple[str, str]]:
    """The page of every room: (path, Markdown)."""
    yield "api/nearkin.md", _page("nearkin", "The library in eight functions and six objects.", _TOP)
    for room, about in ROOMS.items():
        names = exported(room)
        kinds = {
            "Classes": [f"{room}.{name}" for name in names if name[0].isupper() and not name.isupper()],
            "Functions": [f"{room}.{name}" for name in names if name[0].islower()],
            "Constants": [f"{room}.{name}" for name in names if name.isupper() and len(name) > 3],
        }
        kinds["Classes"] += [f"{room}.{name}" for name in names if name.isupper() and len(name) <= 3]
        yield f"api/{room}.md", _page(f"nearkin.{room}", f"{about[0].upper()}{about[1:]}.", kinds)


def _page(title: str, about: str, kinds: dict[str, list[str]]) -> str:
    parts = [f"# {title}", about]
    for kind, names in kinds.items():
        if names:
            parts += [f"## {kind}", "\n".join(f"::: nearkin.{name}" for name in names)]
    return "\n\n".join(parts) + "\n"


def api_table() -> str:
    """The rooms, with what each exports."""
    rows = ["| room | what it is about | names |", "|---|---|---:|"]
    rows.append("| [nearkin](api/nearkin.md) | eight functions and six objects | 14 |")
    rows += [
        f"| [nearkin.{room}](api/{room}.md) | {about} | {len(exported(room))} |"
        for room, about in ROOMS.items()
    ]
    return "\n".join(rows)


# The recipe.


def recipe_reference() -> str:
    """Every table and key of a recipe: type, range, default, meaning; and what each choice offers."""
    parts = [_RECIPE_HEAD, "## At the top", _table(Recipe, skip=set(SECTIONS))]
    for name, model in SECTIONS.items():
        parts += [f"## `[{name}]`", _summary(model), _table(model)]
        if name == "loss":
            parts += ["### `[loss.MODIFIER]`", _summary(ModifierRecipe), _offered("modifier", ModifierRecipe)]
        if issubclass(model, Choice):
            parts += [_offered(name, model)]
        if name == "data":
            parts += [
                "### data.transform",
                _summary(TransformRecipe),
                _offered("data.transform", TransformRecipe),
            ]
        if name == "training":
            parts += ["### training.trackers", _offered("training.trackers", TrackerRecipe)]
    return "\n\n".join(parts) + "\n"


_RECIPE_HEAD = """# Recipe reference

Everything about a run is one recipe: TOML on disk, `--set table.key=value` on the command line, keywords of
`nearkin.train`. This page is made from the types that check it. Whatever a recipe does not say has the
default below or is chosen to fit the rest; `nearkin train --show-recipe` prints the whole with the reasons.
An unknown key or a value out of range is an error of one line that says what was meant.

A *choice* (`data`, `network`, `loss`, `sampler`, `optimizer`, `schedule`, `protocol`, `data.transform`,
`training.trackers`) names an entry and has that entry's keywords beside its own keys.
`name = "module:object"` names anything that can be imported; see [Bring your own](bring_your_own.md)."""


def _summary(model: type[BaseModel]) -> str:
    return (inspect.getdoc(model) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")


def _table(model: type[BaseModel], skip: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    meanings = attributes(model)
    rows = ["| key | type | range | default | meaning |", "|---|---|---|---|---|"]
    for key, field in model.model_fields.items():
        if key not in skip:
            kind, limits = type_and_range(field)
            cells = (f"`{key}`", kind, limits, _default(field), meanings.get(key, ""))
            rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(rows)


def attributes(model: type[BaseModel]) -> dict[str, str]:
    """What the docstring of a model says about its keys, those that it inherits included."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        _, _, text = (inspect.cleandoc(kind.__doc__ or "")).partition("Attributes:\n")
        for key, meaning in re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", text, re.DOTALL | re.MULTILINE):
            found[key] = " ".join(meaning.split()).replace("``", "`")
    return found


def type_and_range(field: FieldInfo) -> tuple[str, str]:
    """The type of a key in plain words, and the values it may have."""
    limits = _limits(field.metadata)
    kind = field.annotation
    while True:
        origin, inside = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            kind = next(one for one in inside if one is not type(None))
        elif origin is Annotated:
            kind, limits = inside[0], limits or _limits(inside[1].metadata)
        elif origin is typing.Literal:
            return "text", ", ".join(f"`{value}`" for value in inside)
        elif origin is tuple:
            below, own = type_and_range(FieldInfo.from_annotation(inside[0]))
            return f"list of {below}", own
        else:
            break
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return "table", ""
    words = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return words.get(kind, str(kind)), limits  # type: ignore[arg-type]


def _limits(metadata: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{sign} {_number(getattr(one, name))}"
        for one in metadata
        for name, sign in signs.items()
        if getattr(one, name, None) is not None
    ]
    return ", ".join(found)


def _number(value: float) -> str:
    if value == 2**63 - 1:
        return "2⁶³ − 1"
    return f"{value:g}" if abs(value) >= 10_000 or not float(value).is_integer() else f"{value:,g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be said"
    value = field.default
    if value is None:
        return "–"
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _offered(name: str, model: type[Choice]) -> str:
    """The entries of a choice with their keywords and defaults."""
    rows = [f"| `{name}` name | keywords and defaults |", "|---|---|"]
    for entry in model.registry.names():
        known = model.keywords_of(entry)
        defaults = model.defaults_of(entry)
        told = "any" if known is None else ", ".join(_keyword(key, defaults) for key in known)
        rows.append(f"| `{entry}` | {_cell(told) or 'none'} |")
    return "\n".join(rows)


def _keyword(key: str, defaults: dict[str, Any]) -> str:
    return f"`{key}={defaults[key]!r}`" if key in defaults else f"`{key}` (must be said)"


def _cell(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text)
    escaped = [part if part.startswith("`") else html.escape(part, quote=False) for part in parts]
    return "".join(escaped).replace("|", "\\|")
