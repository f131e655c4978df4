"""The section on fewer labels: a row per contender, a column per share, and the start beside them."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from nearkin.tournament.outcomes import read_outcomes
from nearkin.tournament.ranking import rank_outcomes
from nearkin.tournament.report import write_report
from nearkin.tournament.report.supervision import supervision
from nearkin.tournament.report.wording import Links
from nearkin.training import Run
from nearkin.training.result import Start

SHARES = {"0.1": 1.6, "0.5": 1.2, "1.0": 0.8}


@pytest.fixture
def standings(make_run, tmp_path):
    for loss, worse in (("triplet", 0.2), ("margin", 0.0)):
        for share, noise in SHARES.items():
            for seed in (0, 1):
                protocol = {"name": "semi_supervised", "labelled_classes": float(share)}
                run = Run.existing(make_run(loss, noise=noise + worse, seed=seed, protocol=protocol))
                start = Start("frozen features", replace(run.result.test, recall_at={1: 0.125}))
                run.write_result(replace(run.result, start=start))
    for noise, share in (("uniform", 0.2), ("nearest", 0.4)):
        make_run("npair", noise=1.0, protocol={"name": "noisy_labels", "share": share, "noise": noise})
    make_run("margin", noise=1.0, protocol={"name": "unsupervised"}, **{"unlabelled.name": "instance"})
    make_run("margin", noise=1.0, protocol={"name": "standard"})
    return rank_outcomes(read_outcomes([tmp_path / "runs"]).outcomes)


def test_scores_stand_in_the_column_of_their_share(standings, tmp_path):
    sections = {
        section.title.partition(" ·")[0]: section
        for section in supervision(standings, Links(standings, tmp_path))
    }
    assert set(sections) == {
        "labelled classes, %",
        "wrong labels (uniform), %",
        "wrong labels (nearest), %",
    }
    labelled = sections["labelled classes, %"]
    assert [column.title for column in labelled.table.columns] == ["contender", "0", "10", "50", "100"]
    for row in labelled.table.rows:
        name = row.cells[0].text
        for column, cell in zip(labelled.table.columns[1:], row.cells[1:], strict=True):
            if name == "frozen features":
                assert cell.value == 12.5
                continue
            expected = [
                100 * place.scores[standings.metric]
                for board in standings.leaderboards
                for place in board.places
                if place.contender == name and _share(place) == float(column.title)
            ]
            assert [cell.value] == (expected or [None])
            assert (" (" in cell.text) == bool(expected)  # the interval
    assert labelled.chart is not None
    assert sections["wrong labels (uniform), %"].chart is None
    (curve,) = [panel.lines[0] for panel in labelled.chart.panels if panel.label == "triplet"]
    assert len(curve.split()) == 3


def _share(place):
    protocol = place.outcomes[0].terms.settings["protocol"]
    if protocol["name"] == "unsupervised":
        return 0.0
    return 100 * protocol["labelled_classes"] if protocol["name"] == "semi_supervised" else None


def test_the_page_has_the_section_and_its_tables(standings, tmp_path):
    page = write_report(standings, tmp_path / "report", pictures=False)
    text = page.read_text(encoding="utf-8")
    assert 'id="supervision"' in text
    assert "labelled classes, %" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    files = sorted((tmp_path / "report" / "tables").glob("supervision_*.csv"))
    assert len(files) == 3
    with files[0].open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["contender", "0", "10", "50", "100"]
    assert ["frozen features", *["12.5"] * 4] in rows
