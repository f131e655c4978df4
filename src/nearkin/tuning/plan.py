"""How a search goes about it: which trials, how many, how far."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from nearkin.atomic import write_json
from nearkin.losses import Choices, Range
from nearkin.losses.search_space import SearchSpace
from nearkin.recipe import Recipe
from nearkin.recipe.searching import SearchedRecipe, Values
from nearkin.training import RunError
from nearkin.training.run import first_difference
from nearkin.tuning.stages import Coordinate, Rung, coordinates, rungs

Sampler = Literal["tpe", "random", "grid", "coordinate", "halving"]
Pruner = Literal["median", "hyperband", "none"]

_LARGEST_GRID = 10**6


@dataclass(frozen=True)
class SearchPlan:
    """What a search is.

    Attributes:
        searched: The recipe of the trials, and where to look for which of its values.
        sampler: ``tpe`` learns from the trials before, ``random`` does not, ``grid`` takes the steps of the
            ranges, in random order. ``coordinate`` takes these steps for one hyperparameter after the other,
            keeping the best of each, as the thesis does (section 5.3). ``halving`` draws at random and trains
            the better half of the trials on, and the better half of these.
        pruner: When a trial is hopeless: ``median``, below the median of the others at the same epoch;
            ``hyperband``, not among the best third of its bracket; or ``none``.
        trials: How many, where the stages of the search depend on it: ``coordinate`` and ``halving``.
        epochs: Trials are trained this far only, of the recipe's schedule; to its end by default.
    """

    searched: SearchedRecipe
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"
    trials: int | None = None
    epochs: int | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe of every trial, but for what is searched."""
        return self.searched.recipe

    @property
    def space(self) -> SearchSpace:
        """Recipe key → where to look for its value."""
        return self.searched.space

    @property
    def trial_epochs(self) -> int:
        """The epoch that a trial ends with, unless it is given up."""
        return self.epochs or self.recipe.training.stop_after or self.recipe.training.epochs

    @property
    def stops_trials(self) -> bool:
        """Whether trials end before their recipe does."""
        return self.sampler == "halving" or self.epochs is not None

    def rungs(self) -> list[Rung]:
        """How many trials are trained how far: one rung, unless trials are halved."""
        if self.sampler == "halving":
            assert self.trials is not None
            return rungs(self.trials, self.trial_epochs)
        return [Rung(self.trial_epochs, self.trials or 0)]

    def coordinates(self) -> list[Coordinate]:
        """The hyperparameters one after the other, for a search by coordinates."""
        return coordinates({key: values.points() for key, values in self.space.items()}, self.trials)

    @property
    def grid_size(self) -> int:
        """Number of points on the grid."""
        return math.prod(len(values.points()) for values in self.space.values())

    def grid_point(self, index: int) -> Values:
        """The grid's points in an order that the seed draws."""
        generator = torch.Generator().manual_seed(self.recipe.seed)
        place = int(torch.randperm(self.grid_size, generator=generator)[index])
        point: Values = {}
        for key, values in self.space.items():
            place, here = divmod(place, len(values.points()))
            point[key] = values.points()[here]
        return point

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "recipe": self.recipe.said,
            "space": {key: plain_values(values) for key, values in self.space.items()},
            "sampler": self.sampler,
            "pruner": self.pruner,
            **({} if self.trials is None else {"trials": self.trials}),
            **({} if self.epochs is None else {"epochs": self.epochs}),
        }

    def write(self, path: Path) -> None:
        """Write the plan into a new file, or check that the one that is there is the same.

        Raises:
            RunError: It is not.
        """
        plain = json.loads(json.dumps(self.to_dict()))
        if not path.exists():
            write_json(path, plain)
            return
        there = json.loads(path.read_text(encoding="utf-8"))
        if there != plain:
            raise RunError(
                f"{path.parent} holds another search ({first_difference(there, plain)}): choose another "
                "output directory"
            )

    @classmethod
    def read(cls, path: Path) -> SearchPlan:
        """The plan in a file."""
        plain = json.loads(path.read_text(encoding="utf-8"))
        space = {key: values_from(values) for key, values in plain["space"].items()}
        return cls(
            SearchedRecipe(Recipe.parse(plain["recipe"]), space),
            plain["sampler"],
            plain["pruner"],
            plain.get("trials"),
            plain.get("epochs"),
        )


def plain_values(values: Range | Choices) -> dict[str, Any]:
    """Where to look for a value, in plain values.

    >>> plain_values(Choices("avg", "max"))
    {'kind': 'choices', 'values': ('avg', 'max')}
    """
    plain = {"kind": type(values).__name__.lower()} | asdict(values)
    return {key: value for key, value in plain.items() if key != "inverse" or value}


def values_from(plain: Mapping[str, Any]) -> Range | Choices:
    """What :func:`plain_values` wrote."""
    if plain["kind"] == "choices":
        return Choices(*plain["values"])
    return Range(**{key: value for key, value in plain.items() if key != "kind"})


def plan_search(
    searched: SearchedRecipe,
    *,
    sampler: str = "tpe",
    pruner: str = "median",
    trials: int | None = None,
    epochs: int | None = None,
) -> SearchPlan:
    """The plan of a search.

    Args:
        searched: What is searched, and where.
        sampler: ``tpe``, ``random``, ``grid``, ``coordinate`` or ``halving``.
        pruner: ``median``, ``hyperband`` or ``none``; the stages of ``coordinate`` and ``halving`` need no
            other.
        trials: How many, for ``halving`` and, if not all steps are to be tried, for ``coordinate``.
        epochs: Train trials this far only.

    Raises:
        ValueError: Something of it cannot be; the message says what.
    """
    for name, given, allowed in (("sampler", sampler, Sampler), ("pruner", pruner, Pruner)):
        if given not in get_args(allowed):
            raise ValueError(f"{name}={given!r} must be one of: {', '.join(get_args(allowed))}")
    longest = searched.recipe.training.epochs
    if epochs is not None and not 1 <= epochs <= longest:
        raise ValueError(f"trials of {epochs} epochs: a training has between 1 and {longest}")
    staged = sampler in {"coordinate", "halving"}
    if sampler == "halving" and trials is None:
        raise ValueError("sampler='halving' needs to know how many trials there are: give trials")
    plan = SearchPlan(
        searched,
        sampler,  # type: ignore[arg-type]
        "none" if staged else pruner,  # type: ignore[arg-type]
        trials if staged else None,
        epochs,
    )
    if sampler == "coordinate":
        plan.coordinates()  # says if the trials are too few
    if sampler == "grid" and plan.grid_size > _LARGEST_GRID:
        raise ValueError(
            f"the grid has {plan.grid_size:,} points: give some --range a larger step, or one value"
        )
    return plan
