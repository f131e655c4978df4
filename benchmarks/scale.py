"""The table of ``docs/scale.md``: what 10⁶, 10⁸ and 10⁹ vectors cost, from what was measured with 10⁵.

    python benchmarks/scale.py            # brings the page up to date
    python benchmarks/scale.py --check

Memory and disk are arithmetic. Times are slopes: a load and an exact search grow with the number of vectors,
a search by HNSW with its logarithm. The slopes are those of ``benchmarks/results/stores.json``; without it,
the page says that they are not measured yet.
"""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path

import figures
from quote import marked

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
MARK = "costs"
COUNTS = {"10⁶": 10**6, "10⁸": 10**8, "10⁹": 10**9}
DIMENSION = 512
MEASURED = 100_000
LINKS = 2 * 16 * 4 + 32  # bytes of an HNSW graph with M = 16, per vector: links below, and those above
ITEM = 250  # bytes of a name, a label, a path and two hashes
# Which store: the side in the results, bytes per number that a search reads, bytes per number on disk.
STORES = {
    "a folder, float32": ("ours", 4, 4),
    "a folder, int8": (None, 1, 5),
    "PostgreSQL, float32": ("PostgreSQL", 4, 4),
    "PostgreSQL, float16": ("PostgreSQL, float16", 2, 2),
    "Milvus, float32": ("Milvus", 4, 4),
}
HEADER = (
    "vectors",
    "store",
    "read by an exact search",
    "with a graph",
    "disk",
    "load",
    "exact query",
    "HNSW query",
)


def size(number: float) -> str:
    """Bytes for people.

    >>> size(5 * 2**30)
    '5 GiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{number:,.0f} {unit}" if number >= 10 or number == int(number) else f"{number:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Seconds for people.

    >>> duration(0.25), duration(7200), duration(None)
    ('250 ms', '2 h', 'not measured yet')
    """
    if seconds is None:
        return figures.NOT_MEASURED
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{1000 * seconds:,.3g} ms"


def slope(result: figures.Result | None, row: str, side: str | None) -> float | None:
    """Seconds of a side in the row whose name begins so."""
    for one in result.rows if result is not None else ():
        if one.name.startswith(row) and side in one.samples:
            values = [value for value in one.medians(side) if value is not None]
            return statistics.median(values) / (1000 if one.unit == "ms" else 1) if values else None
    return None


def table(folder: Path = figures.RESULTS) -> str:
    """The page's table."""
    result = figures.current("stores", folder)
    lines = [f"| {' | '.join(HEADER)} |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    for called, count in COUNTS.items():
        for store, (side, read, disk) in STORES.items():
            load, exact = (slope(result, row, side) for row in ("load", "one query, exact"))
            near = slope(result, "one query, approximate", "Milvus, HNSW" if side == "Milvus" else side)
            growth = math.log(count) / math.log(MEASURED)
            cells = (
                called,
                store,
                size(count * DIMENSION * read),
                size(count * (DIMENSION * read + LINKS)),
                size(count * (DIMENSION * disk + ITEM)),
                duration(None if load is None else load * count / MEASURED),
                duration(None if exact is None else exact * count / MEASURED),
                duration(None if near is None else near * growth),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def right(folder: Path = figures.RESULTS) -> str:
    """The page as the results have it."""
    return marked(PAGE.read_text(encoding="utf-8"), MARK, table(folder))


def write() -> list[str]:
    """Bring the page up to date; which was changed."""
    text = right()
    if text == PAGE.read_text(encoding="utf-8"):
        return []
    PAGE.write_text(text, encoding="utf-8")
    return [PAGE.name]


def main() -> None:
    if "--check" in sys.argv[1:]:
        wrong = right() != PAGE.read_text(encoding="utf-8")
        sys.exit("docs/scale.md differs from benchmarks/results: run benchmarks/scale.py" if wrong else 0)
    print("\n".join(f"written: {name}" for name in write()) or "nothing to change")


if __name__ == "__main__":
    main()
