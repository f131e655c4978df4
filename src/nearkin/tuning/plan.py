"""What a search looks for, and where: the loss's own ranges and those that the user adds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

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

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["median", "hyperband", "none"]

# The network is trained again on all classes in the end, so that a search can afford more validation classes
# than a run that ends with the network it validates: with few of them most trials score alike.
VALIDATION_SHARE = 0.3

_LARGEST_GRID = 10**6

Values = dict[str, Any]
"""Recipe key → value."""


@dataclass(frozen=True)
class SearchPlan:
    """What a search is.

    Attributes:
        recipe: The recipe of every trial, but for what is searched.
        space: Recipe key → where to look for its value.
        sampler: ``tpe`` learns from the trials before, ``random`` does not, ``grid`` takes the steps of the
            ranges, in random order.
        pruner: When a trial is hopeless: ``median``, below the median of the others at the same epoch;
            ``hyperband``, not among the best third of its bracket; or ``none``.
    """

    recipe: Recipe
    space: SearchSpace
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"

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
        own = {key: _look_up(recipe, key, None) for key in self.space}
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
            "space": {
                key: {"kind": type(values).__name__.lower()} | asdict(values)
                for key, values in self.space.items()
            },
            "sampler": self.sampler,
            "pruner": self.pruner,
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
        space = {}
        for key, values in plain["space"].items():
            kind = values.pop("kind")
            space[key] = Range(**values) if kind == "range" else Choices(*values["values"])
        return cls(Recipe.parse(plain["recipe"]), space, plain["sampler"], plain["pruner"])


def plan_search(
    recipe: Recipe, ranges: Iterable[str] = (), *, sampler: str = "tpe", pruner: str = "median"
) -> SearchPlan:
    """The plan of a search for the hyperparameters of a recipe's loss, and for whatever else is asked for.

    Args:
        recipe: Its protocol must be ``fixed_validation``; unless it says otherwise, three tenths of the
            training classes are for validation. Under terms whose protocol has no validation classes, such
            as the thesis's, it is the one that these searched with, unless the recipe says one itself.
        ranges: More places to look, or other ones: ``optimizer.lr=1e-4:1e-2:log`` (low, high; ``log`` or a
            step), ``loss.mining=hard,semi_hard``; one value alone holds a key still.
        sampler: ``tpe``, ``random`` or ``grid``.
        pruner: ``median``, ``hyperband`` or ``none``.

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
    space = dict(own_space(recipe))
    for text in ranges:
        key, values = parse_range(recipe, text)
        space[key] = values
    if not space:
        raise ValueError(f"{recipe.loss.name} has nothing to search: say what, with --range KEY=LOW:HIGH")
    plan = SearchPlan(recipe, space, sampler, pruner)  # type: ignore[arg-type]
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
    own: SearchSpace = getattr(loss, "search_space", {})
    found = {f"loss.{key}": values for key, values in own.items()}
    for modifier in recipe.loss.modifiers:
        around: SearchSpace = getattr(modifiers.get(str(modifier.name)), "search_space", {})
        found |= {f"loss.{modifier.name}.{key}": values for key, values in around.items()}
    return found


def parse_range(recipe: Recipe, text: str) -> tuple[str, Range | Choices]:
    """``KEY=LOW:HIGH``, ``KEY=LOW:HIGH:STEP``, ``KEY=LOW:HIGH:log`` or ``KEY=ONE,ANOTHER``.

    >>> parse_range(Recipe.parse({}), "optimizer.lr=1e-4:1e-2:log")
    ('optimizer.lr', Range(low=0.0001, high=0.01, step=None, log=True, whole=False))
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
