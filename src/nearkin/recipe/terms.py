"""The terms under which a loss is trained: equal for all, the thesis's, or those of its own paper.

Terms are the values that a recipe has where it says nothing else. ``equal`` are those of the recipe's own
classes; the others come from the files in ``nearkin/recipe/published``, where every value has its origin.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from nearkin.recipe import published as recipes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

THESIS = "thesis"
THESIS_CODE = "thesis_code"
OF_THE_THESIS = (THESIS, THESIS_CODE)
"""The thesis's text, and the habits of its public code where the text is silent."""

ORIGINS = ("Table", "section", "chapter", "equation", "public code", "ours")
"""How an origin in the thesis's files begins."""

_OF_A_PAPER = "the loss's paper or its authors' code"


@dataclass(frozen=True)
class Terms:
    """Values that stand where a recipe says nothing, each with where it comes from.

    Attributes:
        values: By table and key.
        origins: By dotted key. Beside the keys of the values, under a few words, how something was read.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def over(self, below: Terms) -> Terms:
        """These terms laid over others."""
        return Terms(merged(below.values, self.values), below.origins | self.origins)


def published() -> dict[str, str]:
    """The losses whose papers' terms are known, and where these come from."""
    return {name: values["source"] for name, values in _files().items() if name not in OF_THE_THESIS}


def source_of(terms: str, loss: str) -> str:
    """Where a set of terms comes from as a whole; empty for equal terms."""
    files = _files()
    name = loss if terms == "published" else terms
    return str(files[name]["source"]) if name in files else ""


def terms_of(kind: str, *, loss: str, data: str, network: str) -> Terms:
    """The terms of a recipe's experiment; none of their own for ``equal``.

    Raises:
        ValueError: There are none for this loss, data set or network.
    """
    if kind in OF_THE_THESIS:
        return terms_of_thesis(loss, data, network, kind=kind)
    return terms_of_paper(loss) if kind == "published" else Terms()


def terms_of_paper(loss: str) -> Terms:
    """The values of a paper's own recipe.

    Raises:
        ValueError: If the loss has none.
    """
    if loss not in published():
        known = ", ".join(sorted(published()))
        raise ValueError(f"no published terms are known for {loss}, only for {known}: use equal or {THESIS}")
    values = {key: value for key, value in _files()[loss].items() if key != "source"}
    return Terms(merged({"loss": {"name": loss}}, values), dict.fromkeys(dotted(values), _OF_A_PAPER))


def terms_of_thesis(loss: str, data: str, network: str, *, kind: str = THESIS) -> Terms:
    """The thesis's values for an experiment.

    Args:
        loss: Name of the loss.
        data: Name of the data set.
        network: Name of the network.
        kind: ``thesis``, its text; or ``thesis_code``, with its public code where the text is silent.

    Raises:
        ValueError: If the thesis did not train this loss, or not on this data set with this network.

    >>> terms = terms_of_thesis("lifted_structure", "cub200", "resnet50")
    >>> terms.values["loss"]["positive_scale"], terms.origins["loss.positive_scale"]
    (1.0, 'equation (2.21), which has no scales')
    """
    file = _files()[kind]
    base = _files()[file["based_on"]] if "based_on" in file else file
    if loss not in base["losses"]:
        raise ValueError(f"the thesis has no terms for {loss}, only for {', '.join(base['losses'])}")
    if data not in base["data_sets"] or network not in base["networks"]:
        known = f"{', '.join(base['networks'])} on {', '.join(base['data_sets'])}"
        raise ValueError(f"the thesis has no terms for {network} on {data}, only for {known}")
    blocks = [*base["values"], *([] if file is base else file["values"])]
    asked = {"losses": loss, "data_sets": data, "networks": network}
    found = Terms()
    for block in blocks:
        if all(asked[key] in names for key, names in block.get("where", {}).items()):
            found = _of_block(block).over(found)
    return found


def _of_block(block: Mapping[str, Any]) -> Terms:
    if "about" in block:
        return Terms({}, {block["about"]: f"{block['origin']}: {block['reading']}"})
    return Terms(block["set"], dict.fromkeys(dotted(block["set"]), block["origin"]))


def protocol_of_search(kind: str) -> dict[str, Any]:
    """The protocol with which hyperparameters are searched under some terms, where these say."""
    file = _files().get(kind, {})
    base = _files()[file["based_on"]] if "based_on" in file else file
    return dict(base["search"]["set"]["protocol"]) if "search" in base else {}


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """The dotted keys of nested tables.

    >>> list(dotted({"seed": 1, "loss": {"lr": 2}}))
    ['seed', 'loss.lr']
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


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


@cache
def _files() -> dict[str, dict[str, Any]]:
    return {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))
        for file in resources.files(recipes).iterdir()
        if file.name.endswith(".toml")
    }
