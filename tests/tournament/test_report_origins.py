"""Where the terms of runs come from, in the report."""

from __future__ import annotations

import json

from nearkin.tournament import rank_outcomes, read_outcomes
from nearkin.tournament.report import write_report
from nearkin.tournament.report.disclosure import disclosure


def with_origins(path, origins):
    file = path / "result.json"
    values = json.loads(file.read_text())
    values["disclosure"]["origins"] = origins
    file.write_text(json.dumps(values))


def test_origins_are_a_table_of_the_report_and_no_difference(make_run, tmp_path):
    common = {"optimizer.lr": "Table 3", "seed": "said", "network.pooling": "public code: both"}
    with_origins(make_run("triplet", noise=1.0), common | {"loss.margin": "Table 4"})
    with_origins(make_run("npair", noise=2.0), common | {"mining": "ours: all pairs"})
    outcomes = read_outcomes([tmp_path / "runs"]).outcomes
    table = disclosure(outcomes).origins
    found = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in table.rows}
    assert found["optimizer.lr"] == ["0.002", "Table 3", "all"]
    assert found["loss.margin"] == ["0.1", "Table 4", "triplet"]
    assert found["mining"] == ["", "ours: all pairs", "npair"]
    # What is printed comes before what the code does, what was said, and what is ours.
    assert list(found) == ["loss.margin", "optimizer.lr", "network.pooling", "seed", "mining"]
    differing = disclosure(outcomes).differing
    assert not any("origins" in row.cells[0].text for row in differing.rows)
    write_report(rank_outcomes(outcomes), tmp_path / "report", pictures=False)
    assert "Where the terms come from" in (tmp_path / "report/report.html").read_text()
    assert "| loss.margin | 0.1 | Table 4 | triplet |" in (tmp_path / "report/report.md").read_text()
    assert (tmp_path / "report/tables/origins.csv").exists()


def test_equal_terms_have_no_such_table(make_run, tmp_path):
    make_run("triplet", noise=1.0)
    make_run("npair", noise=2.0)
    outcomes = read_outcomes([tmp_path / "runs"]).outcomes
    assert disclosure(outcomes).origins is None
    write_report(rank_outcomes(outcomes), tmp_path / "report", pictures=False)
    assert "Where the terms come from" not in (tmp_path / "report/report.html").read_text()
