"""Objects that can be named after all: a class that can be imported, and the keywords it was made with."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch

from nearkin.recipe.choices import Choice, Section

_PLAIN = int | float | str | bool | None


def importable_name(given: Any) -> str | None:
    """``module:object`` of a class or function that another process can import; ``None`` of anything else.

    >>> import torch
    >>> importable_name(torch.nn.functional.relu)
    'torch.nn.functional:relu'
    """
    if not (inspect.isfunction(given) or inspect.isclass(given)):
        return None
    module, name = given.__module__, given.__qualname__
    if module == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is given else None


def named_instance(given: Any, section: type[Section]) -> dict[str, Any] | None:
    """The table that makes an equal object: ``name``, and the keywords that differ from their defaults.

    An object has one if every parameter of its constructor is an attribute of the same name that holds a
    plain value, and if the class, called with these, gives an object that is equal in all attributes.
    Anything with weights has none: they are not in its name.

    Args:
        given: An instance of any class.
        section: The table that it would stand in, whose registered names are used where there is one.

    >>> from nearkin import losses
    >>> from nearkin.recipe.sections import LossRecipe
    >>> named_instance(losses.build("contrastive", margin=0.3), LossRecipe)
    {'name': 'contrastive', 'margin': 0.3}
    """
    if not issubclass(section, Choice):
        return None
    kind = type(given)
    name = _registered_name(kind, section) or importable_name(kind)
    keywords = None if name is None else _keywords(given, section.given_elsewhere)
    if keywords is None:
        return None
    try:
        section.model_validate({"name": name, **keywords})
        return {"name": name, **keywords} if _equal(given, kind(**keywords)) else None
    except Exception:  # it is made in another way: then it has no name
        return None


def _registered_name(kind: type, section: type[Choice]) -> str | None:
    return next((name for name in section.registry.names() if section.registry.get(name) is kind), None)


def _keywords(given: Any, given_elsewhere: frozenset[str]) -> dict[str, Any] | None:
    """What an object was made with, as its attributes tell it; defaults are left out."""
    found = {}
    try:
        parameters = inspect.signature(type(given)).parameters
    except (TypeError, ValueError):  # a class written in C
        return None
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in given_elsewhere:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY or not hasattr(given, name):
            return None
        value = getattr(given, name)
        if not _is_plain(value):
            return None
        if parameter.default is parameter.empty or value != parameter.default:
            found[name] = value
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _equal(one: Any, other: Any, looked_at: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Whether two objects are equal in everything that they hold; tensors never are."""
    pair = (id(one), id(other))
    if one is other or pair in looked_at:  # an object may hold itself, as methods do
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    if isinstance(one, _PLAIN | set | frozenset):
        return bool(one == other)
    held = _held_by(one), _held_by(other)
    return None not in held and _all_equal(*held, looked_at | {pair})


def _all_equal(one: Any, other: Any, looked_at: frozenset[tuple[int, int]]) -> bool:
    return list(one) == list(other) and all(_equal(one[key], other[key], looked_at) for key in one)


def _held_by(value: Any) -> Mapping[Any, Any] | None:
    """What an object consists of; ``None`` of one that cannot be looked into."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, torch.Generator):
        return dict(enumerate(value.get_state().tolist()))
    if inspect.ismethod(value):
        return {"function": value.__func__, "object": value.__self__}
    return None if inspect.isroutine(value) or not hasattr(value, "__dict__") else vars(value)
