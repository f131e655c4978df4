"""``nearkin explain``: what a loss does to points, to pairs, and why."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearkin.cli.commands import Command

if TYPE_CHECKING:
    from nearkin.explain import Batch, LossChoice, Measurement

explain_app = typer.Typer(
    help="Pictures of what a loss does: forces on points, weights on pairs, and what decides them.",
    no_args_is_help=True,
)

LossesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[LOSS]...", help="Losses, with hyperparameters if wanted: triplet:margin=0.3,mining=all"
    ),
]


class Space(str, Enum):
    """Where the points live."""

    circle = "circle"
    plane = "plane"


class Pair(str, Enum):
    """Which pair is watched."""

    negative = "negative"
    positive = "positive"


class Split(str, Enum):
    """Which images of a run."""

    train = "train"
    test = "test"


@explain_app.command("forces", cls=Command)
def explain_forces(
    names: LossesArgument = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            "-l",
            help="triplet, hard, easy, crowd, clusters, or a .csv or .json file of points (x, y, label and, "
            "if wanted, name and kind: sample or proxy). By default triplet, and clusters if it moves.",
        ),
    ] = None,
    space: Annotated[
        Space,
        typer.Option(
            help="circle: the losses as they are, which look at directions. plane: points free in the plane, "
            "pulled and pushed along their connecting lines."
        ),
    ] = Space.circle,
    steps: Annotated[int, typer.Option(help="Of an animation.")] = 60,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="png, svg or pdf: the forces of one step. gif or html: an animation."
        ),
    ] = Path("forces.png"),
) -> None:
    """Draw where each loss pushes anchor, positive and negative in one step, or animate where it leads."""
    from nearkin.explain import animate, draw_forces, every_loss, layouts
    from nearkin.explain.animation import FORMATS

    choices = _choices(names) or every_loss()
    moves = output.suffix.lower().removeprefix(".") in FORMATS
    points = layouts.find(layout or ("clusters" if moves else "triplet"))
    if moves:
        if space is Space.plane:
            raise ValueError("animations are drawn with --space circle")
        animate(choices, points, output, steps=steps)
    else:
        draw_forces(choices, points, output, space=space.value)
    _say_where(output)


@explain_app.command("weights", cls=Command)
def explain_weights(
    names: LossesArgument = None,
    *,
    run: Annotated[Path | None, typer.Option(help="Take the batch from a finished run's network.")] = None,
    split: Annotated[Split, typer.Option(help="Which classes of the run.")] = Split.train,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="Take the batch from an .npz file with embeddings (N, D) and labels (N,)."),
    ] = None,
    classes: Annotated[int, typer.Option(help="Of the batch.")] = 8,
    images_per_class: Annotated[int, typer.Option(help="Of the batch.")] = 5,
    seed: Annotated[int, typer.Option(help="Draws the batch.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: png, svg or pdf.")] = Path(
        "weights.png"
    ),
) -> None:
    """Draw whom each loss pulls and pushes in a batch, and how that depends on similarity.

    Without --run or --embeddings the batch is made up.
    """
    from nearkin.explain import LossChoice, draw_weights

    size = {"classes": classes, "images_per_class": images_per_class, "seed": seed}
    batch, own = _chosen_batch(run, split, embeddings, size)
    choices = _choices(names) or own
    choices = choices or [
        LossChoice(name) for name in ("contrastive", "triplet", "multi_similarity", "proxy_anchor")
    ]
    draw_weights(choices, batch, output)
    _say_where(output)


@explain_app.command("edges", cls=Command)
def explain_edges(
    names: LossesArgument = None,
    *,
    figure: Annotated[
        str | None,
        typer.Option(
            help="Losses and batch of a printed figure: 17, 18, 20, 21, 22, 23 or 32 of the thesis, survey-1 "
            "or survey-9."
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Take the batch from a finished run's network.")] = None,
    split: Annotated[Split, typer.Option(help="Which classes of the run.")] = Split.train,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="Take the batch from an .npz file with embeddings (N, D) and labels (N,)."),
    ] = None,
    classes: Annotated[int, typer.Option(help="Of the batch.")] = 3,
    images_per_class: Annotated[int, typer.Option(help="Of the batch.")] = 3,
    seed: Annotated[int, typer.Option(help="Draws the batch.")] = 2,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: png, svg or pdf.")] = Path(
        "edges.png"
    ),
) -> None:
    """Draw who pulls and pushes whom: samples and proxies, and edges as thick as the gradient between them.

    Any loss, on a real batch (--run, --embeddings) or a made-up one.
    """
    from nearkin.explain import LossChoice, draw_edges, figure_batch

    if figure is not None:
        if names or run or embeddings:
            raise ValueError("--figure chooses losses and batch: leave LOSS, --run and --embeddings out")
        choices, batch = figure_batch(figure)
    else:
        size = {"classes": classes, "images_per_class": images_per_class, "seed": seed}
        batch, own = _chosen_batch(run, split, embeddings, size)
        choices = _choices(names) or own
        choices = choices or [
            LossChoice.parse(name) for name in ("multi_similarity", "proxy_anchor", "proxy_repulsion")
        ]
    draw_edges(choices, batch, output)
    _say_where(output)


@explain_app.command("xor", cls=Command)
def explain_xor(
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: png, svg or pdf.")] = Path(
        "xor.png"
    ),
) -> None:
    """Draw XOR: no line divides it, no linear metric either, a kernel does (the thesis's Figure 2)."""
    from nearkin.explain import draw_xor

    draw_xor(output)
    _say_where(output)


@explain_app.command("perceptron", cls=Command)
def explain_perceptron(
    seed: Annotated[int, typer.Option(help="Chooses which misclassified sample moves the line.")] = 1,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: png, svg or pdf.")] = Path(
        "perceptron.png"
    ),
) -> None:
    """Draw a perceptron with the weights it has learnt, and its line after every step (Figures 3 and 4)."""
    from nearkin.explain import draw_perceptron

    draw_perceptron(output, seed=seed)
    _say_where(output)


def _chosen_batch(
    run: Path | None, split: Split, embeddings: Path | None, size: dict[str, int]
) -> tuple[Batch, list[LossChoice]]:
    """The batch that was asked for, and the loss of the run that it comes from."""
    from nearkin.explain import structured_batch

    if run is not None and embeddings is not None:
        raise ValueError("--run and --embeddings exclude each other")
    if run is not None:
        batch, own = _batch_of_run(run, split, size)
        return batch, [own]
    return structured_batch(**size) if embeddings is None else _batch_of_file(embeddings, size), []


def _batch_of_run(path: Path, split: Split, size: dict[str, int]) -> tuple[Batch, LossChoice]:
    """A batch as a finished run's network embeds it, and the run's loss."""
    from nearkin.display import observer_for
    from nearkin.explain import Batch, LossChoice, draw_balanced
    from nearkin.recipe import Recipe
    from nearkin.recipe.reopening import data_of, networks_of
    from nearkin.training import Run

    existing = Run.existing(path)
    network_of_run = existing.result.networks  # says that the run is not finished, if so
    if len(network_of_run) > 1:
        raise ValueError(f"{path} has a network per fold: give one of them, such as {path / 'fold-00'}")
    recipe = Recipe.parse(existing.terms, source=str(path))
    display = observer_for(True)
    try:
        data_set = data_of(existing, observer=display)
        samples = data_set.train if split is Split.train else data_set.require_test()
        chosen, labels = draw_balanced(samples.labels, **size)
        rows = networks_of(existing)[0].embed(samples.select(chosen))
    finally:
        display.end()
    title = f"{recipe.data.name}, {split.value} classes"
    return Batch(rows.float().cpu(), labels, title), LossChoice(recipe.loss.name, recipe.loss.keywords)


def _batch_of_file(path: Path, size: dict[str, int]) -> Batch:
    """A batch of somebody's embeddings."""
    import numpy as np
    import torch

    from nearkin.explain import Batch, draw_balanced

    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows, labels = (arrays[name] for name in ("embeddings", "labels"))
    except FileNotFoundError:
        raise ValueError(f"there is no {path}") from None
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"{path} must be an .npz file with the arrays embeddings and labels: {error}"
        ) from None
    if rows.ndim != 2 or labels.shape != rows.shape[:1]:
        raise ValueError(f"{path}: embeddings {rows.shape} and labels {labels.shape} must be (N, D) and (N,)")
    numbers = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    chosen, batch_labels = draw_balanced(numbers, **size)
    return Batch(torch.from_numpy(rows).float()[chosen], batch_labels, path.name)


@explain_app.command("similarities", cls=Command)
def explain_similarities(
    names: LossesArgument = None,
    pair: Annotated[Pair, typer.Option(help="Whose weight is watched.")] = Pair.negative,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw the curves as well: png, svg or pdf.")
    ] = None,
) -> None:
    """Measure which similarities decide the weight of a pair, beside the thesis's Table 1.

    Without losses, the five of Table 1. S: all similarities of the anchor rise and fall together, so that
    relative ones stay; N: those of its other negatives; P: those of its positives.
    """
    from nearkin import losses
    from nearkin.explain import PRINTED, LossChoice, draw_similarities, measure_choice

    choices = _choices(names) or [LossChoice(name) for name in PRINTED]
    measured = [
        measure_choice(choice, pair=pair.value, anchor=anchor)
        for choice in choices
        for anchor in (("sample", "proxy") if losses.describe(choice.name).needs_classes else ("sample",))
    ]
    _print_measured(measured, pair)
    if output is not None:
        draw_similarities(measured, output, pair=pair.value)
        _say_where(output)


def _print_measured(measured: list[Measurement], pair: Pair) -> None:
    """The measured table beside the printed one, and where they differ."""
    from rich.table import Table

    from nearkin.display import console
    from nearkin.explain.similarities import CHANGES, differences, in_words, mark

    table = Table(box=None, pad_edge=False)
    table.add_column("loss", no_wrap=True)
    table.add_column("", no_wrap=True, style="dim")
    for change in CHANGES:
        table.add_column(change, no_wrap=True)
    for one in measured:
        name = one.choice.name + (f" ({one.choice.settings})" if one.choice.settings else "")
        whose = f"from the {one.anchor}" if one.mined is None and one.printed is None else "all pairs"
        table.add_row(f"[bold]{name}", whose, *(in_words(one.alone[change]) for change in CHANGES))
        if one.mined is not None:
            table.add_row("", "its mining", *(in_words(one.mined[change]) for change in CHANGES))
        if one.printed is not None and pair is Pair.negative:
            printed = ("" if change == "own" else mark(one.printed[change]) for change in CHANGES)
            table.add_row("", "Table 1", *printed)
    console.print(table)
    console.print(
        f"[dim]What changes the weight ∂L/∂S of a {pair.value} pair, and by which part of its largest value. "
        "own: its similarity alone; S: all of the anchor's together; N: its other negatives; P: its "
        f"{'other ' if pair is Pair.positive else ''}positives. on/off: a jump, no other influence.[/]"
    )
    if pair is Pair.negative:
        found = [sentence for one in measured for sentence in differences(one)]
        if found:
            console.print("[bold]measurement and Table 1 differ[/]")
        for sentence in found:
            console.print(f"  {sentence}")


def _choices(names: list[str] | None) -> list[LossChoice]:
    from nearkin import losses
    from nearkin.explain import LossChoice

    choices = [LossChoice.parse(name) for name in names or []]
    for choice in choices:
        losses.get(choice.name)  # an unknown name is an error that suggests the right one
    return choices


def _say_where(picture: Path) -> None:
    from nearkin.display import console

    console.print(f"picture   {picture}")
