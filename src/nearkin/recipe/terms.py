"""The terms under which a loss is trained: equal for all, the thesis's, or those of its own paper.

Terms are the values that a recipe has where it says nothing else. ``equal`` are those of the recipe's own
classes; the others come from the files in ``nearkin/recipe/published``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import resources
from typing import Any

from nearkin.recipe import published as recipes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

THESIS = "thesis"


def published() -> dict[str, str]:
    """The losses whose papers' terms are known, and where these come from."""
    return {name: values["source"] for name, values in _files().items() if name != THESIS}


def terms_of_paper(loss: str) -> dict[str, Any]:
    """The values of a paper's own recipe.

    Raises:
        ValueError: If the loss has none.
    """
    if loss not in published():
        known = ", ".join(sorted(published()))
        raise ValueError(f"no published terms are known for {loss}, only for {known}: use equal or {THESIS}")
    values = _files()[loss]
    del values["source"]
    return merged({"loss": {"name": loss}}, values)


def terms_of_thesis(loss: str, data: str, network: str) -> dict[str, Any]:
    """The thesis's values for an experiment.

    Raises:
        ValueError: If the thesis did not train this loss, or not on this data set with this network.
    """
    thesis = _files()[THESIS]
    if loss not in thesis["losses"]:
        raise ValueError(f"the thesis has no terms for {loss}, only for {', '.join(thesis['losses'])}")
    for experiment in thesis["experiments"]:
        if (experiment["data"], experiment["network"]) == (data, network):
            return merged(thesis["common"], experiment["values"], thesis["losses"][loss])
    known = ", ".join(f"{one['network']} on {one['data']}" for one in thesis["experiments"])
    raise ValueError(f"the thesis has no terms for {network} on {data}, only for {known}")


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other; the last one to say something is right, and ``None`` says nothing.

    >>> merged({"loss": {"name": "nca", "lr": 1}}, {"loss": {"lr": 2}, "seed": 3})
    {'loss': {'name': 'nca', 'lr': 2}, 'seed': 3}
    """
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping):
                below = result.get(key)
                result[key] = merged(below if isinstance(below, Mapping) else {}, value)
            elif value is not None:
                result[key] = value
    return result


def _files() -> dict[str, dict[str, Any]]:
    return {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))
        for file in resources.files(recipes).iterdir()
        if file.name.endswith(".toml")
    }
