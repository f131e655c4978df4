"""``nearkin search``: the items of an index that are most like a picture or text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nearkin.cli.index_display import IndexArgument, JsonOption, OpenOption, WhereOption


def search(
    index: IndexArgument,
    queries: Annotated[
        list[str],
        typer.Argument(metavar="QUERY...", help="Image files, or whatever the index's model embeds."),
    ],
    *,
    k: Annotated[int, typer.Option("-k", "--number", min=1, help="Hits per query.")] = 10,
    where: WhereOption = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Faster among very many items; some hits may be missed.")
    ] = False,
    rerank: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="Put the hits into another order: k_reciprocal or query_expansion."),
    ] = None,
    json: JsonOption = False,
    show: OpenOption = False,
) -> None:
    """Find what is most like a picture or a text, by the cosine of the embeddings."""
    from nearkin.cli.index_display import filter_from, make_graph, open_sheet, print_hits, print_json
    from nearkin.index import Index

    wanted: Any = rerank
    with Index.open(index) as opened:
        if approximate:
            make_graph(opened, on_stderr=json)
        found = opened.search(queries, k, filter_from(where), approximate=approximate, rerank=wanted)
        if json:
            print_json(
                [
                    {"query": query, "hits": [hit.to_dict() for hit in hits]}
                    for query, hits in zip(queries, found, strict=True)
                ]
            )
        else:
            threshold = opened.model.threshold
            for query, hits in zip(queries, found, strict=True):
                print_hits(query, hits, None if threshold is None else threshold.similarity)
        if show:
            rows = [
                (
                    query,
                    [
                        *([(Path(query), "query")] if Path(query).is_file() else []),
                        *((hit.item, f"{hit.similarity:.4f} {hit.item.label or ''}") for hit in hits),
                    ],
                )
                for query, hits in zip(queries, found, strict=True)
            ]
            open_sheet(opened, f"Search in {opened.name}", rows)
