"""What commands about indexes print: tables for people, JSON for programs, contact sheets for both."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nearkin.index import Group, Hit, Index, Item

IndexArgument = Annotated[
    str, typer.Argument(metavar="INDEX", help="The folder of an index, or its address on a server.")
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only items that fit: label=cat, label=cat|dog, price<10; repeatable, all must hold.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
OpenOption = Annotated[
    bool, typer.Option("--open", help="Write a contact sheet (HTML) and open it in the browser.")
]
_MOST_SHOWN = 8  # names of a group in a line


def filter_from(clauses: list[str] | None) -> dict[str, Any] | None:
    """The filter that ``--where`` describes, or none."""
    from nearkin.index import parse_where

    return parse_where(clauses) if clauses else None


@contextmanager
def progress_of(stage: str, *, on_stderr: bool) -> Iterator[Any]:
    """A display of one stage, which ends with the block."""
    from rich.console import Console

    from nearkin.display import observer_for

    place = Console(stderr=True, soft_wrap=True, highlight=False) if on_stderr else None
    display = observer_for(True, on=place)
    display.stage(stage)
    try:
        yield display
    finally:
        display.end()


def make_graph(index: Index, *, on_stderr: bool) -> None:
    """What approximate search needs; how far it is is shown where there is anything to do."""
    with ExitStack() as shown:
        display: Any = None

        def progress(done: int, total: int) -> None:
            nonlocal display
            if display is None:
                stage = "making the graph of approximate search"
                display = shown.enter_context(progress_of(stage, on_stderr=on_stderr))
            display.progress(done, total)

        index.make_graph(progress)


def print_json(value: Any) -> None:
    """JSON, and nothing else, on standard output."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_hits(query: str, hits: Sequence[Hit], threshold: float | None) -> None:
    """A table of what one query found."""
    from rich.table import Table

    from nearkin.display import console

    console.print(f"[bold]{_plain(query)}[/]", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("cosine", justify="right")
    if threshold is not None:
        table.add_column("same")
    table.add_column("label", style="cyan")
    table.add_column("name", overflow="fold")
    for hit in hits:
        said = [] if threshold is None else ["yes" if hit.same else "no"]
        table.add_row(f"{hit.similarity:.4f}", *said, _plain(hit.item.label or ""), _plain(hit.item.name))
    console.print(table)


def print_groups(groups: Sequence[Group], *, what: str, most: int) -> None:
    """A line or two per group."""
    from nearkin.display import console

    for number, group in enumerate(groups[:most], start=1):
        labels = ", ".join(f"{_plain(label)} {count}" for label, count in list(group.labels.items())[:3])
        console.print(
            f"[bold]{number}[/]  {len(group)} items, mean cosine with their centre {group.similarity:.3f}"
            + (f"  [cyan]{labels}[/]" if labels else ""),
            soft_wrap=True,
        )
        for item in group.items[:_MOST_SHOWN]:
            console.print(f"   {_plain(item.name)}", soft_wrap=True)
        if len(group) > _MOST_SHOWN:
            console.print(f"   [dim]and {len(group) - _MOST_SHOWN:,} more[/]")
    left = f"; the first {most} are shown" if len(groups) > most else ""
    console.print(f"{len(groups):,} {what}, {sum(map(len, groups)):,} items{left}", soft_wrap=True)


def group_rows(groups: Iterable[Group]) -> Iterator[tuple[str, list[tuple[Item | Path, str]]]]:
    """Rows of a contact sheet."""
    for group in groups:
        heading = f"{len(group)} items, mean cosine with their centre {group.similarity:.3f}"
        yield heading, [(item, item.label or "") for item in group.items[:24]]


def open_sheet(index: Index, title: str, rows: Iterable[Any]) -> None:
    """Write a contact sheet to a temporary file and show it."""
    import webbrowser

    from nearkin.atomic import write_text
    from nearkin.index.sheet import sheet

    folder = Path(tempfile.mkdtemp(prefix="nearkin-"))
    page = folder / f"{index.name or 'index'}.html"
    write_text(page, sheet(title, rows))
    print(f"sheet     {page}", file=sys.stderr)
    webbrowser.open(page.as_uri())


def _plain(text: str) -> str:
    """A text that rich prints as it is."""
    from rich.markup import escape

    return escape(text)
