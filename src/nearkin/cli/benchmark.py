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
    board = execute_watched(chosen, folder, jobs=jobs, ray=ray)
    print_board(board)
    if board.in_state("failed"):
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
