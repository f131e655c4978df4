"""What a reader must know to believe or repeat a comparison: first what differs, then what is equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearkin.tournament.outcomes import Outcome
from nearkin.tournament.report.tables import Cell, Column, Row, Table
from nearkin.tournament.report.wording import count, labelled, listed
from nearkin.training import Result

_PLACES = (
    "recipe.data.root",
    "recipe.network.trunk_cache",
)  # where the images lie says nothing about the run, and much about a machine
_PLACES_IN_RECIPE = tuple(place.removeprefix("recipe.") for place in _PLACES)
_ABSENT = "not said"
_NAMED = 6


@dataclass(frozen=True)
class Disclosure:
    """What differs between the runs, what is the same in all, and where their terms come from."""

    differing: Table | None
    equal: Table | None
    runs: int
    origins: Table | None = None


def disclosure(outcomes: Sequence[Outcome]) -> Disclosure:
    """Compare everything that the runs disclose; baselines have no training to speak of."""
    runs = [outcome for outcome in outcomes if outcome.kind == "run" and outcome.result is not None]
    flat = [_flat(_disclosed(outcome.result)) for outcome in runs if outcome.result is not None]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if key not in _PLACES]
    differing, equal = [], []
    said: set[tuple[str, ...]] = set()
    for key in keys:
        column = tuple(values.get(key, _ABSENT) for values in flat)
        holders: dict[str, list[Outcome]] = {}
        for outcome, value in zip(runs, column, strict=True):
            holders.setdefault(value, []).append(outcome)
        name = Cell(key.removeprefix("disclosure."))
        if len(holders) == 1:
            equal.append(Row([name, Cell(column[0])]))
        elif column not in said:  # the recipe repeats what the disclosure says, under another name
            said.add(column)
            differing.append(Row([name, Cell(_shares(holders)), Cell(_within(holders))]))
    differing.sort(key=lambda row: row.cells[-1].text == "no")
    return Disclosure(
        Table("differs", "What differs between the runs", _DIFFERENCE, differing) if differing else None,
        Table("equal", f"Equal in all {len(runs)} runs", _EQUAL, equal) if equal else None,
        len(runs),
        origins_table(runs),
    )


def origins_table(runs: Sequence[Outcome]) -> Table | None:
    """Where every value comes from that the runs' terms set; ``None`` where all ran on equal terms.

    What the thesis or a paper says comes first, then what its public code does, then what is ours.
    """
    holders: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in runs:
        origins, values = outcome.disclosure.get("origins") or {}, _flat(_recipe_of(outcome))
        for key, origin in origins.items():
            if key not in _PLACES_IN_RECIPE:
                holders.setdefault((key, values.get(key, ""), origin), []).append(outcome)
    if not holders:
        return None
    of_terms = sum(bool(outcome.disclosure.get("origins")) for outcome in runs)
    rows = [
        Row(
            [
                Cell(key),
                Cell(value),
                Cell(origin),
                Cell("all" if len(ones) == of_terms else _contenders(ones)),
            ]
        )
        for (key, value, origin), ones in sorted(holders.items(), key=lambda one: _origin_order(one[0]))
    ]
    return Table("origins", "Where the terms come from", _ORIGINS, rows)


def _origin_order(row: tuple[str, str, str]) -> tuple[int, str, str]:
    key, value, origin = row
    kinds = ("public code", "said", "ours")
    return next((place for place, kind in enumerate(kinds, 1) if origin.startswith(kind)), 0), key, value


def _recipe_of(outcome: Outcome) -> Mapping[str, Any]:
    return {} if outcome.result is None else outcome.result.recipe


def _contenders(outcomes: Sequence[Outcome]) -> str:
    return listed(list(dict.fromkeys(outcome.contender for outcome in outcomes)))


def _disclosed(result: Result) -> dict[str, Any]:
    """What a result says about how its scores came about; lists of class names would fill pages."""
    data = {} if result.data is None else result.data.to_dict()
    splits = {name: _without_lists(split) for name, split in data.items() if isinstance(split, Mapping)}
    return {
        "disclosure": {key: value for key, value in result.disclosure.items() if key != "origins"},
        "recipe": result.recipe,
        "selection": {"rule": result.rule, "epoch": result.epoch},
        "data": splits,
        "network": result.network,
    }


def _without_lists(split: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in split.items() if key != "class_names" and value != ""}


_DIFFERENCE = [
    Column("setting"),
    Column("values"),
    Column("within an experiment", hint="whether contenders of one and the same experiment differ in it"),
]
_EQUAL = [Column("setting"), Column("value")]
_ORIGINS = [Column("setting"), Column("value"), Column("origin"), Column("for")]


def _shares(holders: Mapping[str, Sequence[Outcome]]) -> str:
    """Every value with how many runs have it, and whose they are; the most frequent first."""
    ordered = sorted(holders.items(), key=lambda item: -len(item[1]))
    return ";\n".join(f"{value}: {count(len(ones), 'run')}{_whose(ones)}" for value, ones in ordered)


def _within(holders: Mapping[str, Sequence[Outcome]]) -> str:
    """Whether some experiment holds two values."""
    seen = [{outcome.experiment for outcome in ones} for ones in holders.values()]
    return "yes" if sum(map(len, seen)) > len(set().union(*seen)) else "no"


def _whose(outcomes: Sequence[Outcome]) -> str:
    names = list(dict.fromkeys(outcome.contender for outcome in outcomes))
    return f" ({listed(names)})" if len(names) <= _NAMED else ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as ``table.key`` with words as values.

    >>> _flat({"loss": {"margin": 0.1}, "recall_at": [1, 2]})
    {'loss.margin': '0.1', 'recall_at': '1, 2'}
    """
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _words(value)
    return flat


def _words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    return labelled(str(value))
