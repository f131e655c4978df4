"""``nearkin verify``: are these two the same? Of two samples, or of every pair of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nearkin.model import Model, PairsReport

_DIFFERENT = 1


def verify(
    model: Annotated[Path, typer.Argument(help="A finished run, or the folder of a saved model.")],
    a: Annotated[
        str, typer.Argument(metavar="A|PAIRS.csv", help="One sample; or a table with the columns a and b.")
    ],
    b: Annotated[str | None, typer.Argument(metavar="[B]", help="The other sample.")] = None,
    *,
    fold: Annotated[
        int | None, typer.Option(min=0, help="Of a cross-validation, the network of this fold.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write every pair of a table with its similarity.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 1 if they differ, as diff and cmp do.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say whether two samples are of one class, by the threshold chosen on validation classes.

    With a table of pairs (CSV: a, b, and where the answer is known same) all of them are decided, and error
    rates, ROC AUC, equal error rate and accuracy are printed with intervals over classes. The similarity is
    a cosine, not a probability.
    """
    from nearkin import api

    loaded = api.load(model, fold=fold)
    if b is None:
        _verify_table(loaded, a, output, json=json)
        return
    if output is not None:
        raise ValueError("--output is for a table of pairs")
    decision = loaded.same(a, b)
    _print(decision.to_dict() if json else _line(decision))
    if exit_code and not decision:
        raise typer.Exit(_DIFFERENT)


def _line(decision: Any) -> str:
    from nearkin.evaluation.thresholds import FEWEST_CLASSES, percent

    threshold = decision.threshold
    if threshold is None:
        return f"{decision}: a training with {FEWEST_CLASSES} validation classes or more chooses one"
    rate = threshold.false_accept_rate
    spread = f"{percent(rate.low)} to {percent(rate.high)} % {threshold.where}"
    return f"{decision} (false accepts {percent(rate.value)} %, {spread})"


def _verify_table(loaded: Model, table: str, output: Path | None, *, json: bool) -> None:
    from nearkin.data.table_rows import TABLE_SUFFIXES
    from nearkin.model import verify_pairs

    if Path(table).suffix.lower() not in TABLE_SUFFIXES:
        raise ValueError(
            f"{table} is to be compared with what? Give a second sample, or a table (.csv) of pairs"
        )
    report = verify_pairs(loaded, table, progress=True)
    if output is not None:
        report.write(output)
    if json:
        _print(report.to_dict())
        return
    print_pairs(report, output)


def evaluate_pairs(run: Path, pairs: Path, root: Path | None, *, json: bool) -> None:
    """``nearkin evaluate RUN --pairs``: score the pairs of a file, and keep the scores in the run."""
    from nearkin import api
    from nearkin.atomic import write_json
    from nearkin.model import PairTable, verify_pairs

    table = PairTable.read(pairs, root)
    if table.same is None:
        raise ValueError(f"{pairs} has no column same: without answers, nearkin verify decides its pairs")
    report = verify_pairs(api.load(run), table, progress=True)
    file = run / "pairs.json"
    write_json(file, {"file": str(pairs), **report.to_dict()})
    if json:
        _print(report.to_dict())
    else:
        print_pairs(report, file)


def print_pairs(report: PairsReport, output: Path | None) -> None:
    """Print scores with their intervals, and what thresholds do to the pairs."""
    from rich.table import Table
    from rich.text import Text

    from nearkin.display import console, shown_path

    decided = "the model has no threshold" if report.same is None else f"{sum(report.same):,} are the same"
    console.print(Text(f"{len(report.similarity):,} pairs: {decided}"))
    shown = {name: report.intervals.get(name) for name in _scores(report)}
    if shown:
        table = Table(box=None, pad_edge=False)
        for column in ("", "%", "95% interval over classes"):
            table.add_column(column, justify="right" if column else "left")
        for name, value in _scores(report).items():
            interval = shown[name]
            spread = "" if interval is None else f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"
            table.add_row(name, f"{100 * value:.2f}", spread)
        console.print(table)
    _print_points(report)
    if report.note:
        console.print(Text(report.note, style="yellow"))
    if report.threshold is not None:
        console.print(Text(f"threshold {report.threshold}", style="dim"))
    if output is not None:
        console.print(Text(f"pairs     {shown_path(output)}"))


def _print_points(report: PairsReport) -> None:
    from rich.table import Table

    from nearkin.display import console
    from nearkin.evaluation.thresholds import percent

    if not report.points:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("false accepts, at most", "threshold", "false accepts", "false rejects"):
        table.add_column(column, justify="right")
    for point in report.points:
        rates = (point.false_accept_rate, point.false_reject_rate)
        table.add_row(
            f"{percent(point.wanted)} %", f"{point.threshold:.5f}", *(f"{percent(rate)} %" for rate in rates)
        )
    console.print(table)
    console.print("[dim]Thresholds of this table are read off these pairs themselves.[/]")


def _scores(report: PairsReport) -> dict[str, float]:
    """What is shown: at the threshold first, then over all thresholds."""
    found = {name: one.value for name, one in report.intervals.items()}
    if report.scores is not None:
        plain = report.scores.to_dict()
        found |= {
            name: float(value)
            for name, value in plain.items()
            if name in ("roc_auc", "equal_error_rate", "accuracy") or name.startswith("tar_at")
            if value is not None
        }
    return found


def _print(what: Any) -> None:
    import json

    typer.echo(what if isinstance(what, str) else json.dumps(what, indent=2))
