from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.tournament.report.tables import Cell, Column, Row, Table, markdown

COLUMNS = [Column("loss"), Column("Recall@1 %", numeric=True)]


def table(*names: str) -> Table:
    return Table("t", "Scores", COLUMNS, [Row([Cell(name), Cell("50.0", 50.004)]) for name in names])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=1))
def test_csv_gives_back_what_was_put_in(names):
    rows = list(csv.reader(io.StringIO(table(*names).to_csv())))
    assert rows[0] == ["loss", "Recall@1 %"]
    assert [row[0] for row in rows[1:]] == names
    assert all(float(row[1]) == 50.004 for row in rows[1:])


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_markdown_keeps_a_name_in_its_cell_and_runs_no_html(name):
    line = table(name).to_markdown().splitlines()[2]
    assert line.count("|") - line.count("\\|") == 3
    assert "<" not in line
    assert len(table(name).to_markdown().splitlines()) == 3


def test_markdown_links_lead_to_the_run_and_the_best_is_bold():
    cells = [Cell("a_b", target="runs/a b/"), Cell("1", 1.0, best=True)]
    line = Table("t", "", COLUMNS, [Row(cells)]).to_markdown().splitlines()[2]
    assert line == r"| [a\_b](<runs/a b/>) | **1** |"


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("proxy_anchor", r"proxy\_anchor"),
        ("50 % & more", r"50 \% \& more"),
        ("#{$}~^", r"\#\{\$\}\textasciitilde{}\textasciicircum{}"),
        ("\\input{secret}", r"\textbackslash{}input\{secret\}"),
        ("−1.2 to +0.3", "$-$1.2 to +0.3"),
    ],
)
def test_latex_escapes_what_it_would_obey(text, latex):
    assert f"{latex} & 50.0 \\\\" in table(text).to_latex()


def test_latex_uses_booktabs_and_sets_baselines_apart():
    rows = [Row([Cell("nca"), Cell("1", best=True)]), Row([Cell("pca"), Cell("2")], "baseline")]
    text = Table("scores", "Scores", COLUMNS, rows).to_latex()
    assert r"\begin{tabular}{lr}" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"nca & \textbf{1} \\" in text
    assert r"\textit{pca} & \textit{2} \\" in text


def test_a_row_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="table t: 1 cells under 2 columns"):
        Table("t", "", COLUMNS, [Row([Cell("alone")])])


def test_markdown_text_is_one_line():
    assert markdown("two\nlines") == "two lines"
