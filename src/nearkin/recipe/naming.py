"""What a run is called if nobody says."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from nearkin.recipe.recipe import Recipe
from nearkin.training.run import without_neutral_keys


def default_output(recipe: Recipe) -> Path:
    """Where a run goes if nobody says: readable, and another place for every other recipe or data.

    >>> default_output(Recipe.parse({})).name.rpartition("-")[0]
    'glyphs-convnet64-proxy_anchor-seed0'
    """
    whole = recipe.resolved()
    data = (
        Path(whole.data.root).name
        if whole.data.root and whole.data.name in {"folder", "csv", "pairs"}
        else whole.data.name
    )
    network = f"-{whole.network.name}{whole.network.embedding_dim or ''}"
    said = recipe.said.get("network", {})
    if whole.data.name != "glyphs" and not isinstance(said, str) and "name" not in said:
        network = ""  # it will be chosen to fit the images
    loss = f"-{whole.loss.name}"
    if whole.data.name == "pairs" and "loss" not in recipe.said:
        loss = ""  # likewise, to fit the pairs
    name = f"{data}{network}{loss}-seed{whole.seed}"
    return Path("runs") / f"{_safe(name)}-{recipe_hash(recipe)}"


def recipe_hash(recipe: Recipe) -> str:
    """Six characters that tell recipes apart; settings that change no number do not count, but data does."""
    terms = without_neutral_keys(recipe.complete())
    root = recipe.data.root
    place = str(Path(root).resolve()) if root else ""
    return hashlib.sha256(f"{json.dumps(terms, sort_keys=True)} {place}".encode()).hexdigest()[:6]


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "_", name)[:150]
