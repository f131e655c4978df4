"""Filters as expressions of Milvus, in which no text of the user's ever stands.

Milvus has no parameters that all its versions know. So a row holds, beside its texts, their hashes
(:func:`token`), and a dictionary ``facts`` of its metadata under hashed keys: ``n…`` a number, ``t…`` the
hash of a text. Expressions are made of hashes and numbers only. What needs the order of texts is decided
here, in Python, for the rows that the rest of the filter leaves.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nearkin.index.filters import COLUMNS, Where, as_id, as_number, as_text, conditions
from nearkin.index.items import Item, NewItem

EVERYTHING, NOTHING = 'key != ""', 'key == ""'
_FIELDS = {"name": "key", "label": "label_key", "path": "path_key", "content": "content_key"}


class Expression(NamedTuple):
    """A filter: what Milvus decides, and comparisons of texts ``(key, operator, text)`` that are left."""

    text: str
    left: list[tuple[str, str, str]]


def token(text: str | None) -> str:
    """128 bits of a text's SHA-256 in hexadecimal digits; empty where there is no text.

    >>> token("cat"), token(None)
    ('77af778b51abd4a3c51c5ddd97204a9c', '')
    """
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()[:32]


def facts_of(item: NewItem | Item) -> dict[str, Any]:
    """The metadata of an item as expressions use it."""
    return {
        f"t{token(key)}" if isinstance(value, str) else f"n{token(key)}": token(value)
        if isinstance(value, str)
        else float(value)
        for key, value in item.metadata.items()
    }


def one_of(field: str, values: Sequence[Any]) -> str:
    """An expression that holds where a field is one of some hashes or numbers.

    >>> one_of("id", [3, 4])
    'id in [3,4]'
    """
    quoted = (f'"{one}"' if isinstance(one, str) else str(int(one)) for one in values)
    return f"{field} in [{','.join(quoted)}]" if len(values) else NOTHING


def filter_to_expression(where: Where | None) -> Expression:
    """A filter as an expression, and what is left of it.

    >>> filter_to_expression({"price": {"<": 10}}).text
    '(facts["n683b531f41ec88a2f345b727afe59757"] < 10.0)'
    """
    parts: list[str] = []
    left: list[tuple[str, str, str]] = []
    for key, operator, wanted in conditions(where):
        if operator in ("=", "!="):
            either = " or ".join(_equals(key, one) for one in wanted) or NOTHING
            parts.append(f"({either})" if operator == "=" else f"(not ({either}))")
        elif isinstance(wanted, str):
            left.append((key, operator, wanted))
        else:
            parts.append(f"({_compares(key, operator, wanted)})")
    return Expression(" and ".join(parts) or EVERYTHING, left)


def _equals(key: str, wanted: Any) -> str:
    if key == "id":
        number = as_id(wanted)
        return NOTHING if number is None else f"id == {number}"
    if key in COLUMNS:
        return f'{_FIELDS[key]} == "{token(None if wanted is None else as_text(wanted))}"'
    number_key, text_key = f'facts["n{token(key)}"]', f'facts["t{token(key)}"]'
    if wanted is None:
        return f"(not (exists {number_key})) and (not (exists {text_key}))"
    if isinstance(wanted, str):
        return f'{text_key} == "{token(wanted)}"'
    number = float(as_number(wanted))
    return f"{number_key} == {number!r}" if math.isfinite(number) else NOTHING


def _compares(key: str, operator: str, wanted: Any) -> str:
    number = float(as_number(wanted))
    if math.isnan(number) or (key in COLUMNS and key != "id"):
        return NOTHING
    if math.isinf(number):
        number = math.copysign(1.7e308, number)
    if key == "id":
        return f"id {operator} {_whole(number, operator)}"
    return f'facts["n{token(key)}"] {operator} {number!r}'


def _whole(number: float, operator: str) -> int:
    """The whole number that separates ids as another number does."""
    number = max(min(number, 2.0**62), -(2.0**62))
    return math.ceil(number) if operator in ("<", ">=") else math.floor(number)


def fits(values: Mapping[str, Any], left: Sequence[tuple[str, str, str]]) -> bool:
    """Whether texts compare as a filter says, byte by byte; what is no text does not.

    Args:
        values: The columns and the metadata of an item by their keys.
        left: Of an :class:`Expression`.

    >>> fits({"colour": "red"}, [("colour", ">", "blue")]), fits({"colour": 3}, [("colour", ">", "blue")])
    (True, False)
    """
    for key, operator, wanted in left:
        own = values.get(key)
        if not isinstance(own, str):
            return False
        mine, other = own.encode(), wanted.encode()
        right = {"<": mine < other, "<=": mine <= other, ">": mine > other, ">=": mine >= other}
        if not right[operator]:
            return False
    return True
