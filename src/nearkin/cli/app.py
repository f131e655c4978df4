"""The commands. Each imports what it needs when it runs, so that help and mistakes answer at once."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearkin.allocation import keep_freed_memory
from nearkin.cli.benchmark import benchmark
from nearkin.cli.cache import cache_app
from nearkin.cli.clusters import clusters
from nearkin.cli.commands import (
    Command,
    ImportOption,
    RecipeArgument,
    SetOption,
    SkipBadOption,
    WeightsOption,
)
from nearkin.cli.duplicates import duplicates
from nearkin.cli.embed import embed
from nearkin.cli.explain import explain_app
from nearkin.cli.export import export
from nearkin.cli.index import index
from nearkin.cli.publish import publish
from nearkin.cli.search import search
from nearkin.cli.serve import serve
from nearkin.cli.tournament import tournament
from nearkin.cli.tune import tune
from nearkin.cli.verify import verify

if TYPE_CHECKING:
    from nearkin.recipe import Recipe

app = typer.Typer(
    name="nearkin",
    help="Deep metric learning: learn embeddings in which samples of a class are nearest neighbours.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
losses_app = typer.Typer(help="The losses: what they are and when to use them.", no_args_is_help=False)
datasets_app = typer.Typer(help="The data sets: what they hold and how they look.", no_args_is_help=False)
app.add_typer(losses_app, name="losses")
app.add_typer(datasets_app, name="datasets")
app.command(cls=Command)(tournament)
app.command(cls=Command)(tune)
app.command(cls=Command)(benchmark)
app.command(cls=Command)(embed)
app.command(cls=Command)(verify)
app.command(cls=Command)(index)
app.command(cls=Command)(search)
app.command(cls=Command)(duplicates)
app.command(cls=Command)(clusters)
app.command(cls=Command)(serve)
app.command(cls=Command)(export)
app.command(cls=Command)(publish)
app.add_typer(explain_app, name="explain")
app.add_typer(cache_app, name="cache")

_INTERRUPTED = 130  # as shells count Ctrl-C
_LONGEST_ERROR = 1500  # characters
_LONGEST_WORD = 300
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory")


def main() -> None:
    """Run the command line; a mistake is one line on standard error and exit code 2, not a traceback."""
    warnings.showwarning = _show_warning
    keep_freed_memory()
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if os.environ.get("NEARKIN_DEBUG") or not _is_mistake(error):
            raise
        if type(error).__name__ != "NoArgsIsHelpError":  # which has shown the help already
            say("nearkin:", _one_line(error), style="bold red")
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _is_mistake(error: Exception) -> bool:
    """Whether an error speaks to the user; whatever else is a fault of ours, and shows where."""
    spoken = (ValueError, typer.Abort, OSError, RuntimeError, MemoryError, ModuleNotFoundError)
    return isinstance(error, spoken) or hasattr(error, "format_message")


def say(who: str, line: str, *, style: str = "") -> None:
    """A line on standard error."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, soft_wrap=True, highlight=False).print(Text.assemble((who, style), " ", line))


def _one_line(error: Exception) -> str:
    told = error.format_message() if hasattr(error, "format_message") else str(error)
    if "Original Traceback" in told:  # of a process that reads samples: its last line says what it was
        told = told.strip().rpartition("\n")[2]
    line = " ".join(str(told).split())
    if isinstance(error, typer.Abort):
        return "nothing was done"
    if isinstance(error, MemoryError) or any(sign in line for sign in _OUT_OF_MEMORY):
        line = (
            "there is not enough memory: try training.chunk, or a smaller sampler.batch_size or "
            f"evaluation.batch_size ({line or 'MemoryError'})"
        )
    line = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][:_LONGEST_WORD]}…", line)
    if len(line) > _LONGEST_ERROR:
        line = line[:_LONGEST_ERROR] + " …"
    return line or type(error).__name__


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say("warning:", " ".join(str(message).split()), style="yellow")


@app.command(cls=Command)
def train(
    recipe: RecipeArgument = None,
    *,
    settings: SetOption = None,
    imports: ImportOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The run's directory; by default one under runs/.")
    ] = None,
    weights: WeightsOption = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="How long the run may take on this machine, whose speed is measured first."),
    ] = None,
    final: Annotated[
        bool,
        typer.Option(
            "--final", help="Afterwards train on all classes, test included, as long as validation chose."
        ),
    ] = False,
    skip_bad: SkipBadOption = False,
    show_recipe: Annotated[
        bool, typer.Option("--show-recipe", help="Print the recipe with every key, and stop.")
    ] = False,
) -> None:
    """Train an embedding, or go on with a run that was stopped: the same command does both."""
    from nearkin.display import observer_for
    from nearkin.recipe.building import shown_toml
    from nearkin.recipe.carrying_out import carry_out
    from nearkin.training.distributed import leave_other_processes

    more = {"network.weights": weights, "data.skip_bad": skip_bad or None, "training.minutes": minutes}
    chosen = recipe_from(recipe, settings, imports, more)
    if show_recipe:
        text, not_shown = shown_toml(chosen)
        if not_shown is not None:
            say("warning:", f"what depends on the data is not shown: {_one_line(not_shown)}", style="yellow")
        typer.echo(text, nl=False)
        return
    display = observer_for(True)
    try:
        run = carry_out(chosen, output=output, final=final, progress=display)
        leave_other_processes()
        if not run.writes:  # one of several processes, and not the one that talks
            return
        from nearkin.cli.views import draw_run

        pictures = draw_run(run, display)
    except KeyboardInterrupt:
        raise stopped(display) from None
    from nearkin.cli.display import print_run

    print_run(run, pictures)


def stopped(display: Any = None) -> typer.Exit:
    """What Ctrl-C ends in: a line that says how to go on, and the exit code that shells expect."""
    if display is not None:
        display.end()
    say("nearkin:", "stopped. The same command goes on from the last checkpoint", style="bold yellow")
    return typer.Exit(_INTERRUPTED)


def recipe_from(
    argument: str | None,
    settings: list[str] | None,
    imports: list[str] | None = None,
    more: dict[str, Any] | None = None,
) -> Recipe:
    """The recipe that a command line describes: a word, ``--set``, ``--import`` and other options."""
    from nearkin.recipe import Recipe, override
    from nearkin.recipe.objects import from_argument

    values = override({} if argument is None else from_argument(argument), settings or [])
    if imports:
        there = values.get("imports", [])
        values["imports"] = [*([there] if isinstance(there, str) else there), *imports]
    recipe = Recipe.parse(values, source="--set" if argument is None else argument)
    said = {key: value for key, value in (more or {}).items() if value is not None}
    return recipe.changed(said) if said else recipe


@app.command(cls=Command)
def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run's directory.")],
    data_root: Annotated[
        Path | None, typer.Option(help="Where the data is now, if it is not where it was.")
    ] = None,
    *,
    rerank: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOW",
            help="Measure what re-ranking does: k_reciprocal, query_expansion or whitening; repeatable.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Score pairs instead: a table (.csv) with the columns a, b and same, or a list of Labeled "
            "Faces in the Wild (pairs.txt).",
        ),
    ] = None,
    pairs_root: Annotated[
        Path | None, typer.Option(help="What paths of --pairs are relative to, if not to its folder.")
    ] = None,
    test_only: Annotated[
        bool,
        typer.Option("--test-only", help="Look for doubtful labels among the test classes alone."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, and no pictures.")] = False,
) -> None:
    """Look into a finished run: scores with intervals, clusters, confusions, doubtful labels, pictures.

    Doubtful labels of all classes are a table, doubtful_labels.csv, and a contact sheet beside it. Of data
    with a camera for every image, the scores of re-identification are among the scores.
    """
    if pairs is not None:
        from nearkin.cli.verify import evaluate_pairs

        if rerank or data_root or test_only:
            raise ValueError(
                "--pairs is scored alone: --rerank, --data-root and --test-only belong to the test classes"
            )
        evaluate_pairs(run, pairs, pairs_root, json=json)
        return
    if pairs_root is not None:
        raise ValueError("--pairs-root is for --pairs")
    from rich.console import Console

    from nearkin import api
    from nearkin.cli.display import print_examination
    from nearkin.cli.views import draw_doubtful_labels, draw_run
    from nearkin.display import observer_for

    display = observer_for(True, on=Console(stderr=True, soft_wrap=True, highlight=False) if json else None)
    found = api.evaluate(run, data_root, rerank=rerank or (), test_only=test_only, progress=display)
    if json:
        typer.echo(found.file.read_text(encoding="utf-8"))
        return
    sheet = draw_doubtful_labels(found, display)
    print_examination(found, [*draw_run(found.run, display, found.opened), *sheet])


@losses_app.callback(invoke_without_command=True)
def losses(context: typer.Context) -> None:
    """List the losses, a line each."""
    if context.invoked_subcommand is None:
        from nearkin.cli.display import print_losses

        print_losses()


@losses_app.command("show", cls=Command)
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


@datasets_app.command("show", cls=Command)
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
    from nearkin.recipe import override

    data_set = build(name, root, **override({}, settings or []))
    picture = output or Path(f"{name}.png")
    contact_sheet(data_set.train, picture)
    print_data_set(data_set, picture)


@datasets_app.command("check", cls=Command)
def datasets_check(
    root: Annotated[Path, typer.Argument(help="A folder of images, or a table.")],
    name: Annotated[str | None, typer.Option(help="Which data set it is, if it is a published one.")] = None,
    settings: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Look before you train: bad images, copies, small classes; exit code 1 if training would stop."""
    from rich.console import Console

    from nearkin.cli.display import checked_images, print_bad_images, print_copies
    from nearkin.cli.index_display import print_json
    from nearkin.data import build, check_images
    from nearkin.data.duplicates import find_copies
    from nearkin.display import observer_for
    from nearkin.recipe import override
    from nearkin.recipe.recipe import data_name

    keywords = override({}, [setting.strip().removeprefix("data.") for setting in settings or []])
    data_set = build(name or data_name(str(root))[0], root, **keywords)
    display = observer_for(True, on=Console(stderr=True, soft_wrap=True, highlight=False) if json else None)
    try:
        display.stage("checking images")
        bad = check_images(data_set, progress=display.progress)
        display.stage("looking for copies")
        copies = find_copies(data_set, progress=display.progress)
    finally:
        display.end()
    if json:
        print_json(checked_images(data_set, bad, copies))
    else:
        print_copies(copies)
        print_bad_images(data_set, bad)
    if bad:
        raise typer.Exit(1)
