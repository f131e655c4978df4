"""``nearkin tune``: search on validation classes, train on all of them, test once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.commands import ImportOption, RecipeArgument, SetOption, SkipBadOption, WeightsOption


def tune(
    recipe: RecipeArgument = None,
    *,
    settings: SetOption = None,
    imports: ImportOption = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            "-r",
            metavar="KEY=WHERE",
            help="Search this beside the loss's hyperparameters, or one of these elsewhere: "
            "optimizer.lr=1e-4:1e-2:log, loss.margin=0:1:0.1, loss.mining=hard,semi_hard; one value alone "
            "holds it still. Repeatable.",
        ),
    ] = None,
    weights: WeightsOption = None,
    skip_bad: SkipBadOption = False,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            "-n",
            min=1,
            help="How many, in all; 30 by default, or every step of every range for coordinate.",
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="tpe (learns from the trials), random, grid, coordinate (one hyperparameter after the "
            "other, as in the thesis) or halving (the better half is trained on)."
        ),
    ] = "tpe",
    pruner: Annotated[
        str, typer.Option(help="When a trial is given up: median, hyperband or none.")
    ] = "median",
    trial_epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Train trials this far only; one more training then finds the epoch."),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            help="What is tested: the network of a training on all classes, the one that leaves the "
            "validation classes out (validation), or both."
        ),
    ] = "all",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Trials at the same time.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The search's directory; by default one under runs/."),
    ] = None,
    search_only: Annotated[
        bool,
        typer.Option(
            "--search-only",
            help="Leave the test classes sealed; the same command without it, or with more trials, goes on.",
        ),
    ] = False,
) -> None:
    """Search hyperparameters on validation classes, train on all classes with the best, and test once.

    The same command goes on with a search that was stopped.
    """
    from nearkin import api
    from nearkin.cli.app import recipe_from, stopped
    from nearkin.cli.display import print_run
    from nearkin.cli.search_display import print_search
    from nearkin.cli.views import draw_run
    from nearkin.display import observer_for
    from nearkin.tuning.drawing import draw

    chosen = recipe_from(
        recipe, settings, imports, {"network.weights": weights, "data.skip_bad": skip_bad or None}
    )
    try:
        search = api.tune(
            chosen,
            ranges=ranges or [],
            trials=trials,
            sampler=sampler,
            pruner=pruner,
            trial_epochs=trial_epochs,
            keep=keep,
            jobs=jobs,
            output=output,
            search_only=True,
        )
        print_search(search, draw(search))
        if search_only:
            return
        display = observer_for(True)
        runs = search.finish_as(keep, display)
        drawn = [(run, draw_run(run, display)) for run in runs]
    except KeyboardInterrupt:
        raise stopped() from None
    for run, pictures in drawn:
        print_run(run, pictures)
