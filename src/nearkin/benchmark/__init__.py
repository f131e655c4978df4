"""Many runs, one ranking, one report."""

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
