"""``nearkin serve``: an HTTP API and a web page over indexes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    indexes: Annotated[
        list[str],
        typer.Argument(metavar="INDEX…", help="The folder of an index, or its address; two can be compared."),
    ],
    *,
    host: Annotated[
        str, typer.Option(help="The address to listen on; one that others can reach needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 is any that is free.")] = 8765,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="A file with the API key; by default the environment's NEARKIN_API_KEY."),
    ] = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", help="Let others in without a key, all the same.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A further name that the server has, such as a proxy's; repeatable."
        ),
    ] = None,
    max_megabytes: Annotated[float, typer.Option(min=0.01, help="The largest upload.")] = 20.0,
    max_megapixels: Annotated[float, typer.Option(min=0.01, help="The largest picture.")] = 50.0,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that a request may take.")] = 30.0,
    queue: Annotated[int, typer.Option(min=1, help="Requests at a time; more get 503.")] = 512,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures that the network sees at once.")] = 32,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a network; by default one per core.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve an index: a page to search by picture, and an HTTP API. Ctrl-C ends it."""
    from nearkin.serving import Limits, find_key
    from nearkin.serving import serve as start

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    limits = Limits(
        upload_bytes=int(max_megabytes * 1e6),
        pixels=int(max_megapixels * 1e6),
        seconds=timeout,
        waiting=queue,
        batch=batch_size,
    )

    def ready(address: str) -> None:
        from nearkin.display import console

        console.print(f"page      {address}", soft_wrap=True)
        console.print(f"API       {address}openapi.json", soft_wrap=True)
        if open_page:
            typer.launch(address)

    start(
        indexes,
        host=host,
        port=port,
        key=find_key(api_key_file),
        limits=limits,
        allow_hosts=allow_host or (),
        without_key=without_key,
        ready=ready,
    )
