"""docs/seeds.csv: no item of the survey and the thesis is missing, and what a row names is there."""

from __future__ import annotations

import csv
import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest

from test_documented_commands import check_options

ROOT = Path(__file__).parents[1]
ROWS = list(csv.DictReader((ROOT / "docs/seeds.csv").open(encoding="utf-8")))
COUNTS = {
    ("survey", "equation"): [str(n) for n in range(1, 36)],
    ("survey", "figure"): [str(n) for n in range(1, 10)],
    ("thesis", "equation"): [*(f"2.{n}" for n in range(1, 33)), "6.1", "6.2"],
    ("thesis", "table"): [str(n) for n in range(1, 22)],
    ("thesis", "figure"): [str(n) for n in range(1, 33)],
    ("thesis", "future work"): ["1", "2", "3", "4"],
    ("thesis", "protocol"): ["3.1", "3.3", "3.4", "3.5.2", "3.5.3", "4.2.4.2", "5.1", "5.2"],
}


def parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def named(row: dict[str, str]) -> str:
    return f"{row['document']} {row['kind']} {row['number']}: {row['what']}"


def problem(target: str) -> str | None:
    """What is wrong with a target; ``None`` if nothing.

    A file or folder; ``module:name``, or ``module:name(keyword)``; ``cmd: nearkin …``; ``tests/…::test``.
    """
    if target.startswith("cmd: nearkin "):
        arguments = shlex.split(target.removeprefix("cmd: nearkin "))
        try:
            check_options(arguments)
        except AssertionError as error:
            return str(error)
        plan = arguments[1] if arguments[0] == "benchmark" else None
        known = plan is None or (ROOT / f"src/nearkin/benchmark/plans/{plan}.toml").exists()
        return None if known else f"there is no plan {plan}"
    if "::" in target:
        file, _, test = target.partition("::")
        path = ROOT / file
        known = path.exists() and re.search(
            rf"^ *def {test}\b", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        return None if known else f"{file} has no {test}"
    if ":" in target:
        return problem_in_python(target)
    return None if (ROOT / target).exists() else f"there is no {target}"


def problem_in_python(target: str) -> str | None:
    module, name, keyword = re.fullmatch(r"([\w.]+):(\w+)(?:\((\w+)\))?", target).groups()
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        return str(error)
    if found is None:
        return f"{module} has no {name}"
    known = keyword is None or keyword in inspect.signature(found).parameters
    return None if known else f"{name} has no keyword {keyword}"


def problems(row: dict[str, str]) -> list[str]:
    targets = [*parts(row["where"]), *parts(row["verified"])]
    return [found for target in targets if (found := problem(target))]


@pytest.mark.parametrize(("document", "kind"), COUNTS)
def test_no_item_is_missing(document, kind):
    rows = [row["number"] for row in ROWS if (row["document"], row["kind"]) == (document, kind)]
    assert sorted(rows) == sorted(COUNTS[document, kind])


def test_the_numbers_are_those_of_the_documents(shared):
    survey, thesis = (
        (shared / "seeds" / f"{name}.txt").read_text(encoding="utf-8") for name in ("survey", "thesis")
    )
    display = re.compile(r"\$\$(.*?)\$\$", re.DOTALL)
    tag = re.compile(r"(?:\\quad \((\d+(?:\.\d+)?)\)|\\tag\{(\d+(?:\.\d+)?)\})\s*$")
    for document, text in (("survey", survey), ("thesis", thesis)):
        ends = [tag.search(equation.rstrip()) for equation in display.findall(text)]
        found = {end[1] or end[2] for end in ends if end}
        assert found == set(COUNTS[document, "equation"]), document
        figures = set(re.findall(r"^Figure (\d+):", text, re.MULTILINE))
        assert figures == set(COUNTS[document, "figure"]), document
    assert set(re.findall(r"^Table (\d+):", thesis, re.MULTILINE)) == set(COUNTS["thesis", "table"])
    assert not re.findall(r"^Table (\d+):", survey, re.MULTILINE)
    future = thesis[thesis.index("Concerning future work and future directions") :]
    future = future[: future.index("Code of this work")]
    assert future.count("\n- ") == len(COUNTS["thesis", "future work"])


@pytest.mark.parametrize("row", [row for row in ROWS if not row["pending"]], ids=named)
def test_what_a_row_names_is_there(row):
    assert row["what"]
    assert parts(row["where"])
    assert parts(row["verified"])
    assert problems(row) == []


def test_a_row_is_pending_only_while_something_is_missing():
    """Whoever brings the last missing part of a pending row clears its last column."""
    done = [named(row) for row in ROWS if row["pending"] and not problems(row)]
    assert done == []


def test_wrong_rows_would_be_noticed():
    assert problem("src/nearkin/nothing.py")
    assert problem("nearkin.losses.triplet:Quadruplet")
    assert problem("nearkin.nothing:Triplet")
    assert problem("tests/test_seeds_page.py::test_nothing")
    assert problem("nearkin.losses.triplet:Triplet(marginn)")
    assert problem("nearkin.losses.triplet:Triplet(margin)") is None
    assert problem("cmd: nearkin tournament --publisht thesis")
    assert problem("cmd: nearkin benchmark nothing")
    assert problem("tests/test_seeds_page.py::test_wrong_rows_would_be_noticed") is None
