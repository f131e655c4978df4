from __future__ import annotations

from nearkin.tournament.outcomes import Experiment, Outcome
from nearkin.tournament.ranking import rank_outcomes
from nearkin.tournament.report import write_report
from nearkin.tournament.standings import Standings


def standings(*sizes: int) -> Standings:
    return rank_outcomes(
        Outcome(
            Experiment("glyphs", "convnet", size, "standard"), loss, "run", {"recall_at_1": recall}, "runs"
        )
        for size in sizes
        for loss, recall in {"nca": 0.7, "npair": 0.6}.items()
    )


def test_tables_of_an_earlier_report_go_and_those_of_others_stay(tmp_path):
    write_report(standings(8, 16, 32), tmp_path, pictures=False)
    tables = tmp_path / "tables"
    before = {file.name for file in tables.iterdir()}
    (tables / "leaderboard_9.csv").write_text("mine")
    (tables / "notes.txt").write_text("mine")
    write_report(standings(8), tmp_path, pictures=False)
    after = {file.name for file in tables.iterdir()}
    assert {"leaderboard_1.csv", "leaderboard_2.csv", "leaderboard_3.tex"} <= before
    assert "leaderboard_1.csv" in after
    assert not after & {"leaderboard_2.csv", "leaderboard_3.tex", "ranks_per_experiment.csv"}
    assert {"leaderboard_9.csv", "notes.txt"} <= after


def test_a_page_that_is_not_ours_says_nothing_about_files(tmp_path):
    (tmp_path / "tables").mkdir()
    mine = tmp_path / "tables" / "mine.csv"
    mine.write_text("1")
    (tmp_path / "report.html").write_text('<a href="tables/mine.csv">CSV</a>')
    write_report(standings(8), tmp_path, pictures=False)
    assert mine.read_text() == "1"
