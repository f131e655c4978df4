"""``nearkin cache``: what lies in the user's cache, and how to be rid of it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nearkin.cli.commands import Command

cache_app = typer.Typer(
    help="What lies in the user's cache, and how to clear it; everything there can be made again.",
    no_args_is_help=False,
)


@cache_app.callback(invoke_without_command=True)
def cache(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what lies in the cache: kind, files, size, age."""
    if context.invoked_subcommand is not None:
        return
    from nearkin.cache import entries, folder

    if json:
        _print_json()
        return
    from rich.table import Table

    from nearkin.cache import KINDS
    from nearkin.display import console

    found = entries()
    if not found:
        console.print(f"the cache {folder()} is empty", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("kind", style="bold cyan", no_wrap=True)
    for column in ("files", "size", "last used"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("what it is")
    for entry in found:
        table.add_row(
            entry.kind, f"{entry.files:,}", in_bytes(entry.size), _age(entry.days_unused), KINDS[entry.kind]
        )
    console.print(table)
    console.print(f"cache     {folder()}", soft_wrap=True)
    console.print(
        f"[dim]{in_bytes(sum(one.size for one in found))}; nearkin cache clear KIND removes one kind[/]"
    )


@cache_app.command("clear", cls=Command)
def cache_clear(
    kind: Annotated[
        str | None, typer.Argument(help="Such as activations; by default everything in the cache.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove one kind of things from the cache, or everything."""
    from nearkin.cache import KINDS, clear, entries, folder
    from nearkin.registry import nearest_name

    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind {kind[:100]}: {nearest_name(kind, list(KINDS))}")
    found = [entry for entry in entries() if kind in (None, entry.kind)]
    size = in_bytes(sum(entry.size for entry in found))
    if not found:
        typer.echo("there is nothing to clear")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise ValueError(f"{size} in {folder()} would be removed: say --yes to do so")
        typer.confirm(
            f"Remove {size} ({', '.join(entry.kind for entry in found)}) from {folder()}?", abort=True
        )
    typer.echo(f"removed {in_bytes(clear(kind))}")


def _print_json() -> None:
    import json

    from nearkin.cache import entries, folder

    kinds = {
        entry.kind: {
            "files": entry.files,
            "bytes": entry.size,
            "days_unused": round(entry.days_unused, 2),
            "places": [str(place) for place in entry.places],
        }
        for entry in entries()
    }
    typer.echo(json.dumps({"folder": str(folder()), "kinds": kinds}, indent=2))


def in_bytes(size: float) -> str:
    """A size as people say it.

    >>> in_bytes(812), in_bytes(25_300_000), in_bytes(18.9e9)
    ('812 bytes', '25.3 MB', '18.9 GB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} bytes"


def _age(days: float) -> str:
    if days < 1:
        return "today"
    return f"{days:.0f} day{'s' if round(days) != 1 else ''} ago"
