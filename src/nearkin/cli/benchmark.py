"""``nearkin benchmark``: execute a plan and watch it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.commands import ImportOption

if TYPE_CHECKING:
    from nearkin.benchmark.plan import Plan
    from nearkin.benchmark.progress import Board

# Imports wait until the command runs, so that help and mistakes answer at once.
# ruff: noqa: PLC0415


def benchmark(
    plan: Annotated[str, typer.Argument(help="A plan (TOML), or the name of one that comes with nearkin.")],
    *,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="Change the plan, e.g. recipe.training.epochs=3; repeatable.",
        ),
    ] = None,
    imports: ImportOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="The folder of all run directories, or an address that fsspec knows (s3://…); "
            "by default runs/PLAN.",
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time.")] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="The address of a Ray cluster to run on, or 'local' to start one here."),
    ] = None,
    search_only: Annotated[
        bool,
        typer.Option(
            "--search-only", help="Of a plan with tuning: search the settings, and leave test classes sealed."
        ),
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="List the runs and stop.")] = False,
) -> None:
    """Execute the runs of a plan that are missing, several at a time; the same command goes on later."""
    from nearkin.benchmark.plan import Plan
    from nearkin.cli.board import print_board, print_plan

    chosen = Plan.find(plan, settings or [], imports=imports or [])
    folder = output or str(Path("runs") / chosen.name)
    if show:
        print_plan(chosen, folder)
        return
    if search_only:
        _search(chosen, folder, jobs)
        return
    board = execute_watched(chosen, folder, jobs=jobs, ray=ray)
    print_board(board)
    if board.in_state("failed"):
        raise typer.Exit(1)


def _search(plan: Plan, folder: str, jobs: int | None) -> None:
    """Search the settings of every loss of a plan, and say where they are."""
    from nearkin.benchmark.found import FOUND, TUNING
    from nearkin.benchmark.tuned import tune_plan
    from nearkin.benchmark.watching import BoardDisplay
    from nearkin.display.console import console, shown_path

    if plan.tuning is None:
        raise ValueError(
            f"plan {plan.name} has no budget to search with: --set 'tuning={{trials=16}}', for example"
        )
    with stopped_in_good_order():
        _, failed = tune_plan(plan, plan.tuning, Path(folder), jobs=jobs, observer=BoardDisplay())
    console.print(f"found     {shown_path(Path(folder) / TUNING / FOUND)}")
    if failed:
        raise typer.Exit(1)


def execute_watched(plan: Plan, folder: str, *, jobs: int | None, ray: str | None = None) -> Board:
    """Execute a plan under a live table; Ctrl-C and a request to terminate end it in good order."""
    from nearkin.benchmark.execution import execute_plan
    from nearkin.benchmark.watching import BoardDisplay

    with stopped_in_good_order():
        return execute_plan(plan, folder, jobs=jobs, ray=ray, observer=BoardDisplay())


@contextmanager
def stopped_in_good_order() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: workers are ended, files brought home, and how to go on is said."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo("stopped; the same command goes on from the last checkpoints", err=True)
        raise typer.Exit(128 + next(iter(stop.args), signal.SIGINT)) from None
    finally:
        signal.signal(signal.SIGTERM, before)
