"""Results as a benchmark on an idle machine would have written them, with samples chosen by the test."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import figures  # noqa: E402 - where the benchmarks are

CONDITIONS = {
    "processor": "Test processor",
    "cores": 2,
    "threads": 2,
    "python": "3.11",
    "packages": {"torch": "2.9"},
    "date": "2026-01-02",
    "commit": "0123456789abcdef",
    "library": "tree",
}


def row(name: str, unit: str = "ms", note: str = "", **samples: list[list[float | None]]) -> figures.Row:
    """A row; sides are keywords, each with a list of samples per process."""
    return figures.Row(name, unit, dict(samples), note)


def result(name: str, *rows: figures.Row, code: str | None = None, shares=(0.001, 0.012)) -> figures.Result:
    """A result of the present benchmark code."""
    return figures.Result(
        name,
        f"Title of {name}",
        "the products",
        "",
        code or figures.digest(name),
        CONDITIONS,
        {"shares": list(shares), "averages": [0.1 for _ in shares]},
        rows,
    )
