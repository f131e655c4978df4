"""What a finished run was made with, opened again: its networks and its data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nearkin.data import DataSet, SampleSet, as_data_set, transforms
from nearkin.model import is_model, read_embedder
from nearkin.networks import Embedder
from nearkin.observer import Observer
from nearkin.protocols import CrossValidation
from nearkin.recipe.building import build_network
from nearkin.recipe.choices import PYTHON
from nearkin.recipe.opening import arranged, open_data
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import ProtocolRecipe
from nearkin.training import Run


def networks_of(run: Run, **given: Any) -> list[Embedder]:
    """The networks of a finished run: one, or one per fold.

    Args:
        run: Finished.
        **given: ``network`` or ``transform``, where the run was given them in Python.
    """
    homes = [run.path / one.run for one in run.result.networks] or [run.path]
    return [_network_in(home, run, **given) for home in homes]


def _network_in(home: Path, run: Run, **given: Any) -> Embedder:
    if is_model(home):
        return read_embedder(home, **given)
    # A run of the first edition: its recipe says how to build the network, whose weights are in the run.
    recipe = Recipe.parse(run.terms, source=str(run.path)).changed({"network.weights": None})
    network = build_network(recipe)
    network.load_state_dict(Run(home, run.description).read_network())
    choice = recipe.data.transform
    name = choice.name or "none"
    seen = transforms.build(name, preprocessing=network.preprocessing, train=False, **choice.keywords)
    return Embedder(network.eval(), seen, seen, transform_spec={"name": name, **choice.keywords})


def data_of(run: Run, data: Any = None, observer: Observer | None = None) -> DataSet:
    """The data set of a run.

    Args:
        run: Whose recipe names it.
        data: Where it is now, if it has moved, or the data itself, if it was given in Python.
        observer: Hears what is being done.
    """
    recipe = Recipe.parse(run.terms, source=str(run.path))
    if isinstance(data, str | os.PathLike):
        return open_data(recipe.changed({"data.root": os.fspath(data)}), observer)
    return open_data(recipe, observer) if data is None else arranged(recipe, as_data_set(data))


def splits_of(run: Run, data: DataSet, fold: int | None = None) -> tuple[SampleSet, SampleSet | None]:
    """What a run's network learnt from, and what selected it, if any classes were held out.

    The test split plays no part.

    Args:
        run: Whose protocol split the data.
        data: Its data set.
        fold: Of a cross-validation, the network of this fold; without one, all networks side by side, which
            leave no class out.
    """
    recipe = Recipe.parse(run.terms, source=str(run.path))
    visible = data.without_test()
    if recipe.protocol.name.startswith(PYTHON):
        return visible.all_classes, None
    protocol = ProtocolRecipe.maker(recipe.protocol.name)(**recipe.protocol.keywords)
    chosen = getattr(protocol, "fold", None) if fold is None else fold
    if isinstance(protocol, CrossValidation) and chosen is not None:
        return protocol.fold_splits(visible, recipe.seed, chosen)
    learnt, selected_on = protocol.split(visible, recipe.seed)
    return learnt, selected_on
