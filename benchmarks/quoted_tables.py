"""Tables that pages of the documentation quote: each is made from one result, or says that there is none."""

from __future__ import annotations

from pathlib import Path

import figures
from figures import FLOOR, NOT_MEASURED, OURS, Result, Row

STORES = {
    "a folder": OURS,
    "PostgreSQL": "PostgreSQL",
    "PostgreSQL, float16": "PostgreSQL, float16",
    "Milvus": "Milvus",
    "Milvus, `?search=hnsw`": "Milvus, HNSW",
}
"""What the page calls the sides of the result."""
RUNTIMES = {
    "torch": "torch",
    "ONNX in onnxruntime": OURS,
    "the same, int8": "int8",
    "OpenVINO": "openvino",
    "OpenVINO, int8": "openvino int8",
}


def stores(folder: Path = figures.RESULTS) -> str:
    """Load, disk, queries and what they find, by store."""
    result = figures.current("stores", folder)
    header = ("store", "load", "disk", "exact", "its recall@10", "approximate", "its recall@10")
    if result is None:
        return _unmeasured("stores")
    load, exact, near = (
        _row(result, name) for name in ("load", "one query, exact", "one query, approximate")
    )
    lines = [
        (
            called,
            _value(result, load, side, "s"),
            f"{load.facts['disk'][side] / 2**20:,.0f} MiB" if side in load.facts["disk"] else "",
            *_speed(exact, side),
            *_speed(near, side),
        )
        for called, side in STORES.items()
    ]
    return _table(header, lines, f"Of {load.name.removeprefix('load, ')}, one query after the other.", result)


def export(folder: Path = figures.RESULTS) -> str:
    """Size, speed, Recall@1 and distance from torch, by runtime."""
    result = figures.current("export", folder)
    if result is None:
        return _unmeasured("export")
    one, many = result.rows
    facts = one.facts
    header = ("runtime", "file", one.name, many.name, "Recall@1", "largest difference from torch")
    lines = [
        (
            called,
            f"{facts[side]['megabytes']:.1f} MB" if "megabytes" in facts[side] else "",
            _value(result, one, side, "ms"),
            _value(result, many, side, "ms"),
            f"{100 * facts[side]['recall at 1']:.2f} %",
            "" if called == "torch" else f"{facts[side]['largest difference']:.1e}",
        )
        for called, side in RUNTIMES.items()
        if side in facts
    ]
    return _table(header, lines, "A model of CUB's birds; milliseconds are per image.", result)


def million(folder: Path = figures.RESULTS) -> str:
    """Seconds and memory of scoring very many embeddings."""
    result = figures.current("evaluation_million", folder)
    if result is None:
        return _unmeasured("evaluation_scale", "evaluation_million")
    lines = [
        (row.name, _value(result, row, FLOOR, row.unit), _value(result, row, OURS, row.unit))
        for row in result.rows
    ]
    return _table(("what", "the floor", "measured"), lines, f"The floor: {result.floor}.", result)


def classes(folder: Path = figures.RESULTS) -> str:
    """Time and memory of a step, by loss and number of classes."""
    result = figures.current("classes", folder)
    if result is None:
        return _unmeasured("classes")
    sides = list(dict.fromkeys(side for row in result.rows for side in row.samples if side != FLOOR))
    lines = [
        (row.name, *("" if side not in row.samples else _or_stopped(result, row, side) for side in sides))
        for row in result.rows
    ]
    called = ["1 % sampled" if side == OURS else side for side in sides]
    slopes = [
        f"{row.name.partition(',')[0]} {'sampled' if side == OURS else side} {value:.2f}"
        for row in result.rows
        for side, value in row.facts.get("slope", {}).items()
        if side in (OURS, "dense", "2 processes") and value is not None
    ]
    about = (
        "Loss, gradients and AdamW. The power of C that time grows with, from the first to the last size: "
        f"{', '.join(slopes)}."
    )
    return _table(("step", *called), lines, about, result)


def _or_stopped(result: Result, row: Row, side: str) -> str:
    return _value(result, row, side, row.unit) or "stopped"


def _row(result: Result, beginning: str) -> Row:
    return next(row for row in result.rows if row.name.startswith(beginning))


def _value(result: Result, row: Row, side: str, unit: str) -> str:
    figure = result.value(row.name, side)
    return "" if figure is None else f"{figure:{unit}}"


def _speed(row: Row, side: str) -> tuple[str, str]:
    """Queries per second, and the recall."""
    if side not in row.samples:
        return "", ""
    figure = figures.Figure.of(1000 / median for median in row.medians(side) if median)
    return f"{figure:queries/s}", f"{row.facts['recall'][side]:.3f}"


def _table(header: tuple[str, ...], lines: list[tuple[str, ...]], about: str, result: Result) -> str:
    shown = [f"| {' | '.join(header)} |", "|---|" + "---:|" * (len(header) - 1)]
    shown += [f"| {' | '.join(line)} |" for line in lines]
    where = f"{about} Medians (lowest–highest): {figures.origin(result.conditions)}."
    return "\n".join([*shown, "", where])


def _unmeasured(module: str, name: str | None = None) -> str:
    command = f"`python benchmarks/{module}.py {name or module}`"
    return f"{NOT_MEASURED.capitalize()}: {command} on an idle machine, then `benchmarks/quote.py`."
