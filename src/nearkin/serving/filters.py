"""Filters as clients write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nearkin.index.filters import conditions
from nearkin.index.filters import parse_where as parse_clauses
from nearkin.serving.errors import RequestError

_LONGEST = 4_000
_MOST = 20
_HIDDEN = "path"  # where a picture lies on the server's disk is nobody's business


def parse_where(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """Filters of a request, all of which must hold.

    Args:
        texts: Each ``label=cat``, ``label=a|b``, ``price<10``; or one JSON object, as
            :meth:`nearkin.Index.search` takes it.

    Raises:
        RequestError: One cannot be read.

    >>> parse_where(['{"label": ["cat", "dog"]}'])
    {'label': ['cat', 'dog']}
    >>> parse_where(["price<10"])
    {'price': {'<': 10}}
    """
    if not texts:
        return None
    if len(texts) > _MOST or sum(map(len, texts)) > _LONGEST:
        raise bad_filter(f"more than {_MOST} conditions or {_LONGEST} characters")
    try:
        where = json.loads(texts[0]) if texts[0].lstrip().startswith("{") else parse_clauses(texts)
        keys = [key for key, _, _ in conditions(where)]
    except RecursionError:
        raise bad_filter("the JSON cannot be read") from None
    except ValueError as error:
        raise bad_filter(str(error)) from None
    if _HIDDEN in keys:
        raise bad_filter("items cannot be filtered by path: use name")
    found: dict[str, Any] = where
    return found


def bad_filter(why: str) -> RequestError:
    """A filter that is not understood."""
    return RequestError(422, "bad_filter", f"where: {' '.join(why.removeprefix('where: ').split())[:300]}")
