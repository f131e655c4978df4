"""One table, four ways to read it: sorted in a browser, in Markdown, as CSV, in a paper (LaTeX, booktabs)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["entry", "baseline"]

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "−": "$-$",
        "–": "--",
        "…": r"\dots{}",
    }
)


@dataclass(frozen=True)
class Link:
    """A word and where it leads."""

    text: str
    target: str


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table.

    Attributes:
        text: What a person reads.
        value: What the column sorts by and CSV holds; the text where there is none.
        target: Where the text leads, relative to the report.
        note: Second line, smaller; in a browser only.
        links: Further links below the text; in a browser only.
        best: Set in bold.
    """

    text: str
    value: float | str | None = None
    target: str | None = None
    note: str = ""
    links: tuple[Link, ...] = ()
    best: bool = False

    @property
    def sort(self) -> float | str:
        """The value if there is one, else the text."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Column:
    """A column's title, and whether it holds numbers (set right, sorted the best first)."""

    title: str
    numeric: bool = False
    hint: str = ""
    low_is_good: bool = False


@dataclass(frozen=True)
class Row:
    """Cells from left to right, and what the row speaks of; ``anchor`` is its place in the report."""

    cells: Sequence[Cell]
    kind: Kind = "entry"
    anchor: str = ""


@dataclass(frozen=True)
class Table:
    """A titled table.

    Attributes:
        name: The name of its CSV and LaTeX files, such as ``rankings``.
        caption: Says what the numbers are.
        columns: The columns from left to right.
        rows: The rows in the order of first reading.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"table {self.name}: {len(row.cells)} cells under {len(self.columns)} columns"
                )

    def to_csv(self) -> str:
        r"""Values with all their digits, where there are any, under a line of titles.

        >>> columns = [Column("loss"), Column("recall", numeric=True)]
        >>> Table("t", "", columns, [Row([Cell("nca"), Cell("1.0", 1)])]).to_csv()
        'loss,recall\nnca,1\n'
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.title for column in self.columns])
        writer.writerows([[_csv_cell(cell) for cell in row.cells] for row in self.rows])
        return text.getvalue()

    def to_markdown(self) -> str:
        """A pipe table; names with pipes or angle brackets in them stay text."""
        lines = [
            [markdown(column.title) for column in self.columns],
            ["---:" if column.numeric else "---" for column in self.columns],
            *([_markdown_cell(cell) for cell in row.cells] for row in self.rows),
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def to_latex(self) -> str:
        r"""A ``table`` environment for ``\usepackage{booktabs}``, baselines in italics."""
        alignment = "".join("r" if column.numeric else "l" for column in self.columns)
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(self.caption)}}}",
            rf"\label{{tab:{self.name}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            " & ".join(_latex(column.title) for column in self.columns) + r" \\",
            r"\midrule",
            *(" & ".join(_latex_cell(cell, row.kind) for cell in row.cells) + r" \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, whoever wrote it.

    >>> markdown("a_b|<c>")
    'a\\_b\\|&lt;c&gt;'
    """
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in ("\\", "|", "`", "*", "_", "[", "]"):
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _markdown_cell(cell: Cell) -> str:
    text = markdown(cell.text)
    text = f"**{text}**" if cell.best else text
    return f"[{text}](<{cell.target}>)" if cell.target else text


def _csv_cell(cell: Cell) -> float | str:
    """Without what only round-off makes of a value: 100 · 0.291 is 29.1, not 29.099999999999998."""
    return round(cell.sort, 10) if isinstance(cell.sort, float) else cell.sort


def _latex(text: str) -> str:
    return " ".join(text.split()).translate(_LATEX)


def _latex_cell(cell: Cell, kind: Kind) -> str:
    text = _latex(cell.text)
    if cell.best:
        return rf"\textbf{{{text}}}"
    return rf"\textit{{{text}}}" if kind == "baseline" and text else text
