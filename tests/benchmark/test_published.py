from __future__ import annotations

import re
from importlib import resources

import pytest

from nearkin.benchmark.outcomes import Experiment
from nearkin.benchmark.published import figures_for, names, published
from nearkin.benchmark.tournament import rank_published

TABLE_11 = {
    "proxy_anchor": (12, 1.00, 0.00),
    "soft_triple": (38, 3.17, 1.19),
    "multi_similarity": (51, 4.25, 2.05),
    "contrastive": (52, 4.33, 1.72),
    "lifted_structure": (54, 4.50, 1.88),  # the thesis prints 1.89
    "margin": (70, 5.83, 1.27),
    "arcface": (79, 6.58, 2.31),
    "proxy_nca": (81, 6.75, 1.66),
    "triplet": (103, 8.58, 0.51),  # the thesis prints 8.85
    "npair": (120, 10.00, 0.00),
}


def test_table_11_follows_from_tables_6_to_8():
    rows = rank_published("thesis").ranking.rows
    found = {row.contender: (row.total, round(row.average, 2), round(row.deviation, 2)) for row in rows}
    assert found == TABLE_11
    assert list(found) == list(TABLE_11)


def test_the_slips_of_table_11_are_told_and_nothing_else():
    told = [note for note in rank_published("thesis").notes if "Table 11" in note]
    assert [re.findall(r"prints (\S+) .* give (\S+)\.$", note)[0] for note in told] == [
        ("3.16", "3.17"),
        ("1.89", "1.88"),
        ("8.85", "8.58"),
    ]


def test_no_integer_ranks_give_the_printed_deviation_of_lifted_structure():
    """Twelve ranks that sum to 54 have a whole sum of squares: none gives 1.89, so it is a slip in print."""
    possible = {round(((squares - 54**2 / 12) / 11) ** 0.5, 2) for squares in range(243, 400)}
    assert 1.88 in possible
    assert 1.89 not in possible


def test_all_of_the_thesis_has_28_experiments():
    standings = rank_published("thesis_all")
    assert len(standings.ranking.experiments) == 28
    assert [row.contender for row in standings.ranking.rows][:3] == [
        "proxy_anchor",
        "soft_triple",
        "multi_similarity",
    ]
    assert not any("Table 11" in note for note in standings.notes)


def test_an_unknown_name_gets_a_hint():
    with pytest.raises(ValueError, match="did you mean thesis"):
        published("tesis")
    assert set(names()) == {"thesis", "thesis_all"}


def test_figures_that_cannot_be_right_are_marked():
    def note(embedding_dim: int, loss: str) -> str:
        experiment = Experiment("sop", "bninception", embedding_dim, "standard")
        return figures_for(experiment, loss)[0].note

    assert "slip" in note(128, "arcface")
    assert "slip" in note(1024, "arcface")
    assert note(512, "arcface") == note(128, "triplet") == ""


def test_a_run_finds_the_figures_of_its_configuration():
    experiment = Experiment("cars196", "timm:resnet50", 128, "fixed_validation")
    found = figures_for(experiment, "margin")
    assert [figure.scores["recall_at_1"] for figure in found] == [0.796, 0.796]
    assert found[1].source.startswith("Wu et al., 2017")
    assert figures_for(Experiment("cars196", "resnet50", 96, "standard"), "margin") == []
    assert figures_for(Experiment("glyphs", "convnet", 64, "standard"), "margin") == []


def test_cross_validation_stands_beside_cross_validation_only():
    experiment = Experiment("cub200", "bninception", 512, "cross_validation")
    (figure,) = figures_for(experiment, "proxy_anchor")
    assert figure.scores == {"recall_at_1": 0.6632}
    assert "0.44" in figure.note


def test_the_thesis_table_is_the_shared_one(shared):
    ours = resources.files("nearkin.benchmark.published").joinpath("thesis_recall.csv").read_text()
    assert ours == (shared / "reference" / "thesis_recall.csv").read_text()


def test_every_other_figure_stands_in_the_thesis(shared):
    text = (shared / "seeds" / "thesis.txt").read_text()
    folder = resources.files("nearkin.benchmark.published")
    for line in ("65.40", "84.5%", "79.6%"):
        assert line in text
    for file in ("thesis_validation.csv", "papers_recall.csv"):
        for row in folder.joinpath(file).read_text().splitlines()[1:]:
            (percent,) = re.findall(r",1,(\d\d\.\d+)", row)
            assert percent in text
    for row in folder.joinpath("thesis_table11.csv").read_text().splitlines()[1:]:
        loss, total, average, deviation = row.split(",")
        name = {"npair": "NPair", "arcface": "ArcFace", "proxy_nca": "ProxyNCA"}.get(
            loss, loss.title().replace("_", "")
        )
        assert re.search(rf"{name}\t{total}\t{average}\t{deviation}\n", text)
