"""Losses in the order of their year, as the thesis prints them: does the field make progress?"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nearkin import losses

# Of one year in the order of the thesis's tables (Tables 6 to 10, 17 to 21).
_AS_PRINTED = (
    "contrastive",
    "triplet",
    "lifted_structure",
    "npair",
    "proxy_nca",
    "margin",
    "arcface",
    "multi_similarity",
    "soft_triple",
    "proxy_repulsion",
    "proxy_anchor",
)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b(?![.:]\d)")  # an arXiv number may look like a year
_OTHERS = {"proxy_repulsion": 2020}  # the thesis itself
_UNKNOWN = 9999


def year_of(loss: str) -> int | None:
    """The year of a loss's (first) source; ``None`` for one that names none, or is not ours.

    >>> year_of("contrastive"), year_of("proxy_anchor"), year_of("mine")
    (2006, 2020, None)
    """
    if loss not in losses.names():
        return None
    found = _YEAR.search(losses.describe(loss).source)
    return int(found[0]) if found else _OTHERS.get(loss)


def in_order_of_year(names: Iterable[str]) -> list[str]:
    """Contenders by the year of their loss; unknown ones come last, in the order given.

    >>> in_order_of_year(["proxy_anchor", "npair", "triplet", "lifted_structure"])
    ['triplet', 'lifted_structure', 'npair', 'proxy_anchor']
    """

    def place(name: str) -> tuple[int, int]:
        year = year_of(name.partition(" ")[0])
        printed = _AS_PRINTED.index(name) if name in _AS_PRINTED else len(_AS_PRINTED)
        return _UNKNOWN if year is None else year, printed

    return sorted(names, key=place)
