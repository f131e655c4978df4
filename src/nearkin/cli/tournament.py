"""``nearkin tournament``: rank runs, baselines and published results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nearkin.tournament.outcomes import Outcome
    from nearkin.tournament.standings import Standings

_PLAN = "tournament"

# Imports wait until the command runs, so that help and mistakes answer at once.
# ruff: noqa: PLC0415


def tournament(  # noqa: PLR0917  (typer passes keywords)
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Runs, or folders that hold them; by default every loss is trained on the embedded data set."
        ),
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(
            help="Rank published results: thesis (as its Table 11 does), thesis_all, or papers (those of the "
            "losses)."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where baselines and report go; by default tournament, or runs/tournament."
        ),
    ] = None,
    metric: Annotated[str, typer.Option(help="The score that ranks.")] = "recall_at_1",
    baselines: Annotated[bool, typer.Option(help="Run the baselines that are missing.")] = True,
    report: Annotated[bool, typer.Option(help="Write the report.")] = True,
    every_experiment: Annotated[
        bool, typer.Option("--every", help="Print the leaderboard of every experiment, however many.")
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time.")] = None,
) -> None:
    """Rank losses, with intervals and tests: every loss on glyphs, your own runs, or published results."""
    from nearkin.cli.leaderboard import print_standings
    from nearkin.tournament.ranking import rank_published

    if published is not None:
        if runs:
            raise ValueError(
                "give runs or --published, not both: a run is shown beside the published figures anyway"
            )
        standings = rank_published(published, metric=metric)
    else:
        output = output or Path("tournament" if runs else f"runs/{_PLAN}")
        if not runs:
            _train(output, jobs)
        standings = _rank(runs or [output], output, metric, baselines)
    print_standings(standings, every_experiment=every_experiment)
    if report and output is not None:
        _write_report(standings, output)


def _train(folder: Path, jobs: int | None) -> None:
    """Execute the runs of the embedded plan that are missing."""
    from nearkin.benchmark.plan import Plan
    from nearkin.cli.benchmark import execute_watched
    from nearkin.cli.board import print_board

    board = execute_watched(Plan.find(_PLAN), str(folder), jobs=jobs)
    if board.in_state("failed"):
        print_board(board)


def _rank(runs: Sequence[Path], folder: Path, metric: str, with_baselines: bool) -> Standings:
    """Rank what is in some folders, beside the baselines of their experiments."""
    from nearkin.tournament.outcomes import read_outcomes
    from nearkin.tournament.ranking import rank_outcomes

    kept = folder / "baselines"
    outcomes, skipped = read_outcomes(runs)
    notes: list[str] = []
    if with_baselines:
        notes = _run_baselines(outcomes, kept)
        there = {outcome.path for outcome in outcomes}
        found = read_outcomes([kept] if kept.is_dir() else [])
        experiments = {outcome.experiment for outcome in outcomes}
        outcomes += [one for one in found.outcomes if one.experiment in experiments and one.path not in there]
    return rank_outcomes(outcomes, skipped=skipped, metric=metric, notes=notes)


def _run_baselines(outcomes: Sequence[Outcome], folder: Path) -> list[str]:
    """Run the baselines of every experiment; say which ones could not be run, and why."""
    from nearkin.cli.display import Stages
    from nearkin.tournament.baselines import run_baselines
    from nearkin.training import Recipe

    recipes = {outcome.experiment: outcome.recipe for outcome in reversed(outcomes) if outcome.kind == "run"}
    notes = []
    for experiment, recipe in recipes.items():
        try:
            run_baselines(Recipe.parse(recipe), folder, Stages())
        except (ValueError, OSError, RuntimeError) as error:  # noqa: PERF203
            notes.append(f"No baselines for {experiment}: {' '.join(str(error).split())}")
    return notes


def _write_report(standings: Standings, folder: Path) -> None:
    from nearkin.cli.display import Stages, console, shown_path
    from nearkin.pictures.diagram import critical_difference_diagram
    from nearkin.tournament.report import write_report

    page = write_report(standings, folder, observer=Stages())
    console.print()
    console.print(f"report    {shown_path(page)}")
    if standings.nemenyi is not None:
        picture = folder / "critical_difference.svg"
        critical_difference_diagram(
            standings.ranking.averages,
            picture,
            critical_difference=standings.nemenyi.critical_difference,
            groups=standings.nemenyi.groups,
            alpha=standings.nemenyi.alpha,
        )
        console.print(f"picture   {shown_path(picture)}")
