"""Which items a search looks at: ``{"label": "cat", "price": {"<": 10}}``, or ``label=cat`` as a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from nearkin.registry import shortened

Where = Mapping[str, Any]
"""Key → value, list of values (any of them), or mapping from operators to values (all of them)."""

COLUMNS = ("name", "label", "content", "path", "id")
"""Keys that every item has; all other keys are those of the metadata."""
OPERATORS = ("<=", ">=", "!=", "<", ">", "=")
_BIGGEST_ID = 2**63
_CLAUSE = re.compile(r"\s*([^<>=!]+?)\s*(<=|>=|!=|<|>|=)\s*(.*?)\s*", re.DOTALL)


def conditions(where: Where | None) -> list[tuple[str, str, Any]]:
    """A filter as conditions ``(key, operator, value)`` that must all hold; ``=`` has a list of values.

    >>> conditions({"label": "cat", "price": {"<": 10}, "colour": ["red", "blue"]})
    [('label', '=', ['cat']), ('price', '<', 10), ('colour', '=', ['red', 'blue'])]

    Raises:
        ValueError: It is no filter; the message says what is wrong.
    """
    found: list[tuple[str, str, Any]] = []
    if where is None:
        return found
    if not isinstance(where, Mapping):
        raise ValueError(f'where={shortened(where)} must be a mapping such as {{"label": "cat"}}')
    for key, wanted in where.items():
        if not isinstance(key, str) or not key or '"' in key:
            raise ValueError(f"where: {shortened(key)} is not a key of items")
        if isinstance(wanted, Mapping):
            found += [_condition(key, operator, value) for operator, value in wanted.items()]
        else:
            found.append(_condition(key, "=", wanted))
    return found


def _condition(key: str, operator: str, value: Any) -> tuple[str, str, Any]:
    if operator not in OPERATORS:
        raise ValueError(f"where: {shortened(operator)} is no comparison: use one of {' '.join(OPERATORS)}")
    if operator in ("=", "!="):
        value = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, str | int | float | None) or (one is None and operator not in ("=", "!=")):
            raise ValueError(f"where: {key} {operator} {shortened(one)}: give a text or a number")
    return key, operator, value


def as_number(value: Any) -> Any:
    """A value with true and false as 1 and 0, which they equal.

    >>> as_number(True), as_number(2.5)
    (1, 2.5)
    """
    return int(value) if isinstance(value, bool) else value


def as_text(value: Any) -> str:
    """What is compared with a column of texts: labels given as numbers are texts there.

    >>> as_text(3), as_text("cat")
    ('3', 'cat')
    """
    return value if isinstance(value, str) else str(as_number(value))


def as_id(value: Any) -> int | None:
    """The id that a value is, if it is one.

    >>> as_id("7"), as_id(7.0), as_id("seven"), as_id(None)
    (7, 7, None, None)
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    whole = number.is_integer() and abs(number) < _BIGGEST_ID
    return int(value if isinstance(value, int) else number) if whole else None


def parse_where(clauses: Iterable[str]) -> dict[str, Any]:
    """A filter from texts such as ``label=cat``, ``price<10`` and ``colour=red|blue``; all must hold.

    >>> parse_where(["label=cat", "price>=5", "price<10"])
    {'label': {'=': ['cat']}, 'price': {'>=': 5, '<': 10}}

    Raises:
        ValueError: A text is no condition.
    """
    found: dict[str, dict[str, Any]] = {}
    for clause in clauses:
        parts = _CLAUSE.fullmatch(clause)
        if parts is None:
            raise ValueError(f"{shortened(clause)} is no condition: write label=cat, price<10 or label=a|b")
        key, operator, text = parts[1], parts[2], parts[3]
        value: Any = _number(text) if operator[0] in "<>" else _either(key, text)
        operators = found.setdefault(key, {})
        if operator in operators:
            raise ValueError(f"{shortened(clause)}: {key}{operator} is asked twice; write {key}=a|b")
        operators[operator] = value
    return {key: dict(operators) for key, operators in found.items()}


def _either(key: str, text: str) -> list[Any]:
    """Every alternative as it is written and, where it could be a number, as that number too."""
    values: list[Any] = []
    for part in text.split("|"):
        number = part if key in COLUMNS and key != "id" else _number(part)
        values += [part] if number == part else [number, part]
    return values


def _number(text: str) -> Any:
    """A number or a truth value where the text is one, else the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:  # noqa: PERF203
            continue
    return text
