"""What a search looks for, and where: the loss's own ranges and those that the user adds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from nearkin import losses
from nearkin.atomic import write_json
from nearkin.losses import Choices, Range, modifiers
from nearkin.losses.base import registry as loss_registry
from nearkin.losses.search_space import SearchSpace
from nearkin.protocols import FixedValidation
from nearkin.recipe import Recipe, RecipeError, override
from nearkin.recipe.sections import ProtocolRecipe
from nearkin.recipe.terms import protocol_of_search
from nearkin.training import RunError
from nearkin.training.run import first_difference
from nearkin.tuning.stages import Coordinate, Rung, coordinates, rungs

Sampler = Literal["tpe", "random", "grid", "coordinate", "halving"]
Pruner = Literal["median", "hyperband", "none"]

# The network is trained again on all classes in the end, so that a search can afford more validation classes
# than a run that ends with the network it validates: with few of them most trials score alike.
VALIDATION_SHARE = 0.3

_LARGEST_GRID = 10**6
_OTHER_RATES = 4.0  # a search looks for the network's learning rate within this factor of the recipe's
_OTHER_LOSS_RATES = 10.0  # and for that of proxies, which papers choose more freely, within this one
_LONGEST_WARMUP = 4  # of how many epochs one may be warm-up

Values = dict[str, Any]
"""Recipe key → value."""


@dataclass(frozen=True)
class SearchPlan:
    """What a search is.

    Attributes:
        recipe: The recipe of every trial, but for what is searched.
        space: Recipe key → where to look for its value.
        sampler: ``tpe`` learns from the trials before, ``random`` does not, ``grid`` takes the steps of the
            ranges, in random order. ``coordinate`` takes these steps for one hyperparameter after the other,
            keeping the best of each, as the thesis does (section 5.3). ``halving`` draws at random and trains
            the better half of the trials on, and the better half of these.
        pruner: When a trial is hopeless: ``median``, below the median of the others at the same epoch;
            ``hyperband``, not among the best third of its bracket; or ``none``.
        trials: How many, where the stages of the search depend on it: ``coordinate`` and ``halving``.
        epochs: Trials are trained this far only, of the recipe's schedule; to its end by default.
    """

    recipe: Recipe
    space: SearchSpace
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"
    trials: int | None = None
    epochs: int | None = None

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

    def begun_with(self) -> Values:
        """What a search by coordinates starts from: the recipe's own values, or the nearest that it tries."""
        recipe = self.recipe.complete()
        return {key: _nearest(_own_value(recipe, key), values) for key, values in self.space.items()}

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

    def own_values(self) -> Values | None:
        """What the recipe itself says, if it says all of it and a search would look there."""
        recipe = self.recipe.complete()
        own = {key: _own_value(recipe, key) for key in self.space}
        return own if all(_inside(value, self.space[key]) for key, value in own.items()) else None

    def trial_recipe(self, values: Values) -> Recipe:
        """The recipe of a trial."""
        return self.recipe.changed(values)

    def final_recipe(self, values: Values, epoch: int) -> Recipe:
        """The recipe of the retraining: all training classes, as far as the epoch that validation chose."""
        epochs = self.recipe.training.epochs
        without = self.recipe.changed({"protocol": None})
        return without.changed(
            values
            | {"protocol.name": "standard", "training.stop_after": max(epoch, 1) if epoch < epochs else None}
        )

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
            Recipe.parse(plain["recipe"]),
            space,
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
    recipe: Recipe,
    ranges: Iterable[str] = (),
    *,
    sampler: str = "tpe",
    pruner: str = "median",
    trials: int | None = None,
    epochs: int | None = None,
    rates: bool = False,
) -> SearchPlan:
    """The plan of a search for the hyperparameters of a recipe's loss, and for whatever else is asked for.

    Args:
        recipe: Its protocol must be ``fixed_validation``; unless it says otherwise, three tenths of the
            training classes are for validation. Under terms whose protocol has no validation classes, such
            as the thesis's, it is the one that these searched with, unless the recipe says one itself.
        ranges: More places to look, or other ones: ``optimizer.lr=1e-4:1e-2:log`` (low, high; ``log`` or a
            step), ``loss.mining=hard,semi_hard``; one value alone holds a key still.
        sampler: ``tpe``, ``random``, ``grid``, ``coordinate`` or ``halving``.
        pruner: ``median``, ``hyperband`` or ``none``; the stages of ``coordinate`` and ``halving`` need no
            other.
        trials: How many, for ``halving`` and, if not all steps are to be tried, for ``coordinate``.
        epochs: Train trials this far only.
        rates: Look for the learning rates of network and loss and for the warm-up as well.

    Raises:
        ValueError: Something of it cannot be; the message says what.
    """
    for name, given, allowed in (("sampler", sampler, Sampler), ("pruner", pruner, Pruner)):
        if given not in get_args(allowed):
            raise ValueError(f"{name}={given!r} must be one of: {', '.join(get_args(allowed))}")
    protocol_of_terms = protocol_of_search(recipe.terms)
    if protocol_of_terms and "protocol" not in recipe.said:
        recipe = recipe.changed({"protocol": protocol_of_terms})
    protocol = ProtocolRecipe.maker(recipe.protocol.name)(**recipe.protocol.keywords)
    if not isinstance(protocol, FixedValidation):
        raise ValueError(
            f"a search selects on validation classes, and protocol.name={recipe.protocol.name} has none for "
            "it: leave protocol.name=fixed_validation"
        )
    if protocol.validation_share is None:
        recipe = recipe.changed({"protocol.validation_share": VALIDATION_SHARE})
    if epochs is not None and not 1 <= epochs <= recipe.training.epochs:
        raise ValueError(f"trials of {epochs} epochs: a training has between 1 and {recipe.training.epochs}")
    space = {**own_space(recipe), **(rates_space(recipe) if rates else {})}
    for text in ranges:
        key, values = parse_range(recipe, text)
        space[key] = values
    if not space:
        raise ValueError(f"{recipe.loss.name} has nothing to search: say what, with --range KEY=LOW:HIGH")
    staged = sampler in {"coordinate", "halving"}
    if sampler == "halving" and trials is None:
        raise ValueError("sampler='halving' needs to know how many trials there are: give trials")
    plan = SearchPlan(
        recipe,
        space,
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


def own_space(recipe: Recipe) -> SearchSpace:
    """Where to look for the hyperparameters of a recipe's loss and of the modifiers around it.

    Empty where these do not say.
    """
    name = recipe.loss.name
    loss = loss_registry.get(name) if name in loss_registry else recipe.objects.get("loss")
    complete = recipe.complete()
    ask = getattr(loss, "space_with", None)
    own: SearchSpace = getattr(loss, "search_space", {}) if ask is None else ask(complete["loss"])
    found = {f"loss.{key}": values for key, values in own.items()}
    if getattr(loss, "searches_rate", False):
        own_rate = _own_value(complete, "loss.lr")
        found["loss.lr"] = Range(own_rate / 10, own_rate, step=own_rate / 10)  # as Table 15 of the thesis
    for modifier in recipe.loss.modifiers:
        around: SearchSpace = getattr(modifiers.get(str(modifier.name)), "search_space", {})
        found |= {f"loss.{modifier.name}.{key}": values for key, values in around.items()}
    return found


def rates_space(recipe: Recipe) -> SearchSpace:
    """Where to look for what matters to every loss, around the recipe's own values: rates and warm-up.

    >>> list(rates_space(Recipe.parse({"loss": {"name": "triplet"}})))
    ['optimizer.lr', 'schedule.warmup']
    >>> rates_space(Recipe.parse({}))["loss.lr"]
    Range(low=0.002, high=0.2, step=None, log=True, whole=False, inverse=False)
    """
    whole = recipe.complete()
    rate = whole["optimizer"]["lr"]
    found: dict[str, Range | Choices] = {
        "optimizer.lr": _around(rate, _OTHER_RATES),
        "schedule.warmup": Range(0.0, max(1.0, whole["training"]["epochs"] / _LONGEST_WARMUP)),
    }
    if _loss_learns(recipe):
        found["loss.lr"] = _around(_own_value(whole, "loss.lr"), _OTHER_LOSS_RATES)
    return found


def _around(value: float, factor: float) -> Range:
    return Range(float(f"{value / factor:.6g}"), float(f"{value * factor:.6g}"), log=True)


def _loss_learns(recipe: Recipe) -> bool:
    """Whether the loss has proxies or boundaries of its own."""
    if recipe.loss.name not in loss_registry:
        return False
    example = losses.build(recipe.loss.name, num_classes=2, embedding_dim=2, **recipe.loss.keywords)
    return next(example.parameters(), None) is not None


def _own_value(recipe: Mapping[str, Any], key: str) -> Any:
    """What a complete recipe has under a key; the rate of a loss's own parameters may be a factor there."""
    value = _look_up(recipe, key, None)
    if key == "loss.lr" and value is None:
        return float(f"{recipe['loss']['lr_factor'] * recipe['optimizer']['lr']:.6g}")
    return value


def _nearest(value: Any, values: Range | Choices) -> Any:
    """The value itself where a search would look there; else the nearest end, or something in the middle."""
    if _inside(value, values):
        return value
    points = values.points()
    if isinstance(values, Choices) or not isinstance(value, int | float):
        return points[len(points) // 2]
    return min(points, key=lambda point: abs(float(point) - value))


def parse_range(recipe: Recipe, text: str) -> tuple[str, Range | Choices]:
    """``KEY=LOW:HIGH``, ``KEY=LOW:HIGH:STEP``, ``KEY=LOW:HIGH:log`` or ``KEY=ONE,ANOTHER``.

    >>> parse_range(Recipe.parse({}), "optimizer.lr=1e-4:1e-2:log")
    ('optimizer.lr', Range(low=0.0001, high=0.01, step=None, log=True, whole=False, inverse=False))
    >>> parse_range(Recipe.parse({}), "network.embedding_dim=32:128:32")[1].points()
    [32, 64, 96, 128]
    >>> parse_range(Recipe.parse({}), "network.pooling=avg,max")
    ('network.pooling', Choices(values=('avg', 'max')))
    """
    key, equals, where = (part.strip() for part in text.partition("="))
    parts = where.split(":")
    if not equals or not key or not where or len(parts) > 3:
        raise ValueError(
            f"--range {text}: write KEY=LOW:HIGH, KEY=LOW:HIGH:STEP, KEY=LOW:HIGH:log or KEY=A,B"
        )
    try:
        values = _numbers(recipe, key, parts) if len(parts) > 1 else _choices(where)
        for end in (values.points()[0], values.points()[-1]):
            recipe.changed({key: end})
    except RecipeError as error:
        raise ValueError(f"--range {text}: {str(error).removeprefix('recipe: ')}") from None
    except ValueError as error:
        raise ValueError(f"--range {text}: {error}") from None
    return key, values


def _numbers(recipe: Recipe, key: str, parts: list[str]) -> Range:
    low, high = float(parts[0]), float(parts[1])
    log = parts[2:] == ["log"]
    step = float(parts[2]) if len(parts) == 3 and not log else None
    return Range(low, high, step, log, whole=_is_whole(recipe, key, low, high))


def _is_whole(recipe: Recipe, key: str, low: float, high: float) -> bool:
    """Whether the recipe takes no number between two whole ones for this key."""
    if not (low.is_integer() and high.is_integer()):
        return False
    try:
        recipe.changed({key: low + 0.5})
    except RecipeError:
        return True
    return False


def _choices(text: str) -> Choices:
    return Choices(*(override({}, [f"value={one}"])["value"] for one in text.split(",")))


def _look_up(recipe: Mapping[str, Any], key: str, default: Any) -> Any:
    table: Any = recipe
    for part in key.split("."):
        if not isinstance(table, Mapping) or part not in table:
            return default
        table = table[part]
    return table


def _inside(value: Any, values: Range | Choices) -> bool:
    if isinstance(values, Choices):
        return value in values.values
    return isinstance(value, int | float) and values.low <= value <= values.high
