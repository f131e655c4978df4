"""Opening the data set that a recipe names, every image of which can be read."""

from __future__ import annotations

import inspect
from typing import Any

from nearkin import data
from nearkin.data import DataSet
from nearkin.observer import Observer
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import DataRecipe, ProtocolRecipe

_LISTED = 5


def open_data(recipe: Recipe, observer: Observer | None = None) -> DataSet:
    """The recipe's data set.

    Raises:
        ValueError: that lists the images that cannot be read, unless the recipe skips them.
    """
    observer = observer or Observer()
    settings = recipe.resolved().data
    given = recipe.objects.get("data")
    if given is not None:
        data_set = data.as_data_set(given)
    else:
        assert settings.name is not None
        if settings.name.startswith("python:"):
            raise ValueError(
                f"the data of this recipe was given in Python ({settings.name.removeprefix('python:')}): "
                "pass it again, nearkin.train(my_data, …), or name it as module:object"
            )
        observer.stage(f"opening {settings.name}")
        data_set = opened(settings.name, settings.root, settings.keywords)
    data_set = arranged(recipe, data_set)
    observer.stage("checking images")
    bad = data.bad_images(data_set, progress=observer.progress)
    if bad and not settings.skip_bad:
        listed = "; ".join(map(str, bad[:_LISTED])) + ("; …" if len(bad) > _LISTED else "")
        raise ValueError(
            f"{len(bad)} images cannot be read: {listed}. Mend them, or leave them out with --skip-bad "
            "(nearkin datasets check lists all)"
        )
    usable = data.leave_out(data_set, bad)
    for note in usable.notes:
        observer.note(note)
    return usable


def arranged(recipe: Recipe, data_set: DataSet) -> DataSet:
    """A data set in the splits that the recipe's protocol is about."""
    name = recipe.protocol.name
    if name.startswith("python:"):
        protocol = recipe.objects.get("protocol")
    else:
        protocol = ProtocolRecipe.maker(name)(**recipe.protocol.keywords)
    arrange = getattr(protocol, "arrange", None)
    if arrange is None or data_set.closed or data_set.weakened:
        return data_set
    made: DataSet = arrange(data_set, recipe.seed)
    if data_set.train.pairs is not None and made.train.pairs is None:
        raise ValueError(
            f"protocol.name={name} is about labels, and of these samples pairs are known: choose "
            "fixed_validation, retrained, standard or cross_validation"
        )
    return made


def opened(name: str, root: str | None, keywords: dict[str, Any]) -> DataSet:
    """The data set of a name, of ours or of a plug-in; no image is looked at."""
    if name in data.names():
        return data.build(name, root, **keywords)
    maker = DataRecipe.maker(name)
    if "root" in inspect.signature(maker).parameters:
        keywords = {"root": root, **keywords}
    return data.as_data_set(maker(**keywords), name=name)
