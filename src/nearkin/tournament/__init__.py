"""Finished runs to rankings, statistics and a report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin.tournament.outcomes import Experiment, Outcome, read_outcomes
    from nearkin.tournament.ranking import rank_outcomes, rank_published
    from nearkin.tournament.standings import Standings

__all__ = [
    "Experiment",
    "Outcome",
    "Standings",
    "rank_outcomes",
    "rank_published",
    "read_outcomes",
]

_HOMES = {
    "Experiment": "outcomes",
    "Outcome": "outcomes",
    "Standings": "standings",
    "rank_outcomes": "ranking",
    "rank_published": "ranking",
    "read_outcomes": "outcomes",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: a worker takes its run's lock before anything that takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
