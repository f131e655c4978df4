from __future__ import annotations

import json
import statistics

import pytest

from nearkin.protocols.audit import Audit
from nearkin.tournament import rank_outcomes, read_outcomes
from nearkin.tournament.audits import AuditedRun, audited_boards
from nearkin.tournament.report import write_report


def write_audit(path, chosen: int, scores: list[float], first: int = 1) -> None:
    rows = [{"epoch": epoch, "recall_at_1": score} for epoch, score in enumerate(scores)]
    audit = {"label": "x", "rule": "x", "chosen": chosen, "first": first, "epochs": rows}
    (path / "audit.json").write_text(json.dumps(audit))


def test_gap_peak_and_unrest_by_hand():
    rows = {epoch: {"recall_at_1": score} for epoch, score in enumerate([0.1, 0.5, 0.7, 0.6, 0.64])}
    run = AuditedRun.of(Audit(chosen=4, first=1, rows=rows), "recall_at_1", seed=0)
    assert (run.chosen, run.best, run.last) == ((4, 0.64), (2, 0.7), 0.64)
    assert run.gap == pytest.approx(0.06)
    assert run.peak == pytest.approx(0.7 - (0.5 + 0.6) / 2)
    assert run.unrest == pytest.approx(statistics.stdev([0.6, 0.64]))
    # Of equals the earlier epoch is the best; the untrained network counts where it may be selected.
    rows[0] = {"recall_at_1": 0.7}
    assert AuditedRun.of(Audit(4, 0, rows), "recall_at_1", seed=0).best == (0, 0.7)
    assert AuditedRun.of(Audit(9, 0, rows), "recall_at_1", seed=0) is None


@pytest.fixture
def standings(make_run, tmp_path):
    for seed in (0, 1):
        write_audit(make_run("triplet", noise=1.0, seed=seed), 2, [0.1, 0.5, 0.60, 0.61])
        write_audit(make_run("npair", noise=1.5, seed=seed), 3, [0.1, 0.5, 0.70, 0.59])
    make_run("margin", noise=2.0)  # not audited
    return rank_outcomes(read_outcomes([tmp_path / "runs"]).outcomes)


def test_contenders_with_their_gaps_and_orders(standings):
    (board,) = audited_boards(standings)
    found = {one.contender: one for one in board.contenders}
    assert set(found) == {"triplet", "npair"}
    assert found["triplet"].gap.value == pytest.approx(0.01)
    assert found["npair"].gap.value == pytest.approx(0.11)
    assert board.order_as_selected == ["triplet", "npair"]
    assert board.order_as_claimed == ["npair", "triplet"]


def test_the_report_answers_the_four_questions(standings, tmp_path):
    page = write_report(standings, tmp_path / "report", pictures=False)
    text = (tmp_path / "report/report.md").read_text()
    assert "Audit: what choosing on test would have claimed" in page.read_text()
    assert text.count("?* ") == 4
    assert "would have claimed 6.00 points more" in text  # the mean of 1 and 11
    assert "most with npair, 11.00" in text
    assert "The order of the losses would have been another one: triplet and npair moved" in text
    assert "none of their settings was swept" in text
    assert (tmp_path / "report/tables/audit-1.csv").exists()


def test_runs_without_an_audit_have_no_such_section(make_run, tmp_path):
    make_run("triplet", noise=1.0)
    make_run("npair", noise=1.0)
    page = write_report(
        rank_outcomes(read_outcomes([tmp_path / "runs"]).outcomes), tmp_path / "report", pictures=False
    )
    assert "Audit" not in page.read_text()
