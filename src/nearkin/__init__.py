"""Deep metric learning: embeddings whose nearest neighbours are of the same class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin import (
        classical as classical,
    )
    from nearkin import (
        data as data,
    )
    from nearkin import (
        distributed as distributed,
    )
    from nearkin import (
        evaluation as evaluation,
    )
    from nearkin import (
        losses as losses,
    )
    from nearkin import (
        mining as mining,
    )
    from nearkin import (
        networks as networks,
    )
    from nearkin import (
        sampling as sampling,
    )
    from nearkin.api import compare, evaluate, export, load, publish, tournament, train, tune
    from nearkin.index import Index
    from nearkin.model import Model
    from nearkin.recipe import Recipe
    from nearkin.training import Result, Run, Task

__version__ = "0.1.0"

__all__ = [
    "Index",
    "Model",
    "Recipe",
    "Result",
    "Run",
    "Task",
    "compare",
    "evaluate",
    "export",
    "load",
    "publish",
    "tournament",
    "train",
    "tune",
]

_HOMES = {
    "Index": "nearkin.index",
    "Model": "nearkin.model",
    "Recipe": "nearkin.recipe",
    "Result": "nearkin.training",
    "Run": "nearkin.training",
    "Task": "nearkin.training",
    "compare": "nearkin.api",
    "evaluate": "nearkin.api",
    "export": "nearkin.api",
    "load": "nearkin.api",
    "publish": "nearkin.api",
    "train": "nearkin.api",
    "tune": "nearkin.api",
}
_ROOMS = frozenset(
    {
        "classical",
        "data",
        "distributed",
        "evaluation",
        "explain",
        "index",
        "losses",
        "mining",
        "networks",
        "sampling",
        "tournament",  # which can be called
    }
)


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for, so that ``import nearkin`` takes no time."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"nearkin.{name}")
    raise AttributeError(f"module 'nearkin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_ROOMS])
