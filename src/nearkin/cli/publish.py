"""``nearkin publish``: a model as a repository of the Hugging Face Hub, on disk and, on request, there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def publish(
    model: Annotated[Path, typer.Argument(help="A finished run, or the folder of a saved model.")],
    folder: Annotated[Path, typer.Argument(help="Where the repository goes.")],
    *,
    push: Annotated[
        str | None,
        typer.Option(metavar="REPO", help="Also push it to this repository of the Hub, such as me/birds."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="A new repository is private.")] = False,
    fold: Annotated[
        int | None, typer.Option(min=0, help="Of a cross-validation, the network of this fold.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the card calls the model; by default the folder's name.")
    ] = None,
    license_: Annotated[
        str, typer.Option("--license", help="As the Hub spells it, such as apache-2.0.")
    ] = "unknown",
) -> None:
    """Write a model with its card for the Hugging Face Hub; nothing leaves the machine without --push."""
    from rich.text import Text

    from nearkin import api
    from nearkin.display import console, shown_path

    written = api.publish(model, folder, push=push, private=private, fold=fold, name=name, license=license_)
    console.print(Text(f"folder    {shown_path(folder)}"))
    console.print(Text(f"card      {shown_path(folder / 'README.md')}"))
    if written.address is not None:
        console.print(Text(f"pushed    {written.address}"))
