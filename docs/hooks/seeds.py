"""The table of ``docs/seeds.csv``: every item of the survey and the thesis, where it is, what verifies it."""

from __future__ import annotations

import csv
from pathlib import Path

FILE = Path(__file__).parents[1] / "seeds.csv"
_HEADINGS = {"survey": "The survey", "thesis": "The thesis"}
_HEAD = "| item | what | where | verified by |\n|---|---|---|---|"


def seeds_table() -> str:
    """The items of each document under a heading of its own, in the order of the file."""
    rows = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))
    return "\n\n".join(
        "\n".join([f"## {heading}", "", _HEAD, *(_line(row) for row in rows if row["document"] == document)])
        for document, heading in _HEADINGS.items()
    )


def _line(row: dict[str, str]) -> str:
    number = f"({row['number']})" if row["kind"] == "equation" else row["number"]
    where, verified = _code(row["where"]), _code(row["verified"])
    if row["pending"]:
        where = f"{where} (to come)"
    return f"| {row['kind']} {number} | {row['what']} | {where} | {verified} |"


def _code(targets: str) -> str:
    parts = [part.strip().removeprefix("cmd: ") for part in targets.split(";")]
    return ", ".join(f"`{part}`" for part in parts if part)
