"""A plan: lists of data sets, networks, sizes, losses, protocols and seeds that expand to many runs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from nearkin import losses
from nearkin.losses.modifiers import registry as modifiers
from nearkin.recipe import Recipe, RecipeError, override, read_toml
from nearkin.recipe.choices import PYTHON, Section
from nearkin.recipe.errors import first_mistake
from nearkin.recipe.plugins import import_plugins
from nearkin.recipe.sections import ProtocolRecipe
from nearkin.recipe.terms import merged
from nearkin.registry import nearest_name
from nearkin.training import Description
from nearkin.training.run import first_difference

AXES = {
    "data": "data_sets",
    "network": "networks",
    "embedding_dim": "embedding_dims",
    "loss": "losses",
    "modifier": "modifiers",
    "protocol": "protocols",
    "seed": "seeds",
}
NO_MODIFIER = "none"
_UNNAMED_PROTOCOL = "fixed_validation"  # left out of a run's name, to keep the usual name short


class PlanError(RecipeError):
    """A plan that cannot be executed; the message says which entry and what to write instead."""


class Entry(Section):
    """One entry of a list: a name, or a table with more.

    Attributes:
        name: The name of the data set, network, loss or protocol; a number for embedding sizes and seeds.
        label: What it is called in the names of runs and in tables; its name by default.
        recipe: Changes anywhere in the recipe of its runs.

    Every other key goes to the entry's own table of the recipe, such as a loss's ``margin``.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str | int
    label: str = ""
    recipe: dict[str, Any] = Field(default_factory=dict)

    def changes(self, axis: str) -> dict[str, Any]:
        """What the entry says about a recipe."""
        own = dict(self.model_extra or {})
        if axis == "seed":
            own_table: dict[str, Any] = {"seed": self.name, **own}
        elif axis == "embedding_dim":
            own_table = {"network": {"embedding_dim": self.name, **own}}
        elif axis == "modifier":
            own_table = {"loss": own}
        else:
            own_table = {axis: {"name": self.name, **own}}
        return merged(own_table, self.recipe)

    @property
    def shown(self) -> str:
        """The label as a part of a directory's name."""
        return re.sub(r"[^A-Za-z0-9_.+=]", "_", self.label or str(self.name))


class _Unsaid(Entry):
    """What a recipe has on an axis that the plan does not list: it changes nothing."""

    def changes(self, axis: str) -> dict[str, Any]:
        return {}


def _entry(value: Any) -> Any:
    return {"name": value} if isinstance(value, str | int) and not isinstance(value, bool) else value


def _entries(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _modifier(value: Any) -> Any:
    """``none``, the name of a modifier, or a table of tables by their names, as ``[loss]`` has them."""
    if isinstance(value, str):
        return {"name": value} | ({} if value == NO_MODIFIER else {value: {}})
    if not isinstance(value, Mapping) or "name" in value:
        return value
    tables = [key for key in value if key not in Entry.model_fields]
    return {"name": "+".join(tables) or NO_MODIFIER, **value}


def _losses(value: Any) -> Any:
    return losses.names() if value == "all" else value


_Entry = Annotated[Entry, BeforeValidator(_entry)]
_Entries = Annotated[tuple[_Entry, ...], BeforeValidator(_entries)]
_Modifiers = Annotated[tuple[Annotated[Entry, BeforeValidator(_modifier)], ...], BeforeValidator(_entries)]
_Name = str | int
_Names = Annotated[tuple[_Name, ...], BeforeValidator(_entries)]


class Match(Section):
    """Some of a plan's runs: those that have one of the given names or labels on every given axis."""

    data: _Names = ()
    network: _Names = ()
    embedding_dim: _Names = ()
    loss: _Names = ()
    modifier: _Names = ()
    protocol: _Names = ()
    seed: _Names = ()

    def __call__(self, combination: Mapping[str, Entry]) -> bool:
        """Whether a combination of entries, by axis, is among them."""
        return all(
            not (wanted := getattr(self, axis)) or any(_is_called(entry, name) for name in wanted)
            for axis, entry in combination.items()
        )


def _is_called(entry: Entry, name: _Name) -> bool:
    return name in (entry.name, entry.label or entry.name)


class Adjustment(Section):
    """Changes to the recipes of some runs.

    Attributes:
        where: Which runs.
        recipe: The changes.
    """

    where: Match
    recipe: dict[str, Any]


class Inclusion(Section):
    """Extra combinations, whatever is excluded.

    An axis takes names or tables, one or several; a name that the plan lists means that entry. An axis that
    is not mentioned runs over the plan's list.

    Attributes:
        label: A part of the runs' names, for combinations that the plan has already and ``recipe`` changes.
        recipe: Changes anywhere in their recipes.
    """

    data: _Entries = ()
    network: _Entries = ()
    embedding_dim: _Entries = ()
    loss: _Entries = ()
    modifier: _Modifiers = ()
    protocol: _Entries = ()
    seed: _Entries = ()
    label: str = ""
    recipe: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
        name: The name of its directory: readable, and another one for every other recipe of the plan.
        recipe: All about it.
        labels: What it is called on each axis: ``data``, ``network``, ``embedding_dim``, ``loss``,
            ``modifier``, ``protocol``, ``seed`` and, for labelled inclusions, ``extra``.
    """

    name: str
    recipe: Recipe
    labels: dict[str, str]

    def description(self) -> Description:
        """What its run directory says about it."""
        return Description(self.recipe.to_toml(), self.recipe.complete())

    @property
    def epochs(self) -> int:
        """Epochs in all, of every network if there are several."""
        protocol = self.recipe.protocol
        networks = ProtocolRecipe.maker(protocol.name)(**protocol.keywords).networks
        return self.recipe.training.epochs * int(networks)


def refuse_objects(runs: Iterable[PlannedRun]) -> None:
    """Say at once that what was given in Python cannot be sent to worker processes.

    Raises:
        PlanError: The recipe of one of the runs holds such an object.
    """
    for recipe in (run.recipe for run in runs):
        named = {
            key.removesuffix(".name").removesuffix(".object"): value.removeprefix(PYTHON)
            for key, value in _values(recipe.said)
            if isinstance(value, str) and value.startswith(PYTHON)
        }
        for key in [*named, *recipe.objects]:
            told = f" ({named[key]})" if key in named else ""
            raise PlanError(
                f"the {key}{told} was given as a Python object, which worker processes cannot be sent: put "
                "it into a module and name it as module:object, such as my_losses:SupCon"
            )


def _values(said: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in said.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Tuning(Section):
    """Equal budgets: every loss is searched for its settings before its seeds are trained and tested.

    A search looks at validation classes only. It covers the loss's own search space, the learning rates of
    network and loss and the warm-up, and begins with the plan's own settings. Give ``trials`` or ``steps``.

    Attributes:
        trials: Trials of each loss.
        steps: Training steps of each loss, in all its trials.
        sampler: How trials are drawn: see ``nearkin tune``. With all of these the steps of a search depend on
            no score, so that losses with equal batches get equal compute.
        epochs: Epochs of a trial, the first of the training's schedule; all of them by default.
        validation_share: The share of the training classes that a search validates on.
        seed: Draws validation classes and trials; the plan's first seed by default.
        ranges: More places to look, or other ones, as for ``nearkin tune --range``.
        rates: Whether learning rates and warm-up are searched.
        defaults: Whether to train and test the plan's own settings beside what was found.
    """

    trials: Annotated[int, Field(ge=1, le=10**6, strict=True)] | None = None
    steps: Annotated[int, Field(ge=1, le=10**12, strict=True)] | None = None
    sampler: Literal["tpe", "random", "coordinate", "halving"] = "halving"
    epochs: Annotated[int, Field(ge=1, strict=True)] | None = None
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    seed: int | None = None
    ranges: Annotated[tuple[str, ...], BeforeValidator(_entries)] = ()
    rates: bool = True
    defaults: bool = True

    @model_validator(mode="after")
    def _check_budget(self) -> Tuning:
        if (self.trials is None) == (self.steps is None):
            raise ValueError("tuning needs a budget: give either trials or steps")
        return self


class Plan(Section):
    """Many runs: a recipe, and lists of what varies. Every combination is a run.

    A list that is left out has one entry, that of ``recipe``. Later words win: ``recipe``, then the entries
    of the lists in the order below, an inclusion's ``recipe``, and ``adjust`` from first to last.

    Attributes:
        name: What the plan is called; the name of its file by default.
        description: What it is for, in a sentence.
        imports: Modules to import first, which register losses, networks or whatever else; in every worker
            as well.
        recipe: What all runs have in common; any key of a recipe.
        data_sets: Names or tables, as everywhere below.
        networks: See above.
        embedding_dims: Numbers.
        losses: Names or tables, or ``"all"`` for every loss of the library.
        modifiers: What goes around each loss: ``"none"``, a modifier's name, or a table of one or several
            with their keywords, such as ``{matryoshka = {sizes = [64, 32]}}``.
        protocols: See above.
        seeds: Numbers.
        include: Extra combinations.
        exclude: Combinations to leave out: those that match all that an entry says.
        adjust: Changes that depend on several axes.
        tuning: Search the settings of every loss first, each with the same budget.
        found: What an earlier search found, used instead of a new one: a file that such a search left
            (``tuning/found.json``), or the name of one that comes with the library.
        cpus: Cores that a run takes.
        gpus: GPUs that a run takes, on a Ray cluster.
        retries: How often a run is tried again after its Ray worker was lost.

    Example:
        >>> plan = Plan.parse({"losses": ["triplet", {"name": "margin", "nu": 0.1}], "seeds": [0, 1]})
        >>> [run.name for run in plan.runs()][:2]
        ['glyphs-convnet-triplet-64-seed0', 'glyphs-convnet-triplet-64-seed1']
    """

    name: str = "plan"
    description: str = ""
    imports: tuple[str, ...] = ()
    recipe: dict[str, Any] = Field(default_factory=dict)
    data_sets: _Entries = ()
    networks: _Entries = ()
    embedding_dims: _Entries = ()
    losses: Annotated[_Entries, BeforeValidator(_losses)] = ()
    modifiers: _Modifiers = ()
    protocols: _Entries = ()
    seeds: _Entries = ()
    include: tuple[Inclusion, ...] = ()
    exclude: tuple[Match, ...] = ()
    adjust: tuple[Adjustment, ...] = ()
    tuning: Tuning | None = None
    found: str = ""
    cpus: PositiveFloat = 1
    gpus: NonNegativeFloat = 0
    retries: NonNegativeInt = 3

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, source: str = "plan") -> Plan:
        """Check plain values, and the recipe of every run; a mistake is a :class:`PlanError` of one line.

        >>> Plan.parse({"loses": ["triplet"]})
        Traceback (most recent call last):
        nearkin.benchmark.plan.PlanError: plan: unknown key loses: did you mean losses?
        """
        imports = values.get("imports", ())
        try:
            import_plugins(imports if isinstance(imports, list | tuple) else [imports])
            plan = cls.model_validate(values)
        except RecipeError as error:
            raise PlanError(f"{source}: {error}") from None
        except ValidationError as error:
            raise PlanError(f"{source}: {first_mistake(error, cls)}") from None
        try:
            plan.runs()
        except RecipeError as error:
            raise PlanError(f"{source}: {error}") from None
        return plan

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], overrides: Iterable[str] = (), *, imports: Iterable[str] = ()
    ) -> Plan:
        """Read a TOML file, apply ``key=value`` overrides, and import some modules more."""
        values = override({"name": Path(path).stem, **read_toml(path, kind="plan")}, overrides)
        if more := list(imports):
            values["imports"] = [*more, *values.get("imports", [])]
        return cls.parse(values, source=str(path))

    @classmethod
    def find(
        cls, name: str | os.PathLike[str], overrides: Iterable[str] = (), *, imports: Iterable[str] = ()
    ) -> Plan:
        """Read a TOML file, or one of the plans that come with the library, by its name."""
        path = Path(name)
        packaged = packaged_plans()
        if not path.exists() and str(name) in packaged:
            return cls.read(packaged[str(name)], overrides, imports=imports)
        if not path.exists():
            hint = nearest_name(str(name), list(packaged))
            raise PlanError(f"there is no plan {name}: give a TOML file, or the name of an own one ({hint})")
        return cls.read(path, overrides, imports=imports)

    def runs(self) -> list[PlannedRun]:
        """All runs, in order: the product of the lists, then the inclusions."""
        return list(self._runs)

    @cached_property
    def _runs(self) -> tuple[PlannedRun, ...]:
        self._refuse_names_twice()
        self._refuse_matches_of_nothing()
        planned: dict[str, PlannedRun] = {}
        for combination, inclusion in self._combinations():
            run = self._planned(combination, inclusion)
            there = planned.setdefault(run.name.casefold(), run)  # file systems may not tell A from a
            if there.recipe.said != run.recipe.said and (
                (before := there.recipe.complete()) != (now := run.recipe.complete())
            ):
                change = first_difference(before, now)
                raise PlanError(f"two runs would be called {run.name} ({change}): give one of them a label")
        if not planned:
            raise PlanError("nothing is left to run: exclude matches every combination")
        return tuple(planned.values())

    def _combinations(self) -> Iterator[tuple[dict[str, Entry], Inclusion | None]]:
        listed = {axis: self._listed(axis) for axis in AXES}
        for combination in _product(listed):
            if not any(excluded(combination) for excluded in self.exclude):
                yield combination, None
        for inclusion in self.include:
            chosen = {axis: _chosen(getattr(inclusion, axis), entries) for axis, entries in listed.items()}
            for combination in _product(chosen):
                yield combination, inclusion

    def _listed(self, axis: str) -> tuple[Entry, ...]:
        """The plan's list for an axis, or else the one entry that ``recipe`` has, or a recipe's default."""
        return getattr(self, AXES[axis]) or (_Unsaid(name=self._common(axis) or self._default(axis)),)

    def _common(self, axis: str) -> Any:
        """What ``recipe`` names on an axis."""
        if axis == "seed":
            return self.recipe.get("seed")
        if axis == "modifier":
            loss = self.recipe.get("loss")
            return "+".join(key for key in loss if key in modifiers) if isinstance(loss, Mapping) else None
        table, key = ("network", "embedding_dim") if axis == "embedding_dim" else (axis, "name")
        section = self.recipe.get(table)
        if isinstance(section, str):
            return section if key == "name" else None
        return section.get(key, section.get("object")) if isinstance(section, Mapping) else None

    def _default(self, axis: str) -> str | int:
        """What a recipe has on an axis if nobody says: of data, what its root is."""
        table = self.recipe.get("data")
        root = table.get("root") if isinstance(table, Mapping) else None
        if axis == "data" and isinstance(root, str):
            return Path(root).name or root
        if axis == "modifier":
            return NO_MODIFIER
        whole = Recipe.parse({}).resolved()
        if axis == "seed":
            return whole.seed
        found = whole.network.embedding_dim if axis == "embedding_dim" else getattr(whole, axis).name
        assert found is not None
        return found

    def _refuse_names_twice(self) -> None:
        for axis, plural in AXES.items():
            if getattr(self, plural) and self._common(axis) not in (None, ""):
                raise PlanError(f"both recipe and {plural} say which {axis}: leave one of them out")

    def _refuse_matches_of_nothing(self) -> None:
        """A name that no run has is a typo."""
        matches = [("exclude", match) for match in self.exclude]
        matches += [("adjust.where", adjustment.where) for adjustment in self.adjust]
        for place, match in matches:
            if not match.model_fields_set:
                raise PlanError(f"{place} is empty and would match every run")
            for axis in match.model_fields_set:
                entries = [*self._listed(axis)]
                entries += [entry for inclusion in self.include for entry in getattr(inclusion, axis)]
                for name in getattr(match, axis):
                    if not any(_is_called(entry, name) for entry in entries):
                        known = sorted({str(entry.label or entry.name) for entry in entries})
                        raise PlanError(
                            f"{place}: no {axis} is called {name!r}: {nearest_name(str(name), known)}"
                        )

    def _planned(self, combination: Mapping[str, Entry], inclusion: Inclusion | None) -> PlannedRun:
        values = merged(self.recipe, {"imports": [*self.imports, *self.recipe.get("imports", [])] or None})
        for axis, entry in combination.items():
            values = merged(values, entry.changes(axis))
        labels = {axis: entry.shown for axis, entry in combination.items()}
        if inclusion is not None:
            values = merged(values, inclusion.recipe)
            if inclusion.label:
                labels["extra"] = Entry(name=inclusion.label).shown
        for adjustment in self.adjust:
            if adjustment.where(combination):
                values = merged(values, adjustment.recipe)
        name = _name(labels)
        recipe = Recipe.parse(values, source=name)
        planned = PlannedRun(name, recipe, labels)
        refuse_objects([planned])
        try:
            recipe.resolved()
        except RecipeError as error:
            raise PlanError(f"{name}: {error}") from None
        return planned


def _product(entries: Mapping[str, tuple[Entry, ...]]) -> Iterator[dict[str, Entry]]:
    for combination in itertools.product(*entries.values()):
        yield dict(zip(entries, combination, strict=True))


def _chosen(wanted: tuple[Entry, ...], listed: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """An inclusion's entries of an axis; a plain name that the plan lists is the plan's entry."""
    if not wanted:
        return listed
    return tuple(_listed_under(entry, listed) for entry in wanted)


def _listed_under(entry: Entry, listed: tuple[Entry, ...]) -> Entry:
    if entry.model_fields_set != {"name"}:
        return entry
    return next((other for other in listed if _is_called(other, entry.name)), entry)


def _name(labels: Mapping[str, str]) -> str:
    """``cub200-bninception-proxy_anchor-512-seed0``.

    A label has no hyphen, so that two runs with different labels never have one name.
    """
    loss = labels["loss"]
    if labels["modifier"] != NO_MODIFIER:
        loss = f"{loss}+{labels['modifier']}"
    parts = [labels["data"], labels["network"], loss, labels["embedding_dim"]]
    if labels["protocol"] != _UNNAMED_PROTOCOL:
        parts.append(labels["protocol"])
    if "extra" in labels:
        parts.append(labels["extra"])
    return "-".join([*parts, f"seed{labels['seed']}"])


def packaged_plans() -> dict[str, Path]:
    """The plans that come with the library, by name."""
    folder = Path(str(files("nearkin.benchmark") / "plans"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
