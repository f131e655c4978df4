"""One kind of choice for everything: a name, and the keywords of what it names."""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from nearkin.model.files import import_object
from nearkin.registry import Registry, nearest_name, shortened

PYTHON = "python:"
"""Begins the name of an object that was given in Python and cannot be named otherwise."""

GIVEN = "given"
"""Beside such a name: a digest of the object, which tells two of one type apart and is no keyword of it."""

LARGEST_SEED = 2**63 - 1
_LARGEST = 1e9
_SMALLEST = 1e-37  # about the smallest number that float32 holds with all its digits


class Section(BaseModel):
    """A table of the recipe. Unknown keys are errors; nothing changes after it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class Choice(Section):
    """A table that names an entry of a room and, beside its own keys, holds that entry's keywords.

    The name is a registered one, or ``module:object`` for anything that can be imported. A table may say
    ``object = "module:object"`` instead of ``name``.
    """

    model_config = ConfigDict(extra="allow", frozen=True, validate_default=True, allow_inf_nan=False)

    name: str | None = None

    registry: ClassVar[Registry[Any]]
    given_elsewhere: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _read_shorthand(cls, values: Any) -> Any:
        if isinstance(values, str):
            return {"name": values}
        if isinstance(values, Mapping) and "object" in values:
            if "name" in values:
                raise ValueError("say name or object, not both: they mean the same")
            return {"name": values["object"], **{k: v for k, v in values.items() if k != "object"}}
        return values

    @model_validator(mode="after")
    def _check_keywords(self) -> Choice:
        if self.name is None or self.name.startswith(PYTHON):
            return self
        known = self.keywords_of(self.name)
        if known is None:
            return self
        for keyword, value in self.keywords.items():
            if keyword not in known:
                own = [field for field in type(self).model_fields if field != "name"]
                raise ValueError(self.unknown(keyword, self.name, [*known, *own]))
            _check_type(keyword, value, known[keyword])
        self._check_required()
        return self

    @classmethod
    def unknown(cls, keyword: str, name: str, known: Iterable[str]) -> str:
        """What to say about a keyword that ``name`` does not have."""
        hint = nearest_name(keyword, list(known))
        return f"{cls.registry.kind} {name!r} has no keyword {keyword!r}: {hint}"

    def _check_required(self) -> None:
        """Refuse a class of one's own whose constructor needs more than the recipe says."""
        assert self.name is not None
        maker = type(self).maker(self.name)
        if self.name in self.registry or not inspect.isclass(maker):
            return
        given = {*self.keywords, *self.given_elsewhere, *type(self).model_fields, "embedding_size"}
        for key, parameter in _parameters(maker).items():
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if named and parameter.default is parameter.empty and key not in given:
                raise ValueError(f"{self.name} needs the keyword {key}: say it beside the name")

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of the named entry that the recipe says."""
        said = dict(self.model_extra or {})
        if self.name is not None and self.name.startswith(PYTHON):
            said.pop(GIVEN, None)
        return {key: tuple(v) if isinstance(v, list) else v for key, v in said.items()}

    @classmethod
    def maker(cls, name: str) -> Callable[..., Any]:
        """What a name means: a registered class or function, or one that can be imported."""
        if ":" in name and name not in cls.registry:
            found: Callable[..., Any] = import_object(name)
            if not callable(found):
                raise ValueError(f"{name} is not a class or function, but {type(found).__name__}")
            return found
        return cls.registry.get(name)

    @classmethod
    def keywords_of(cls, name: str) -> dict[str, Any] | None:
        """The keywords that ``name`` takes from a recipe, each with its type; ``None`` if it takes any."""
        maker = cls.maker(name)
        parameters = _parameters(maker)
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return None
        types = _types(maker)
        hidden = cls.given_elsewhere | set(cls.model_fields)
        return {key: types.get(key, Any) for key in parameters if key not in hidden}

    @classmethod
    def defaults_of(cls, name: str) -> dict[str, Any]:
        """The keywords of ``name`` that have a default, with it."""
        hidden = cls.given_elsewhere | set(cls.model_fields)
        return {
            key: parameter.default
            for key, parameter in _parameters(cls.maker(name)).items()
            if key not in hidden and parameter.default is not parameter.empty
        }


def _parameters(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(maker).parameters)
    except (TypeError, ValueError):  # a class written in C, mostly
        return {"keywords": inspect.Parameter("keywords", inspect.Parameter.VAR_KEYWORD)}


def _types(maker: Callable[..., Any]) -> dict[str, Any]:
    plain = maker.func if isinstance(maker, functools.partial) else maker
    try:
        return typing.get_type_hints(plain.__init__ if inspect.isclass(plain) else plain)
    except Exception:  # annotations that cannot be evaluated say nothing
        return {}


def _check_range(keyword: str, value: Any) -> None:
    """Refuse numbers that nobody means; what takes the keyword may narrow its range."""
    if isinstance(value, list | tuple):
        for entry in value:
            _check_range(keyword, entry)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if keyword == "seed":
        if not 0 <= value <= LARGEST_SEED:
            raise ValueError(f"seed={shortened(value)} must lie between 0 and {LARGEST_SEED}")
    elif not math.isfinite(value) or abs(value) > _LARGEST:
        raise ValueError(
            f"{keyword}={shortened(value)} must be a finite number between -{_LARGEST:g} and {_LARGEST:g}"
        )
    elif 0 < abs(value) < _SMALLEST:
        raise ValueError(f"{keyword}={value} is too small to make a difference: 0, or at least {_SMALLEST:g}")


def _check_type(keyword: str, value: Any, wanted: Any) -> None:
    """Refuse a value that TOML could not mean for this keyword."""
    _check_range(keyword, value)
    try:
        accepted = TypeAdapter(wanted, config=ConfigDict(arbitrary_types_allowed=True, strict=True))
    except Exception:  # a type that pydantic knows nothing about
        return
    try:
        accepted.validate_python(value)
    except ValidationError:
        name = getattr(wanted, "__name__", None) or str(wanted).replace("typing.", "")
        raise ValueError(f"{keyword} must be of type {name}, not {shortened(value)}") from None
