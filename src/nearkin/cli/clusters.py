"""``nearkin clusters``: the items of an index in groups."""

from __future__ import annotations

from typing import Annotated

import typer

from nearkin.cli.index_display import IndexArgument, JsonOption, OpenOption, WhereOption


def clusters(
    index: IndexArgument,
    *,
    number: Annotated[
        int | None, typer.Option("--number", "-n", min=1, help="So many clusters, by k-means.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=-1,
            max=1,
            help="Without a number: items hang together from this cosine on; by default the model's "
            "threshold.",
        ),
    ] = None,
    least: Annotated[int, typer.Option(min=1, help="Leave out clusters of fewer items.")] = 2,
    where: WhereOption = None,
    most: Annotated[int, typer.Option(min=1, help="So many clusters are shown; JSON has all.")] = 20,
    json: JsonOption = False,
    show: OpenOption = False,
) -> None:
    """Put the items into groups of like ones, the largest first, the most typical item first."""
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
        with progress_of("grouping the items", on_stderr=json):
            found = opened.clusters(number, threshold=threshold, least=least, where=filter_from(where))
        if json:
            print_json([group.to_dict() for group in found])
        else:
            print_groups(found, what="clusters", most=most)
        if show:
            open_sheet(opened, f"Clusters of {opened.name}", group_rows(found[:most]))
