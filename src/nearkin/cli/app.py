"""The commands. Each imports what it needs when it runs, so that help and mistakes answer at once."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from nearkin.allocation import keep_freed_memory
from nearkin.cli.benchmark import benchmark
from nearkin.cli.explain import explain_app
from nearkin.cli.tournament import tournament
from nearkin.cli.tune import tune

app = typer.Typer(
    name="nearkin",
    help="Deep metric learning: learn embeddings whose nearest neighbours are kin.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
losses_app = typer.Typer(help="The losses: what they are and when to use them.", no_args_is_help=False)
datasets_app = typer.Typer(help="The data sets: what they hold and how they look.", no_args_is_help=False)
app.add_typer(losses_app, name="losses")
app.add_typer(datasets_app, name="datasets")
app.command()(tournament)
app.command()(tune)
app.command()(benchmark)
app.add_typer(explain_app, name="explain")

_INTERRUPTED = 130  # as shells count Ctrl-C

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Change the recipe, e.g. loss.margin=0.2; repeatable."
    ),
]


def main() -> None:
    """Run the command line; a mistake is one line on standard error and exit code 2, not a traceback."""
    warnings.showwarning = _show_warning
    keep_freed_memory()
    try:
        app()
    except (ValueError, OSError, RuntimeError, ModuleNotFoundError) as error:
        if os.environ.get("NEARKIN_DEBUG"):
            raise
        _say(f"[bold red]nearkin:[/] {_one_line(error)}")
        sys.exit(2)


def _say(line: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(line)


def _one_line(error: Exception) -> str:
    return escape(" ".join(str(error).split()) or type(error).__name__)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[yellow]warning:[/] {message}")


@app.command()
def train(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe (TOML); without one, the embedded data set is learnt.")
    ] = None,
    settings: SetOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The run's directory; by default one under runs/.")
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out images that cannot be read, and say so in the result."),
    ] = False,
    show_recipe: Annotated[
        bool, typer.Option("--show-recipe", help="Print the full recipe and stop.")
    ] = False,
) -> None:
    """Train an embedding, or go on with a run that was stopped: the same command does both."""
    from nearkin.cli.display import TrainingDisplay, print_run
    from nearkin.cli.views import draw_run
    from nearkin.protocols import execute
    from nearkin.recipe.recipe import override
    from nearkin.training import Recipe, Run
    from nearkin.training.distributed import leave_other_processes

    settings = [*(settings or []), *(["data.skip_bad=true"] if skip_bad else [])]
    chosen = Recipe.read(recipe, settings) if recipe else Recipe.parse(override({}, settings), source="--set")
    if show_recipe:
        typer.echo(chosen.to_toml())
        return
    run = Run.open(output or default_output(chosen), chosen)
    if not run.writes:  # one of several processes, and not the one that talks
        execute(run)
        leave_other_processes()
        return
    display = TrainingDisplay(run)
    try:
        finished = execute(run, display)
        leave_other_processes()
        pictures = draw_run(finished, display)
    except KeyboardInterrupt:
        _say("[bold yellow]nearkin:[/] stopped. The same command goes on from the last checkpoint")
        raise typer.Exit(_INTERRUPTED) from None
    print_run(finished, pictures)


def default_output(recipe: Any) -> Path:
    """Where a run goes if nobody says: ``runs/glyphs-convnet64-proxy_anchor-seed0``."""
    network = recipe.network.name.replace(":", "_").replace("/", "_")
    name = f"{recipe.data.name}-{network}{recipe.network.embedding_dim}-{recipe.loss.name}-seed{recipe.seed}"
    return Path("runs") / name


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run's directory.")],
) -> None:
    """Look into a finished run: scores with intervals, clusters, confusions, doubtful labels, pictures."""
    from nearkin.cli.display import TrainingDisplay, print_examination
    from nearkin.cli.views import draw_run
    from nearkin.protocols import examine
    from nearkin.training import Run

    existing = Run.existing(run)
    display = TrainingDisplay(existing)
    found = examine(existing, display)
    print_examination(found, draw_run(found.finished, display))


@losses_app.callback(invoke_without_command=True)
def losses(context: typer.Context) -> None:
    """List the losses, a line each."""
    if context.invoked_subcommand is None:
        from nearkin.cli.display import print_losses

        print_losses()


@losses_app.command("show")
def losses_show(name: Annotated[str, typer.Argument(help="A loss, such as multi_similarity.")]) -> None:
    """Print a loss's equation, defaults, source and when to use it."""
    from nearkin.cli.display import print_loss

    print_loss(name)


@datasets_app.callback(invoke_without_command=True)
def datasets(context: typer.Context) -> None:
    """List the data sets, a line each."""
    if context.invoked_subcommand is None:
        from nearkin.cli.display import print_data_sets

        print_data_sets()


@datasets_app.command("show")
def datasets_show(
    name: Annotated[str, typer.Argument(help="A data set, such as glyphs.")],
    root: Annotated[Path | None, typer.Option(help="The folder that holds it.")] = None,
    settings: SetOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The PNG; by default NAME.png.")
    ] = None,
) -> None:
    """Print what a data set holds and write a contact sheet of its training images."""
    from nearkin.cli.display import print_data_set
    from nearkin.data import build
    from nearkin.pictures.run import contact_sheet
    from nearkin.recipe.recipe import override

    data_set = build(name, root, **override({}, settings or []))
    picture = output or Path(f"{name}.png")
    contact_sheet(data_set.train, picture)
    print_data_set(data_set, picture)


@datasets_app.command("check")
def datasets_check(
    root: Annotated[Path, typer.Argument(help="The folder that holds it.")],
    name: Annotated[str, typer.Option(help="Which data set it is.")] = "folder",
    settings: SetOption = None,
) -> None:
    """Decode every image and list those that cannot be read; exit code 1 if there are any."""
    from nearkin.cli.display import checking_progress, print_bad_images
    from nearkin.data import build, check_images
    from nearkin.recipe.recipe import override

    data_set = build(name, root, **override({}, settings or []))
    with checking_progress() as progress:
        bad = check_images(data_set, progress=progress)
    print_bad_images(data_set, bad)
    if bad:
        raise typer.Exit(1)
