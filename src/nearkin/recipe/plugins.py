"""Modules that register something when they are imported, by name."""

from __future__ import annotations

import os
from collections.abc import Iterable

from nearkin.model.files import import_module
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
        try:
            import_module(name, needed_by="imports")
        except ValueError as error:
            if isinstance(error.__cause__, ModuleNotFoundError):
                missing, here = shortened(error.__cause__.name)[1:-1], os.getcwd()  # noqa: PTH109
                raise RecipeError(
                    f"imports: there is no module {missing} in {here} or on the Python path"
                ) from None
            raise RecipeError(f"imports: {name} failed to import: {error.__cause__!r}") from error.__cause__
