"""``nearkin tournament``: train losses on equal terms and rank them, or rank runs and published results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.commands import ImportOption, SkipBadOption, WeightsOption

if TYPE_CHECKING:
    from nearkin.tournament.standings import Standings

# Imports wait until the command runs, so that help and mistakes answer at once.
# ruff: noqa: PLC0415


def tournament(  # noqa: PLR0917  (typer passes keywords)
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER|TABLE|RUNS|PLAN",
            help="Images to train losses on (a folder, a table, the name of a data set, a recipe), a plan, "
            "or runs, folders of runs and tables of results to rank. By default 18 losses are trained on the "
            "embedded data set.",
        ),
    ] = None,
    losses: Annotated[
        list[str] | None,
        typer.Option(
            "--loss", "-l", help="A loss to train, by name or module:object; repeatable. By default ten."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds each loss is trained with.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="How long it may take on this machine, whose speed is measured first; for images.",
        ),
    ] = None,
    weights: WeightsOption = None,
    skip_bad: SkipBadOption = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="Change all recipes, e.g. training.epochs=3; repeatable."
        ),
    ] = None,
    imports: ImportOption = None,
    published: Annotated[
        str | None,
        typer.Option(
            help="Rank published results: thesis (as its Table 11 does; --output draws its Figures "
            "27 to 31), thesis_all, one of its tables (thesis_table_6 to thesis_table_21), or papers (those "
            "of the losses)."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where runs, baselines and report go; by default runs/tournament and the like, or "
            "tournament for runs that are there.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="The score that ranks: recall_at_1 by default, and roc_auc for data of pairs."),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Average over runs that differ in this setting, e.g. sampler.name; repeatable. The report "
            "says so.",
        ),
    ] = None,
    baselines: Annotated[bool, typer.Option(help="Run the baselines that are missing.")] = True,
    report: Annotated[bool, typer.Option(help="Write the report.")] = True,
    every_experiment: Annotated[
        bool, typer.Option("--every", help="Print the leaderboard of every experiment, however many.")
    ] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First search the settings of every loss on validation classes, all with the same budget.",
        ),
    ] = False,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of each loss, for --tune; the plan's or 16 by default.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time.")] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="The address of a Ray cluster to train on, or 'local' to start one here."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the standings as JSON, and nothing else.")
    ] = False,
) -> None:
    """Rank losses, with intervals and tests: on your images, on glyphs, in your runs, or as published."""
    from nearkin.cli.benchmark import stopped_in_good_order
    from nearkin.cli.leaderboard import print_standings

    if trials is not None and not tune:
        raise ValueError("--trials is the budget of a search: give --tune as well")
    if published is not None:
        standings = _published(published, what, metric or "recall_at_1", output if report else None)
    else:
        from nearkin.recipe import override
        from nearkin.recipe.plugins import import_plugins
        from nearkin.tournament.playing import play

        import_plugins(imports or [])
        more = [] if weights is None else [f"network.weights={weights}"]
        more += ["data.skip_bad=true"] if skip_bad else []
        changes = override({"imports": list(imports)} if imports else {}, [*(settings or []), *more])
        with stopped_in_good_order():
            standings = play(
                list(what) if what else None,
                losses=losses,
                seeds=None if seeds is None else range(seeds),
                output=output,
                jobs=jobs,
                ray=ray,
                minutes=minutes,
                progress=not as_json,
                settings=changes,
                metric=metric,
                pool=pool or [],
                baselines=baselines,
                report=report,
                tune=(trials or True) if tune else False,
            )
    if as_json:
        _print_json(standings)
        return
    print_standings(standings, every_experiment=every_experiment)
    _print_files(standings)


def _published(name: str, what: list[str] | None, metric: str, output: Path | None) -> Standings:
    from nearkin.tournament.playing import publish
    from nearkin.tournament.ranking import rank_published

    if what:
        raise ValueError(
            "give runs or --published, not both: a run is shown beside the published figures anyway"
        )
    standings = rank_published(name, metric=metric)
    if output is None:
        return standings
    from nearkin.tournament.picture_files import draw_figures

    draw_figures(standings, output / "figures")
    return publish(standings, output)


def _print_json(standings: Standings) -> None:
    import json

    plain = {
        "metric": standings.metric,
        "alpha": standings.alpha,
        "rows": standings.rows(),
        "average_ranks": standings.ranking.averages,
        "notes": [*standings.notes, *standings.test_notes],
        "how_sure": standings.doubt_notes,
        "board_notes": {str(board.experiment): board.notes for board in standings.leaderboards},
        "left_out": [{"path": str(path), "reason": reason} for path, reason in standings.skipped],
        "report": None if standings.report is None else str(standings.report),
    }
    typer.echo(json.dumps(plain, indent=2))


def _print_files(standings: Standings) -> None:
    from nearkin.display.console import console, shown_path

    if standings.report is not None:
        console.print()
        console.print(f"report    {shown_path(standings.report)}")
    if standings.picture is not None:
        console.print(f"picture   {shown_path(standings.picture)}")
