"""A recipe of which some values are searched: which ones, and where to look for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nearkin import losses
from nearkin.losses import Choices, Range, modifiers
from nearkin.losses.base import registry as loss_registry
from nearkin.losses.search_space import SearchSpace
from nearkin.protocols import FixedValidation
from nearkin.recipe.errors import RecipeError
from nearkin.recipe.recipe import Recipe, override
from nearkin.recipe.sections import ProtocolRecipe
from nearkin.recipe.terms import protocol_of_search

# The network is trained again on all classes in the end, so that a search can afford more validation classes
# than a run that ends with the network it validates: with few of them most trials score alike.
VALIDATION_SHARE = 0.3

_OTHER_RATES = 4.0  # a search looks for the network's learning rate within this factor of the recipe's
_OTHER_LOSS_RATES = 10.0  # and for that of proxies, which papers choose more freely, within this one
_LONGEST_WARMUP = 4  # of how many epochs one may be warm-up

Values = dict[str, Any]
"""Recipe key → value."""


@dataclass(frozen=True)
class SearchedRecipe:
    """A recipe of which some values are searched.

    Attributes:
        recipe: The recipe of every trial, but for what is searched.
        space: Recipe key → where to look for its value.
    """

    recipe: Recipe
    space: SearchSpace

    def of_trial(self, values: Values) -> Recipe:
        """The recipe of a trial."""
        return self.recipe.changed(values)

    def of_validated(self, values: Values) -> Recipe:
        """The recipe of a training like a trial's whose network is kept: validation classes teach nothing."""
        return self.recipe.changed(values | {"protocol.name": "fixed_validation"})

    def of_retraining(self, values: Values, epoch: int) -> Recipe:
        """The recipe of the retraining: all training classes, as far as the epoch that validation chose."""
        epochs = self.recipe.training.epochs
        without = self.recipe.changed({"protocol": None})
        return without.changed(
            values
            | {"protocol.name": "standard", "training.stop_after": max(epoch, 1) if epoch < epochs else None}
        )

    def own_values(self) -> Values | None:
        """What the recipe itself says, if it says all of it and a search would look there."""
        recipe = self.recipe.complete()
        own = {key: _own_value(recipe, key) for key in self.space}
        return own if all(_inside(value, self.space[key]) for key, value in own.items()) else None

    def nearest_values(self) -> Values:
        """The recipe's own values, or the nearest where a search would look."""
        recipe = self.recipe.complete()
        return {key: _nearest(_own_value(recipe, key), values) for key, values in self.space.items()}


def searched(recipe: Recipe, ranges: Iterable[str] = (), *, rates: bool = False) -> SearchedRecipe:
    """A recipe with the hyperparameters of its loss to be searched, and whatever else is asked for.

    Args:
        recipe: Its protocol must be ``fixed_validation``; unless it says otherwise, three tenths of the
            training classes are for validation. Under terms whose protocol has no validation classes, such
            as the thesis's, it is the one that these searched with, unless the recipe says one itself.
        ranges: More places to look, or other ones: ``optimizer.lr=1e-4:1e-2:log`` (low, high; ``log`` or a
            step), ``loss.mining=hard,semi_hard``; one value alone holds a key still.
        rates: Look for the learning rates of network and loss and for the warm-up as well.

    Raises:
        ValueError: Something of it cannot be; the message says what.
    """
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
    space = {**own_space(recipe), **(rates_space(recipe) if rates else {})}
    for text in ranges:
        key, values = parse_range(recipe, text)
        space[key] = values
    if not space:
        raise ValueError(f"{recipe.loss.name} has nothing to search: say what, with --range KEY=LOW:HIGH")
    return SearchedRecipe(recipe, space)


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
