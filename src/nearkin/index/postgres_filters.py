"""Filters as conditions of PostgreSQL: values and keys are parameters, and never a part of the statement.

They mean what they mean in the embedded store: texts are compared byte by byte and never equal a number,
true and false are 1 and 0, and whatever an item does not have is neither less nor greater.
"""

from __future__ import annotations

import math
from typing import Any

from nearkin.index.filters import COLUMNS, Where, as_id, as_number, as_text, conditions

# A number of the metadata, truth values among them; NULL where the key has a text, or is not there.
_NUMBER = (
    "CASE jsonb_typeof(metadata -> %s::text) WHEN 'number' THEN (metadata ->> %s::text)::numeric "
    "WHEN 'boolean' THEN (metadata ->> %s::text)::boolean::int::numeric END"
)
_TEXT = "CASE jsonb_typeof(metadata -> %s::text) WHEN 'string' THEN (metadata ->> %s::text) COLLATE \"C\" END"


def filter_to_sql(where: Where | None) -> tuple[str, list[Any]]:
    """A filter as the end of a statement, and its values.

    >>> filter_to_sql({"label": "cat"})
    ('WHERE (label = %s)', ['cat'])
    """
    parts: list[str] = []
    values: list[Any] = []
    for key, operator, wanted in conditions(where):
        if operator in ("=", "!="):
            each = [_equals(key, one) for one in wanted]
            either = " OR ".join(part for part, _ in each) or "FALSE"
            parts.append(f"({either})" if operator == "=" else f"(NOT coalesce({either}, FALSE))")
            values += [value for _, own in each for value in own]
        else:
            part, own = _compares(key, operator, wanted)
            parts.append(f"({part})")
            values += own
    return ("WHERE " + " AND ".join(parts) if parts else ""), values


def _equals(key: str, wanted: Any) -> tuple[str, list[Any]]:
    """A condition; unknown, to SQL, where the item has nothing to compare."""
    if key == "id":
        number = as_id(wanted)
        return ("FALSE", []) if number is None else ("id = %s", [number])
    if key in COLUMNS:
        return (f"{key} IS NULL", []) if wanted is None else (f"{key} = %s", [as_text(wanted)])
    if wanted is None:
        return "(metadata -> %s::text) IS NULL", [key]
    if isinstance(wanted, float) and not math.isfinite(wanted):
        return "FALSE", []
    if isinstance(wanted, str):
        return f"({_TEXT}) = %s", [key, key, wanted]
    return f"({_NUMBER}) = %s", [key, key, key, as_number(wanted)]


def _compares(key: str, operator: str, wanted: Any) -> tuple[str, list[Any]]:
    # The operators are those of a fixed list: see nearkin.index.filters.
    text = isinstance(wanted, str)
    if isinstance(wanted, float) and math.isnan(wanted):
        return "FALSE", []
    if key in COLUMNS:
        if text == (key == "id"):  # a text beside a number is neither less nor greater
            return "FALSE", []
        return f"{key} {operator} %s", [wanted if text else as_number(wanted)]
    if text:
        return f"({_TEXT}) {operator} %s", [key, key, wanted]
    return f"({_NUMBER}) {operator} %s", [key, key, key, as_number(wanted)]
