"""Finished runs to rankings, statistics and a report.

The package can be called: ``nearkin.tournament("photos", losses=["triplet", "proxy_anchor"])`` lets losses
compete and ranks them, as :func:`nearkin.tournament.playing.play` says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin.observer import Observer
    from nearkin.tournament.comparing import compare
    from nearkin.tournament.outcomes import Experiment, Outcome, read_outcomes
    from nearkin.tournament.playing import play
    from nearkin.tournament.ranking import rank_outcomes, rank_published
    from nearkin.tournament.standings import Standings

__all__ = [
    "Experiment",
    "Outcome",
    "Standings",
    "compare",
    "play",
    "rank_outcomes",
    "rank_published",
    "read_outcomes",
]

_HOMES = {
    "Experiment": "outcomes",
    "Outcome": "outcomes",
    "Standings": "standings",
    "compare": "comparing",
    "play": "playing",
    "rank_outcomes": "ranking",
    "rank_published": "ranking",
    "read_outcomes": "outcomes",
}


class _Tournament(ModuleType):
    """This package, which can be called as the function of its name."""

    def __call__(
        self,
        data: Any = None,
        *,
        losses: Sequence[Any] | str | None = None,
        seeds: Sequence[int] | None = None,
        output: str | os.PathLike[str] | None = None,
        jobs: int | None = None,
        ray: str | None = None,
        progress: bool | Observer = True,
        metric: str | None = None,
        alpha: float = 0.05,
        pool: Sequence[str] | str = (),
        baselines: bool = True,
        report: bool = True,
        tune: bool | int = False,
        **settings: Any,
    ) -> Standings:
        """Let losses compete on equal terms, and rank them.

        Keywords are those of :func:`nearkin.tournament.playing.play`; all others are settings of the runs, as
        in :func:`nearkin.train`.
        """
        from nearkin.tournament.playing import play  # noqa: PLC0415  (seconds)

        return play(
            data,
            losses=losses,
            seeds=seeds,
            output=output,
            jobs=jobs,
            ray=ray,
            progress=progress,
            settings=settings,
            metric=metric,
            alpha=alpha,
            pool=pool,
            baselines=baselines,
            report=report,
            tune=tune,
        )


sys.modules[__name__].__class__ = _Tournament


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: a worker takes its run's lock before anything that takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
