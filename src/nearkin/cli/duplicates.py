"""``nearkin duplicates``: items of an index that are nearly the same."""

from __future__ import annotations

from typing import Annotated

import typer

from nearkin.cli.index_display import IndexArgument, JsonOption, OpenOption, WhereOption


def duplicates(
    index: IndexArgument,
    *,
    threshold: Annotated[
        float | None,
        typer.Option(min=-1, max=1, help="The cosine from which on two items are duplicates: 0.98."),
    ] = None,
    where: WhereOption = None,
    most: Annotated[int, typer.Option(min=1, help="So many groups are shown; JSON has all.")] = 20,
    json: JsonOption = False,
    show: OpenOption = False,
) -> None:
    """Find items that are nearly the same, such as copies that were resized or saved again."""
    from nearkin.cli.index_display import (
        filter_from,
        group_rows,
        open_sheet,
        print_groups,
        print_json,
        progress_of,
    )
    from nearkin.index import Index

    with Index.open(index) as opened:
        with progress_of("comparing all items", on_stderr=json) as display:
            found = opened.duplicates(threshold, where=filter_from(where), progress=display.progress)
        if json:
            print_json([group.to_dict() for group in found])
        else:
            print_groups(found, what="groups of duplicates", most=most)
        if show:
            open_sheet(opened, f"Duplicates in {opened.name}", group_rows(found[:most]))
