"""Results on disk, and the figures that come of them: medians, ranges over processes, distance to the floor.

A result is one JSON file with every raw sample. No figure is stored: all are computed from the samples, so
that none can be changed by hand. A result of other benchmark code or of another file format is *stale*, and
is deleted rather than mixed with new ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
"""Raise it when the file format or the way of measuring changes."""
FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
MODULES = {
    "losses_b180": "losses",
    "losses_b1024": "losses",
    "losses_sop": "losses",
    "losses_memory": "losses",
    "classes": "classes",
    "ranking_b1024": "ranking",
    "ranking_memory": "ranking",
    "losses_more_b180": "ranking",
    "evaluation": "evaluation",
    "evaluation_large": "evaluation",
    "evaluation_million": "evaluation_scale",
    "index": "index",
    "index_cub": "index",
    "index_large": "index",
    "stores": "stores",
    "mining": "mining",
    "input": "input",
    "training": "training",
    "trunk": "trunk",
    "precision": "precision",
    "export": "export",
    "classical": "classical",
    "classical_more": "classical",
}
"""Which module measures which result, in the order in which ``benchmarks/all`` makes them."""
ONCE = ("evaluation_million",)
"""Results of one process: another would take an hour more."""
FLOOR, OURS = "floor", "ours"
NOT_MEASURED = "not measured yet"
THESIS = (
    "contrastive",
    "triplet",
    "lifted_structure",
    "npair",
    "proxy_nca",
    "arcface",
    "margin",
    "multi_similarity",
    "soft_triple",
    "proxy_anchor",
)

Samples = dict[str, list[list[float | None]]]


@dataclass(frozen=True)
class Row:
    """What was compared: each side's samples, a list per process; None where a side was stopped."""

    name: str
    unit: str
    samples: Samples
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def medians(self, side: str) -> list[float | None]:
        """A side's median in each process; None where it was stopped."""
        return [
            None if None in taken else statistics.median(taken)  # type: ignore[type-var]
            for taken in self.samples[side]
        ]

    @property
    def peers(self) -> list[str]:
        """All sides except ours and the floor."""
        return [side for side in self.samples if side not in (FLOOR, OURS)]


@dataclass(frozen=True)
class Figure:
    """A value over processes: its median, and the lowest and highest."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        """The figure of one value per process."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))

    def __format__(self, spec: str) -> str:
        """``value × (low–high)``, or with another unit than ×."""
        unit = spec or "×"
        return f"{number(self.value)} {unit} ({number(self.low)}–{number(self.high)})"


def number(value: float) -> str:
    """As many digits as a measurement of time deserves."""
    if value >= 20:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 2 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def geometric_mean(values: Iterable[float]) -> float:
    """The mean of ratios."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


@dataclass(frozen=True)
class Result:
    """One benchmark's samples and the conditions in which they were taken."""

    name: str
    title: str
    floor: str
    note: str
    code: str
    conditions: dict[str, Any]
    load: dict[str, Any]
    rows: tuple[Row, ...]
    format: int = FORMAT

    def row(self, name: str) -> Row:
        """The row of this name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{self.name} has no row {name!r}; it has {', '.join(row.name for row in self.rows)}")

    def ratio(self, rows: str | Sequence[str], above: str, below: str) -> Figure | None:
        """``above ÷ below``, process by process; of several rows the geometric mean.

        None where a side was stopped, or took nothing that could be divided by.
        """
        names = [rows] if isinstance(rows, str) else rows
        each = [_ratios(self.row(name), above, below) for name in names]
        if any(ratios is None for ratios in each):
            return None
        by_process = zip(*(ratios for ratios in each if ratios is not None), strict=True)
        return Figure.of(geometric_mean(ratios) for ratios in by_process)

    def spread(self, rows: Sequence[str], above: str, below: str) -> tuple[float, float]:
        """The lowest and the highest of the rows' ratios."""
        found = [figure.value for name in rows if (figure := self.ratio(name, above, below))]
        return min(found), max(found)

    def value(self, row: str, side: str) -> Figure | None:
        """A side's medians, in the row's unit; None if it was stopped, or did not take part."""
        found = self.row(row)
        medians = found.medians(side) if side in found.samples else [None]
        return Figure.of(m for m in medians if m is not None) if None not in medians else None

    def stale(self, folder: Path = FOLDER) -> str | None:
        """Why this result must go: another format, other benchmark code, or no such benchmark any more."""
        if self.name not in MODULES:
            return "no benchmark of this name"
        if self.format != FORMAT:
            return f"file format {self.format}, now {FORMAT}"
        if self.code != digest(self.name, folder):
            return f"benchmarks/{MODULES[self.name]}.py has changed since"
        return None


def _ratios(row: Row, above: str, below: str) -> list[float] | None:
    pairs = list(zip(row.medians(above), row.medians(below), strict=True))
    if any(None in pair or not pair[1] for pair in pairs):
        return None
    return [a / b for a, b in pairs]  # type: ignore[operator]


def digest(name: str, folder: Path = FOLDER) -> str:
    """Of the code that measures a result."""
    return hashlib.sha256((folder / f"{MODULES[name]}.py").read_bytes()).hexdigest()[:16]


def load(name: str, folder: Path = RESULTS) -> Result | None:
    """A result, or None where it was not measured yet."""
    path = folder / f"{name}.json"
    return parse(path) if path.exists() else None


def current(name: str, folder: Path = RESULTS) -> Result | None:
    """A result that the present benchmark code made, or None."""
    result = load(name, folder)
    return None if result is None or result.stale() else result


def parse(path: Path) -> Result:
    """A result's file; one of another format keeps only its name and its format."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        found = stored.get("format", 0) if isinstance(stored, dict) else 0
        return Result(path.stem, "", "", "", "", {}, {}, (), found)
    rows = tuple(Row(**row) for row in stored.pop("rows"))
    return Result(**stored, rows=rows)


def save(result: Result, folder: Path = RESULTS) -> list[Path]:
    """Write the samples, a line per row, and the table beside them."""
    head = asdict(result)
    rows = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in head.pop("rows")]
    text = json.dumps(head, indent=1, ensure_ascii=False)
    text = text.removesuffix("\n}") + ',\n "rows": [\n' + ",\n".join(rows) + "\n ]\n}\n"
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{result.name}.json", folder / f"{result.name}.md"]
    for path, content in zip(paths, (text, markdown(result)), strict=True):
        path.write_text(content, encoding="utf-8")
    return paths


def delete_stale(folder: Path = RESULTS, code: Path = FOLDER) -> list[tuple[Path, str]]:
    """Delete results that other code made, with their tables; which, and why."""
    deleted = []
    for path in sorted(folder.glob("*.json")):
        reason = parse(path).stale(code)
        if reason:
            path.unlink()
            path.with_suffix(".md").unlink(missing_ok=True)
            deleted.append((path, reason))
    return deleted


def origin(conditions: dict[str, Any]) -> str:
    """Where and when, in a line."""
    packages = ", ".join(f"{name} {version}" for name, version in conditions["packages"].items())
    return (
        f"{conditions['processor']}, {conditions['cores']} cores, {conditions['threads']} threads, "
        f"Python {conditions['python']}, {packages}; {conditions['date']}, commit {conditions['commit'][:9]}"
    )


def cells(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a result's table: the distance to the floor first."""
    peers = list(dict.fromkeys(peer for row in result.rows for peer in row.peers))
    header = ["", "ours ÷ floor", *(f"{peer} ÷ ours" for peer in peers), "ours", "what was compared"]
    table = []
    for row in result.rows:
        ratios = [(OURS, FLOOR), *((peer, OURS) for peer in peers)]
        shown = [_shown_ratio(result, row, *pair) for pair in ratios]
        ours = result.value(row.name, OURS)
        table.append([row.name, *shown, f"{ours:{row.unit}}" if ours else "stopped", row.note])
    return header, table


def _shown_ratio(result: Result, row: Row, above: str, below: str) -> str:
    if above not in row.samples or below not in row.samples:
        return "–"
    figure = result.ratio(row.name, above, below)
    return f"{figure:×}" if figure else "stopped" if None in row.medians(above) else "–"


def markdown(result: Result) -> str:
    """The table of a result, with its conditions."""
    header, table = cells(result)
    processes = len(result.rows[0].samples[OURS]) if result.rows else 0
    measured = "One process" if processes == 1 else f"Medians over {processes} processes (lowest–highest)"
    about = (
        f"{measured}. The floor: {result.floor}. The sides take "
        f"turns step by step in one process. {origin(result.conditions)}; others used at most "
        f"{max(result.load['shares']):.1%} of the machine. Raw samples: `{result.name}.json`."
    )
    lines = [f"# {result.title}", "", about, "", *([result.note, ""] if result.note else [])]
    lines += [f"| {' | '.join(header)} |", "|---|" + "---:|" * (len(header) - 2) + "---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table)]) + "\n"


def every_result(folder: Path = RESULTS) -> Iterator[Result]:
    """All that were measured."""
    yield from (parse(path) for path in sorted(folder.glob("*.json")))
