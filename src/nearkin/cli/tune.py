"""``nearkin tune``: search on validation classes, train on all of them, test once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tune(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe (TOML); without one, the embedded data set is learnt.")
    ] = None,
    *,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change the recipe of all trials; repeatable."),
    ] = None,
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
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="How many, in all.")] = 30,
    sampler: Annotated[str, typer.Option(help="tpe (learns from the trials), random or grid.")] = "tpe",
    pruner: Annotated[
        str, typer.Option(help="When a trial is given up: median, hyperband or none.")
    ] = "median",
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
    from nearkin.cli.app import default_output
    from nearkin.cli.display import TrainingDisplay, print_run
    from nearkin.cli.search_display import SearchDisplay, print_search
    from nearkin.cli.views import draw_run
    from nearkin.recipe.recipe import override
    from nearkin.training import Recipe
    from nearkin.tuning.drawing import draw
    from nearkin.tuning.plan import plan_search
    from nearkin.tuning.search import Search

    settings = settings or []
    chosen = Recipe.read(recipe, settings) if recipe else Recipe.parse(override({}, settings), source="--set")
    plan = plan_search(chosen, ranges or [], sampler=sampler, pruner=pruner)
    run = default_output(chosen)
    search = Search.open(output or run.with_name(f"tune-{run.name}"), plan)
    search.run(trials, jobs=jobs, observer=SearchDisplay(search))
    print_search(search, draw(search))
    if search_only:
        return
    best = search.best_run()
    display = TrainingDisplay(best)
    finished = search.finish(display)
    print_run(finished, draw_run(finished, display))
