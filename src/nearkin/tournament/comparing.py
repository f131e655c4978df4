"""The tournament's statistics on anybody's results: runs, folders of runs, and tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nearkin.display import observer_for
from nearkin.observer import Observer
from nearkin.recipe import Recipe
from nearkin.recipe.starting_point import StartingPoint
from nearkin.tournament.baselines import run_baselines
from nearkin.tournament.grouping import group_outcomes
from nearkin.tournament.outcomes import Outcome, Skipped, default_metric, read_outcomes
from nearkin.tournament.ranking import check_metric, rank_outcomes
from nearkin.tournament.standings import Standings
from nearkin.tournament.tables import read_results
from nearkin.tournament.terms import relation
from nearkin.training import Run

BASELINES = "baselines"


def compare(
    runs: Any,
    *,
    metric: str | None = None,
    alpha: float = 0.05,
    pool: Sequence[str] | str = (),
    baselines: bool | str | os.PathLike[str] = False,
    progress: bool | Observer = False,
    notes: Sequence[str] = (),
) -> Standings:
    """Rank results: per experiment and over all of them, with intervals and tests.

    What may be averaged and ranked together is decided by :func:`nearkin.tournament.terms.relation`.

    Args:
        runs: Runs, paths of runs or of folders that hold them, and CSV files of anybody's results (columns
            ``contender`` or ``loss``, ``dataset``, ``seed``, and scores such as ``recall_at_1``, in per cent
            or as shares of 1); one of these, or several.
        metric: The score that ranks, higher is better; by default ``recall_at_1``, and ``roc_auc`` where all
            results are of known pairs.
        alpha: Level of all tests.
        pool: Settings such as ``sampler.name``, or whole tables, to average over although they differ; the
            standings say so.
        baselines: Whether to run the baselines that are missing, or the folder to keep them in; by default
            ``tournament/baselines``.
        progress: Whether to show what takes a while, or who is told.
        notes: Put before those that are found here.

    Raises:
        ValueError: Something is not there or cannot be ranked; all that can be known is said before anything
            takes time.
    """
    pooled = [pool] if isinstance(pool, str) else list(pool)
    outcomes, skipped, found_notes = read_results_of(runs)
    if not outcomes:
        raise ValueError(_nothing(skipped))
    metric = default_metric(outcomes) if metric is None else metric
    check_metric(metric, outcomes)
    group_outcomes(outcomes, pool=pooled)  # says what cannot be pooled
    found_notes = [*notes, *found_notes]
    if baselines:
        folder = Path("tournament") / BASELINES if baselines is True else Path(baselines)
        observer = observer_for(progress)
        try:
            found_notes += _add_baselines(outcomes, folder, observer)
        finally:
            observer.end()
    return rank_outcomes(
        outcomes, skipped=skipped, metric=metric, alpha=alpha, pool=pooled, notes=found_notes
    )


def read_results_of(runs: Any) -> tuple[list[Outcome], list[Skipped], list[str]]:
    """What is there to compare in runs, folders and tables; what was left out; what to say about it.

    Raises:
        ValueError: One of them is nothing that could hold results.
    """
    given: Iterable[Any] = [runs] if isinstance(runs, str | os.PathLike | Run) else runs
    outcomes: list[Outcome] = []
    skipped: list[Skipped] = []
    notes: list[str] = []
    folders: list[Path] = []
    for one in given:
        if isinstance(one, Run):
            folders.append(one.path)
            one.result  # noqa: B018  (says that it is not finished)
        elif not isinstance(one, str | os.PathLike):
            raise TypeError(f"{one!r} is neither a run nor a path of runs or of a table of results")
        elif Path(one).is_file():
            found, said = read_results(Path(one))
            outcomes += found
            notes += said
        else:
            folders.append(Path(one))
    reading = read_outcomes(folders)
    return [*reading.outcomes, *outcomes], [*skipped, *reading.skipped], notes


def _nothing(skipped: Sequence[Skipped]) -> str:
    if not skipped:
        return "there is no finished run to rank"
    first = skipped[0]
    more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
    return f"there is no finished run to rank: {first.path} is left out ({first.reason}){more}"


def _add_baselines(outcomes: list[Outcome], folder: Path, observer: Observer) -> list[str]:
    """Run the baselines of every experiment and add them; say which ones could not be run, and why."""
    notes = []
    runs = [outcome for outcome in outcomes if outcome.kind == "run" and outcome.terms is not None]
    for board in group_outcomes(runs):
        everybody = [one for row in board.rows.values() for one in row]
        first = min(everybody, key=lambda one: one.seed or 0)
        assert first.terms is not None
        try:
            experiment = StartingPoint(Recipe.parse(first.terms.settings, source=first.source))
            run_baselines(experiment, folder, observer, test_fingerprint=first.terms.data.test)
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            notes.append(f"No baselines for {board.experiment}: {' '.join(str(error).split())}")
    there = {outcome.path for outcome in outcomes}
    if folder.is_dir():
        outcomes += [
            one for one in read_outcomes([folder]).outcomes if one.path not in there and _belongs(one, runs)
        ]
    return notes


def _belongs(baseline: Outcome, runs: Sequence[Outcome]) -> bool:
    """Whether a baseline is of an experiment that some run takes part in."""
    return baseline.terms is not None and any(
        relation(baseline.terms, run.terms) != "experiments" for run in runs if run.terms is not None
    )
