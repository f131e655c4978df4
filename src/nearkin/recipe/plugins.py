"""Modules that register something when they are imported, by name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable

from nearkin.model.files import import_object
from nearkin.recipe.errors import RecipeError
from nearkin.registry import shortened


def import_plugins(modules: Iterable[str]) -> None:
    """Import modules by name, from the working directory as well, so that what they register is known.

    Raises:
        RecipeError: One cannot be imported.
    """
    for name in modules:
        if not isinstance(name, str) or not name:
            raise RecipeError(f"imports must be a list of module names, not {shortened(name)}")
        _see_working_directory()
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing, here = shortened(error.name)[1:-1], os.getcwd()  # noqa: PTH109
            raise RecipeError(
                f"imports: there is no module {missing} in {here} or on the Python path"
            ) from None
        except Exception as error:  # whatever a user's module raises while it is imported
            raise RecipeError(f"imports: {name} failed to import: {error!r}") from error


def find_object(path: str) -> object:
    """What ``module:object`` names; the working directory is looked into as well."""
    _see_working_directory()
    return import_object(path)


def _see_working_directory() -> None:
    """Let modules of the working directory be found, as ``python -m`` does and console scripts do not."""
    here = os.getcwd()  # noqa: PTH109
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
