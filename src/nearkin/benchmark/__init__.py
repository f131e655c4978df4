"""Many runs, one ranking, one report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin.benchmark.outcomes import Experiment, Outcome, read_outcomes
    from nearkin.benchmark.standings import Standings
    from nearkin.benchmark.tournament import rank_outcomes, rank_published

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
    "rank_outcomes": "tournament",
    "rank_published": "tournament",
    "read_outcomes": "outcomes",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: a worker takes its run's lock before anything that takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
