"""A recipe as TOML that says which values were said, which were chosen and why, and which are defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tomli_w

from nearkin.recipe.choices import PYTHON, Choice, Section

if TYPE_CHECKING:
    from nearkin.recipe.recipe import Recipe


def write_toml(
    recipe: Recipe, *, complete: Mapping[str, Any] | None = None, chosen: Mapping[str, str] | None = None
) -> str:
    """What was said as live lines, everything else as comments: reading it gives the same recipe.

    Behind each comment stands whether it is a default, why it was chosen, or where the terms have it from.

    Args:
        recipe: What to write.
        complete: Every setting, where more is known than the recipe can tell: what fits the data.
        chosen: The reasons for those that were chosen.
    """
    said, complete = recipe.said, complete or recipe.complete()
    chosen = chosen or {key: reason for key, (_, reason) in recipe.choices().items()}
    notes = recipe.origins() | {
        key: reason if reason == "default" else f"chosen: {reason}" for key, reason in chosen.items()
    }
    optional = _optional_keys(recipe)
    lines = ["# What stands in comments was not said: a default, or chosen for the reason beside it."]
    top = {key: value for key, value in complete.items() if not isinstance(value, Mapping)}
    lines += _lines("", {k: v for k, v in said.items() if not isinstance(v, Mapping)}, top, notes, [])
    for section in type(recipe).model_fields:
        if isinstance(complete.get(section), Mapping):
            lines += ["", *_section(section, said.get(section, {}), complete[section], notes, optional)]
    return "\n".join(lines) + "\n"


def _section(
    name: str,
    said: Any,
    complete: Mapping[str, Any],
    notes: Mapping[str, str],
    optional: Mapping[str, list[str]],
) -> list[str]:
    own: dict[str, Any] = {"name": said} if isinstance(said, str) else dict(said)
    plain = {key: value for key, value in complete.items() if not isinstance(value, Mapping)}
    lines = [f"[{name}]"]
    own_plain = {key: value for key, value in own.items() if not isinstance(value, Mapping)}
    lines += _lines(name, own_plain, plain, notes, optional.get(name, []))
    for key, value in complete.items():
        if isinstance(value, Mapping) and key not in own_plain:
            said_below = own.get(key, {})
            header = f"[{name}.{key}]"
            body = _lines(f"{name}.{key}", dict(said_below), value, notes, [])
            lines += ["", header if key in own else f"# {header}", *body]
    return lines


def _lines(
    section: str,
    said: Mapping[str, Any],
    complete: Mapping[str, Any],
    notes: Mapping[str, str],
    optional: list[str],
) -> list[str]:
    lines = [_written(key, value) for key, value in said.items()]
    for key, value in complete.items():
        if key not in said and not isinstance(value, Mapping):
            note = notes.get(f"{section}.{key}".lstrip("."), "default")
            lines.append(f"# {_written(key, value)}  # {note}")
    lines += [f"# {key} =  # not set" for key in optional if key not in said and key not in complete]
    return lines


def _written(key: str, value: Any) -> str:
    return (
        tomli_w.dumps({key: value}, multiline_strings=False)
        .replace("\n    ", " ")
        .replace(",\n]", "]")
        .strip()
    )


def _optional_keys(recipe: Recipe) -> dict[str, list[str]]:
    """Keys without a value, which TOML cannot write: of the sections, and of what they name."""
    whole = recipe.resolved()
    found: dict[str, list[str]] = {}
    for name in type(recipe).model_fields:
        section = getattr(whole, name)
        if isinstance(section, Section):
            found[name] = [key for key, field in type(section).model_fields.items() if field.default is None]
        if isinstance(section, Choice) and section.name and not section.name.startswith(PYTHON):
            defaults = type(section).defaults_of(section.name)
            found[name] += [key for key, value in defaults.items() if value is None]
    return found
