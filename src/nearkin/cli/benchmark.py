"""``nearkin benchmark``: execute a plan and watch it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from nearkin.benchmark.execution import execute_plan  # noqa: PLC0415  (seconds; help answers at once)
    from nearkin.benchmark.plan import Plan  # noqa: PLC0415
    from nearkin.cli.board import BoardDisplay, print_board, print_plan  # noqa: PLC0415

    chosen = Plan.find(plan, settings or [])
    folder = output or str(Path("runs") / chosen.name)
    if show:
        print_plan(chosen, folder)
        return
    try:
        board = execute_plan(chosen, folder, jobs=jobs, ray=ray, observer=BoardDisplay())
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from the last checkpoints", err=True)
        raise typer.Exit(130) from None
    print_board(board)
    if board.in_state("failed"):
        raise typer.Exit(1)
