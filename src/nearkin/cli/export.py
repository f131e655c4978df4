"""``nearkin export``: a model as a file for another runtime, compared with torch before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from nearkin.model.exporting import Export


def export(
    model: Annotated[Path, typer.Argument(help="A finished run, or the folder of a saved model.")],
    *,
    format_: Annotated[
        str, typer.Option("--format", "-f", metavar="FORMAT", help="onnx, openvino, torchscript or folder.")
    ] = "onnx",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file, or a folder for it; by default NAME.onnx, here."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also write a quantised file, calibrated on training images.")
    ] = False,
    preprocessing: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="inside: the file takes uint8 RGB pixels; beside: normalised float32. Inside, for images.",
        ),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Where the data of the run is now, if it is not where it was.")
    ] = None,
    fold: Annotated[
        int | None, typer.Option(min=0, help="Of a cross-validation, the network of this fold.")
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="Compare on these images instead of the run's validation classes (no Recall@1)."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Images to calibrate int8 on instead of the run's training images.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0, help="Largest difference of a number in unit embeddings: 1e-4, and 0.15 for int8."
        ),
    ] = None,
    recall_tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Largest difference of Recall@1 as a share: 0.001, and 0.02 for int8."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Compare on about so many samples.")] = 1000,
    opset: Annotated[int, typer.Option(min=18, help="Which version of ONNX's operators.")] = 18,
    json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Write a model for another runtime, unless it gives other embeddings there."""
    from rich.console import Console

    from nearkin import api
    from nearkin.display import observer_for

    display = observer_for(True, on=Console(stderr=True, soft_wrap=True, highlight=False))
    written = api.export(
        model,
        output,
        format=format_,
        int8=int8,
        preprocessing=_place(preprocessing),
        data=data_root,
        fold=fold,
        samples=samples,
        calibration=calibration,
        tolerance=tolerance,
        recall_tolerance=recall_tolerance,
        most=most,
        opset=opset,
        progress=display,
    )
    if json:
        import json as format_json

        typer.echo(format_json.dumps([one.to_dict() for one in written], indent=2))
        return
    _print(written)


def _place(given: str | None) -> Literal["inside", "beside"] | None:
    places: dict[str | None, Any] = {None: None, "inside": "inside", "beside": "beside"}
    if given not in places:
        raise ValueError(f"--preprocessing {given!r} must be inside or beside")
    found: Literal["inside", "beside"] | None = places[given]
    return found


def _print(written: list[Export]) -> None:
    """Both comparisons of every file, and where it is."""
    from rich.table import Table
    from rich.text import Text

    from nearkin.display import console, shown_path

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("MB", "largest difference", "smallest cosine", "Recall@1, torch", "Recall@1, file"):
        table.add_column(name, justify="right")
    for one in written:
        found, recall = one.comparison, one.comparison.recall_at_1
        scores = (
            ("–", "–") if recall is None else (f"{100 * recall.torch:.2f}", f"{100 * recall.exported:.2f}")
        )
        table.add_row(
            one.precision,
            f"{one.bytes / 1e6:.1f}",
            f"{found.largest_difference:.1e}",
            f"{found.smallest_cosine:.6f}",
            *scores,
        )
    console.print(table)
    found = written[0].comparison
    console.print(Text(f"compared on {found.samples:,} {found.of}", style="dim"))
    if found.recall_at_1 is None:
        console.print(Text(f"Recall@1 was not compared: {found.why_no_recall}", style="yellow"))
    for one in written:
        console.print(Text(f"file      {shown_path(one.file)}"))
        console.print(Text(f"manifest  {shown_path(one.manifest)}"))
