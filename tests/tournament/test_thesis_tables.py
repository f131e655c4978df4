"""Every table of the thesis that has scores, as data that can be ranked, against its text."""

from __future__ import annotations

import re
import statistics

import pytest

from nearkin.losses.base import registry
from nearkin.tournament.published import VALIDATION, names, published, table_15
from nearkin.tournament.ranking import rank_published

PRINTED = {
    "contrastive": "Contrastive",
    "triplet": "Triplet",
    "lifted_structure": "LiftedStructure",
    "npair": "NPair",
    "proxy_nca": "ProxyNCA",
    "margin": "Margin",
    "arcface": "ArcFace",
    "multi_similarity": "MultiSimilarity",
    "soft_triple": "SoftTriple",
    "proxy_repulsion": "OurLoss",
    "proxy_anchor": "ProxyAnchor",
}


@pytest.fixture(scope="module")
def thesis(shared) -> str:
    text = (shared / "seeds" / "thesis.txt").read_text(encoding="utf-8")
    return text[text.index("2.3 Deep Metric Learning\n\nFollowing") :]  # behind the list of tables


def body_of(thesis: str, number: int) -> str:
    start = thesis.index(f"\nTable {number}:")
    return thesis[start : thesis.index("\n\n", thesis.index("\t", start))]


@pytest.mark.parametrize(
    ("number", "places"), [(17, (1, 2, 4, 8)), (18, (1, 2, 4, 8)), (19, (1, 10, 100, 1000))]
)
def test_tables_17_to_19_have_the_own_loss_and_every_cell(thesis, number, places):
    lines = body_of(thesis, number).splitlines()
    outcomes = published(f"thesis_table_{number}")
    assert [one.contender for one in outcomes] == list(PRINTED)
    for one in outcomes:
        cells = [f"{100 * one.scores[f'recall_at_{k}']:.2f}" for k in places]
        assert "\t".join([PRINTED[one.contender], *cells]) in lines
    rows = rank_published(f"thesis_table_{number}").leaderboards[0].places
    # Behind ProxyAnchor and SoftTriple, before MultiSimilarity, on all three data sets.
    assert [place.contender for place in rows[1:4]] == ["soft_triple", "proxy_repulsion", "multi_similarity"]


def test_table_13_and_the_mean_of_its_folds_in_table_12(thesis):
    outcomes = published("thesis_table_13")
    lines = body_of(thesis, 13).splitlines()
    for number, one in enumerate(outcomes, 1):
        assert one.contender == f"fold {number}"
        assert f"{number}\t{100 * one.scores[VALIDATION]:.2f}\t{100 * one.scores['recall_at_1']:.2f}" in lines
    test = [100 * one.scores["recall_at_1"] for one in outcomes]
    (printed,) = (one for one in published("thesis_table_12") if one.contender == "multi_similarity")
    assert statistics.fmean(test) == pytest.approx(100 * printed.scores["recall_at_1"], abs=0.0051)
    assert statistics.stdev(test) == pytest.approx(0.59, abs=0.006)  # n − 1
    assert "standard deviation 0.59" in printed.description


def test_table_14_was_chosen_by_its_test_score(thesis):
    outcomes = published("thesis_table_14")
    lines = body_of(thesis, 14).splitlines()
    for one in outcomes:
        split = one.contender.removeprefix("split ")
        assert f"{split}\t{100 * one.scores[VALIDATION]:.2f}\t{100 * one.scores['recall_at_1']:.2f}" in lines
    assert len(outcomes) == 4
    assert max(outcomes, key=lambda one: one.scores["recall_at_1"]).contender == "split 90/10"
    assert max(outcomes, key=lambda one: one.scores[VALIDATION]).contender == "split 95/5"
    by_validation = rank_published("thesis_table_14", metric=VALIDATION)
    assert by_validation.leaderboards[0].places[0].contender == "split 95/5"
    assert any("the test classes chose it" in note for note in by_validation.notes)


def test_table_15_has_every_row_and_its_grid(thesis):
    text = body_of(thesis, 15)
    rows = table_15()
    assert len(rows) == 11
    for row in rows:
        bracket = "[" if row.low_included else "("
        span = re.escape(bracket) + r"[0.]+1?, ?[0.1]+\]"
        numbers = [f"{value:.10f}".rstrip("0").rstrip(".") for value in (row.step, row.best)]
        assert re.search(f"{row.printed_as}\t{span}\t{numbers[0]}\t{numbers[1]}", text), row
        assert (
            row.keyword == "lr"
            or row.keyword in registry.get(row.loss).search_space
            or row.keyword == "gamma"
        )
        assert row.values()[-1] == pytest.approx(row.high)
    off = [row for row in rows if row.best not in row.values()]
    assert [(row.loss, row.keyword, row.best) for row in off] == [("soft_triple", "gamma", 58)]
    assert "not on the grid" in off[0].note
    # 11 + 50 + 50 + 11 trials for multi-similarity, one hyperparameter after the other.
    assert sum(len(row.values()) for row in rows if row.loss == "multi_similarity") == 122


def test_table_15_is_ranked_by_the_scores_of_table_16():
    standings = rank_published("thesis_table_15")
    places = standings.leaderboards[0].places
    assert [place.contender for place in places] == ["proxy_anchor", "soft_triple", "multi_similarity"]
    assert "scale α 18 of (0, 100], step 2" in places[2].outcomes[0].description
    assert sum(note.startswith("soft_triple:") for note in standings.notes) == 5


@pytest.mark.parametrize("name", sorted(names()))
def test_every_published_name_can_be_ranked_and_says_what_it_is(name):
    standings = rank_published(name)
    assert standings.leaderboards
    assert names()[name]


def test_any_of_them_is_chosen_on_the_command_line(nearkin, tmp_path):
    code, out, _ = nearkin("tournament", "--published", "thesis_table_17")
    assert code == 0
    assert "proxy_repulsion" in out
    code, _, _ = nearkin("tournament", "--published", "thesis_table_6", "--output", tmp_path / "six")
    assert code == 0
    assert (tmp_path / "six/figures/figure_27.svg").exists()
    assert (tmp_path / "six/figures/figure_28.svg").exists()
