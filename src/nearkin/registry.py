"""One table per room: a name, what it builds, and a helpful error for a misspelt one."""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Built = TypeVar("Built", bound="Callable[..., Any]")

ENTRY_POINT_GROUP = "nearkin"
_SHOWN = 200  # characters of a wrong name that an error repeats


def nearest_name(wrong: str, known: list[str]) -> str:
    """The hint that ends an error about an unknown name: the name probably meant, or all of them.

    >>> nearest_name("proxy_ancor", ["contrastive", "proxy_anchor"])
    'did you mean proxy_anchor?'
    """
    close = difflib.get_close_matches(wrong[:_SHOWN], known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"


def shortened(value: Any) -> str:
    """A value as an error shows it: never longer than a line or two.

    >>> shortened("a" * 1000)[:8], len(shortened("a" * 1000))
    ("'aaaaaaa", 203)
    """
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@functools.cache
def load_entry_points() -> None:
    """Import the plug-ins that installed packages announce in the entry point group ``nearkin``, once.

    A plug-in that cannot be imported is warned about by name, and stops nothing else.
    """
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry.load()
        except Exception as error:  # whatever somebody's module raises  # noqa: PERF203
            warnings.warn(f"the plug-in {entry.name} ({entry.value}) failed to load: {error!r}", stacklevel=3)


class Registry(Generic[T]):
    """The names of one room and what makes each of them.

    A new entry is one file with ``@registry.register("name")`` above its class or function, and one
    import line in the room's ``__init__``, or a plug-in (see :func:`load_entry_points`).

    >>> shapes = Registry[str]("shape")
    >>> @shapes.register("square")
    ... def square(side: int = 1) -> str:
    ...     return f"{side} by {side}"
    >>> shapes.build("square", side=3)
    '3 by 3'
    >>> shapes.build("sqare")
    Traceback (most recent call last):
    ValueError: unknown shape 'sqare': did you mean square?
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._makers: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[Built], Built]:
        """Decorator that enters a class or function under ``name``.

        Running the same definition again, as notebooks do, replaces the entry; another one is refused.
        """

        def enter(maker: Built) -> Built:
            there = self._makers.get(name)
            if there is not None and _place(there) != _place(maker):
                raise ValueError(
                    f"{self.kind} {name!r} is registered already, by {'.'.join(_place(there))}: choose "
                    "another name"
                )
            self._makers[name] = maker
            return maker

        return enter

    def unregister(self, name: str) -> None:
        """Take a name out again (for tests and notebooks)."""
        self._makers.pop(name, None)

    def names(self) -> list[str]:
        """All names, sorted."""
        load_entry_points()
        return sorted(self._makers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        if name not in self._makers:
            load_entry_points()
        return name in self._makers

    def get(self, name: str) -> Callable[..., T]:
        """The class or function behind ``name``; an unknown name is a ``ValueError`` with the nearest one."""
        if name not in self:
            raise ValueError(f"unknown {self.kind} {shortened(name)}: {nearest_name(name, self.names())}")
        return self._makers[name]

    def keywords(self, name: str) -> dict[str, inspect.Parameter]:
        """The keywords that ``name`` takes, in order."""
        return dict(inspect.signature(self.get(name)).parameters)

    def build(self, name: str, *args: Any, **keywords: Any) -> T:
        """Make ``name``; a keyword it does not take is a ``ValueError`` with the nearest one."""
        known = self.keywords(name)
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
            for keyword in keywords:
                if keyword not in known:
                    hint = nearest_name(keyword, list(known)) if known else "it has no keywords"
                    raise ValueError(f"{self.kind} {name!r} has no keyword {keyword!r}: {hint}")
        return self.get(name)(*args, **keywords)


def _place(maker: Callable[..., Any]) -> tuple[str, str]:
    """Where a class or function is defined."""
    name = getattr(maker, "__qualname__", repr(maker))
    return getattr(maker, "__module__", ""), name
