"""What the commands show: a live line while they work, and tables when they are done."""

from __future__ import annotations

import inspect
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

from nearkin import losses
from nearkin.data import BadImage, DataSet
from nearkin.data.registry import registry
from nearkin.protocols import Examination, Finished, selects_on_test
from nearkin.training import Observer, Run

console = Console(highlight=False, soft_wrap=not Console().is_terminal)

_REFRESH_SECONDS = 0.3


class Stages(Observer):
    """Says what takes a while, in a terminal."""

    def stage(self, what: str) -> None:
        """Say what takes a while now."""
        if console.is_terminal:
            console.print(f"[dim]{what} …[/]")


class TrainingDisplay(Observer):
    """A live progress line in a terminal (epoch, batch, loss, images/s, time left), silent in a pipe."""

    def __init__(self, run: Run) -> None:
        self._title = f"{run.recipe.loss.name} on {run.recipe.data.name}"
        self._live = console.is_terminal
        self._progress: Progress | None = None
        self._batches = self._images = 0
        self._looked = time.monotonic()

    def stage(self, what: str) -> None:
        """Say what takes a while now."""
        if self._live:
            console.print(f"[dim]{what} …[/]")

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Start the live line."""
        if not self._live:
            return
        self._batches = batches
        if epoch or batch:
            console.print(f"[dim]going on after epoch {epoch}, batch {batch}[/]")
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[measures]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._task = self._progress.add_task(
            self._title, total=epochs * batches, completed=epoch * batches + batch, measures=""
        )
        self._epochs = epochs
        self._images, self._looked = 0, time.monotonic()
        self._progress.start()

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """Move the live line, a few times a second at most: reading the loss waits for the device."""
        if self._progress is None:
            return
        self._images += images
        now = time.monotonic()
        if now - self._looked < _REFRESH_SECONDS:
            return
        rate = self._images / (now - self._looked)
        self._images, self._looked = 0, now
        measures = (
            f"epoch {epoch + 1}/{self._epochs}  batch {batch}/{self._batches}  "
            f"loss {loss.item():.4g}  {rate:,.0f} images/s"
        )
        self._progress.update(self._task, completed=epoch * self._batches + batch, measures=measures)

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Print the epoch's scores above the live line."""
        if self._progress is None:
            return
        self._progress.update(self._task, completed=row["epoch"] * self._batches)
        scores = "  ".join(
            f"R@{key[10:]} {100 * row[key]:5.1f}" for key in row if key.startswith("recall_at_")
        )
        self._progress.console.print(f"epoch {row['epoch']:3d}  loss {row['loss']:8.4f}  [cyan]{scores}[/]")
        self._images, self._looked = 0, time.monotonic()

    def warning(self, text: str) -> None:
        """Print a watchdog's line; in a pipe on standard error, where it does not disturb the result."""
        shown = self._progress.console if self._progress is not None else Console(stderr=True, soft_wrap=True)
        shown.print(f"[yellow]warning:[/] {escape(text)}", highlight=False)

    def end(self) -> None:
        """Stop the live line."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def print_run(finished: Finished, pictures: list[Path]) -> None:
    """Print a run's scores and where everything is."""
    result = finished.result
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    scores = {
        "test classes": result["test"],
        "± over folds": result.get("test_standard_deviation"),
        "concatenated": result.get("concatenated"),
        "validation classes": result["validation"],
    }
    recalls = [key for key in result["test"] if key.startswith("recall_at_")]
    for key in recalls:
        table.add_column(f"Recall@{key.removeprefix('recall_at_')}", justify="right")
    table.add_column("MAP@R", justify="right")
    for split, values in scores.items():
        if values is not None:
            numbers = [f"{100 * values[key]:.2f}" for key in [*recalls, "map_at_r"]]
            table.add_row(f"[bold]{split}" if split.startswith("test") else split, *numbers)
    console.print(table)
    selection = result["selection"]
    epoch = "" if selection["epoch"] is None else f"epoch {selection['epoch']}: "
    style = "bold yellow" if selects_on_test(finished.run.recipe) else "dim"
    console.print(f"[{style}]{epoch}{selection['rule']}; test classes are never trained on[/]")
    console.print(f"run       {shown_path(finished.run.path)}")
    for picture in pictures:
        console.print(f"picture   {shown_path(picture)}")


_SHOWN_SCORES = ("map_at_r", "r_precision", "mean_reciprocal_rank", "nmi", "ami", "f1")


def print_examination(found: Examination, pictures: list[Path]) -> None:
    """Print what a closer look at a run found."""
    table = Table(box=None, pad_edge=False)
    for column in ("test classes", "%", "95% interval over classes"):
        table.add_column(column, justify="left" if column == "test classes" else "right")
    for name, interval in found.intervals.items():
        if name.startswith("recall_at_") or name in _SHOWN_SCORES:
            spread = f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"
            table.add_row(name, f"{100 * interval.value:.2f}", spread)
    console.print(table)
    details, names = found.diagnostics, found.images.class_names
    space = details.space
    facts = [
        f"distance within classes {space.intra_class_distance:.3f}, between {space.inter_class_distance:.3f}",
        f"effective dimension {space.effective_dimension:.1f}",
        f"hubness {details.hubness.skewness:.2f} (skewness; above 2 is much)",
    ]
    console.print(f"[dim]{'; '.join(facts)}[/]")
    _print_list(
        "hardest classes",
        [f"{100 * one.recall_at_1:5.1f}%  {names[one.label]}" for one in details.classes[:5]],
    )
    _print_list(
        "most confused",
        [
            f"{100 * one.share:5.1f}%  {names[one.label]}  taken for  {names[one.taken_for]}"
            for one in details.confusions[:5]
        ],
    )
    image_names = found.images.samples
    _print_list(
        f"doubtful labels ({details.label_doubts_found:,}: no neighbour agrees)",
        [
            f"{100 * one.agreement:5.1f}%  {image_names.name(one.index)}  "
            f"says {names[one.label]}, looks like {names[one.suggested]}"
            for one in details.label_doubts[:5]
        ],
    )
    console.print(f"details   {shown_path(found.file)}")
    for picture in pictures:
        console.print(f"picture   {shown_path(picture)}")


def _print_list(title: str, lines: list[str]) -> None:
    if lines:
        console.print(f"[bold]{title}[/]")
        for line in lines:
            console.print(Text(f"  {line}"))


def shown_path(path: Path) -> str:
    """A path as a person would type it from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def print_losses() -> None:
    """One line per loss."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for name in losses.names():
        table.add_row(name, losses.describe(name).summary)
    console.print(table)
    console.print("[dim]nearkin losses show NAME tells more[/]")


def print_loss(name: str) -> None:
    """All about one loss."""
    about = losses.describe(name)
    console.print(f"[bold cyan]{about.name}[/]  {about.summary}")
    console.print()
    console.print(Text(textwrap.indent(about.equation, "    ")))
    console.print()
    table = Table(box=None, pad_edge=False)
    for column in ("keyword", "default", "meaning"):
        table.add_column(column, overflow="fold")
    for keyword, default in about.defaults.items():
        table.add_row(f"[bold]{keyword}", f"{default!r}", Text(about.arguments.get(keyword, "")))
    console.print(table)
    facts = [
        ("when to use", about.when_to_use),
        ("source", about.source),
        ("class", f"nearkin.losses.{about.class_name}"),
        ("proxies", "learnable, one or more per class" if about.needs_classes else "none"),
    ]
    console.print()
    for fact, text in facts:
        console.print(Text.assemble((f"{fact}: ", "bold"), text))


def print_data_sets() -> None:
    """One line per data set."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for name in registry:
        table.add_row(name, (inspect.getdoc(registry.get(name)) or "").split("\n")[0])
    console.print(table)
    console.print("[dim]nearkin datasets show NAME writes a contact sheet[/]")


def print_data_set(data_set: DataSet, picture: Path) -> None:
    """What a data set holds."""
    table = Table(box=None, pad_edge=False)
    for column in ("split", "images", "classes", "images per class"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split in ("train", "validation", "test", "query", "gallery"):
        images = getattr(data_set, split)
        if images is not None:
            counts = images.labels.bincount()
            spread = (
                f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
            )
            table.add_row(split, f"{len(images):,}", f"{images.num_classes:,}", spread)
    console.print(table)
    for note in data_set.notes:
        console.print(f"note      {note}")
    console.print(f"picture   {shown_path(picture)}")


@contextmanager
def checking_progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar for the images done of all, in a terminal."""
    with Progress(*Progress.get_default_columns(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("checking images", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_bad_images(data_set: DataSet, bad: list[BadImage]) -> None:
    """Every bad image with its reason, and how many there are."""
    for image in bad:
        console.print(Text(str(image)))
    splits = (data_set.train, data_set.validation, data_set.test)
    total = sum(len(split) for split in splits if split is not None)
    console.print(f"{len(bad):,} of {total:,} images cannot be read")
    for note in data_set.notes:
        console.print(Text(f"note: {note}"))
