"""Typed text ⇄ objects: TOML, ``--set``, plug-ins, the papers' terms. The only room that knows names."""

from nearkin.recipe.errors import RecipeError
from nearkin.recipe.opening import open_data
from nearkin.recipe.recipe import Recipe, override, read_toml

__all__ = ["Recipe", "RecipeError", "open_data", "override", "read_toml"]
