"""The one error of a recipe, and how a validation error becomes a line."""

from __future__ import annotations

import inspect
import typing

from pydantic import BaseModel, ValidationError

from nearkin.registry import nearest_name, shortened


class RecipeError(ValueError):
    """A recipe that cannot be run; the message says which key and what to write instead."""


def first_mistake(error: ValidationError, model: type[BaseModel]) -> str:
    """The first mistake of a recipe or plan in one line: where it is, what is wrong, what was meant."""
    mistake = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "extra_forbidden":
        known = _keys_beside(mistake["loc"], model)
        return f"unknown key {shortened(place)[1:-1]}: {nearest_name(str(mistake['loc'][-1]), known)}"
    reason = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] != "value_error":
        reason = f"{reason[0].lower()}{reason[1:]}, not {shortened(mistake['input'])}"
    return f"{place}: {reason}" if place else reason


def _keys_beside(place: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    for part in place[:-1]:
        if isinstance(part, int) or part not in model.model_fields:  # an entry of a list of tables
            continue
        annotation = model.model_fields[part].annotation
        possible = [annotation, *typing.get_args(annotation)]  # a table that may be left out is a union
        model = next(kind for kind in possible if inspect.isclass(kind) and issubclass(kind, BaseModel))
    return list(model.model_fields)
