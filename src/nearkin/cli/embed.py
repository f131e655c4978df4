"""``nearkin embed``: any number of files to vectors in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.commands import EmbeddingJobsOption, EmbeddingRayOption


def embed(
    model: Annotated[Path, typer.Argument(help="A finished run, or the folder of a saved model.")],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="Images, folders of images, packed images (.tar shards, .parquet), one array (.npy), or one "
            "text file (.txt).",
        ),
    ],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="vectors.parquet; or vectors.npy, with names and labels in vectors.csv."
        ),
    ],
    fold: Annotated[
        int | None, typer.Option(min=0, help="Of a cross-validation, the network of this fold.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples at a time.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, and list them.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that holds something else.")
    ] = False,
    jobs: EmbeddingJobsOption = None,
    ray: EmbeddingRayOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Embed files of any number, and go on where it stopped: the same command does both."""
    from rich.console import Console
    from rich.text import Text

    from nearkin import api
    from nearkin.cli.app import stopped
    from nearkin.display import console, observer_for, shown_path
    from nearkin.model import write_vectors

    loaded = api.load(model, fold=fold)
    display = observer_for(True, on=Console(stderr=True, soft_wrap=True, highlight=False))
    display.stage("embedding")
    try:
        written = write_vectors(
            loaded,
            inputs,
            output,
            batch_size=batch_size,
            progress=display.progress,
            skip_bad=skip_bad,
            overwrite=overwrite,
            processes=jobs,
            ray=ray,
        )
    except KeyboardInterrupt:
        raise stopped(display) from None
    finally:
        display.end()
    if json:
        import json as format_

        typer.echo(format_.dumps(written.to_dict(), indent=2))
        return
    before = f", {written.found:,} of them embedded before" if written.found else ""
    console.print(
        Text(f"{written.samples:,} vectors of {written.dimensions} numbers{before}: {shown_path(output)}")
    )
    for name, reason in written.skipped:
        console.print(Text(f"skipped   {name}: {reason}", style="yellow"))
