from __future__ import annotations

import re

import pytest

from nearkin.tournament.chronology import in_order_of_year, year_of
from nearkin.tournament.picture_files import draw_figures
from nearkin.tournament.published import published
from nearkin.tournament.ranking import rank_outcomes, rank_published

PRINTED = [
    *("contrastive", "triplet", "lifted_structure", "npair", "proxy_nca", "margin", "arcface"),
    *("multi_similarity", "soft_triple", "proxy_repulsion", "proxy_anchor"),
]


def words_of(svg: str) -> list[str]:
    return [word.strip() for word in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def test_losses_stand_in_the_order_of_their_year_as_printed():
    assert in_order_of_year(sorted(PRINTED)) == PRINTED
    assert [outcome.contender for outcome in published("thesis_table_17")] == PRINTED
    assert [year_of(name) for name in PRINTED] == [
        2006,
        2009,
        2016,
        2016,
        2017,
        2017,
        2019,
        2019,
        2019,
        2020,
        2020,
    ]
    assert in_order_of_year(["mine", "triplet"]) == ["triplet", "mine"]


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("figures")
    files = draw_figures(rank_published("thesis"), folder)
    assert sorted(files) == sorted(folder.iterdir())
    return {file.stem: file.read_text() for file in files}


def test_figures_27_to_31_are_there_and_others_after_what_they_show(figures):
    assert {f"figure_{number}" for number in range(27, 32)} <= set(figures)
    # Twelve experiments, three networks over sizes, four sizes over networks; five of these are printed.
    assert len(figures) == 12 + 3 + 4
    assert "recall-cub200-googlenet-64" in figures


def test_figure_27_shows_table_6b(figures):
    words = words_of(figures["figure_27"])
    losses = [word for word in words if word in PRINTED]
    assert losses == [name for name in PRINTED if name != "proxy_repulsion"]
    table = {
        one.contender: one.scores
        for one in published("thesis_table_6")
        if one.experiment.embedding_dim == 128
    }
    for scores in table.values():
        for value in scores.values():
            assert f"{100 * value:.1f}" in words
    assert {"Recall@1", "Recall@2", "Recall@4", "Recall@8"} <= set(words)


@pytest.mark.parametrize(("number", "network"), [(28, "resnet50"), (29, "bninception"), (30, "googlenet")])
def test_figures_28_to_30_show_every_size(figures, number, network):
    words = words_of(figures[f"figure_{number}"])
    values = [one for one in published("thesis") if one.experiment.network == network]
    assert len(values) == 40
    for one in values:
        assert f"{100 * one.scores['recall_at_1']:.1f}" in words
    legend = [word for word in words if word in {"64", "128", "512", "1024"}][-4:]  # 64 is on an axis too
    assert legend == ["64", "128", "512", "1024"]


def test_figure_31_compares_networks_at_512(figures):
    words = words_of(figures["figure_31"])
    for one in published("thesis"):
        if one.experiment.embedding_dim == 512:
            assert f"{100 * one.scores['recall_at_1']:.1f}" in words
    legend = [word for word in words if word in {"googlenet", "bninception", "resnet50"}]
    assert legend == ["googlenet", "bninception", "resnet50"]


def test_one_experiment_with_one_score_has_nothing_to_draw(tmp_path):
    assert draw_figures(rank_outcomes(published("thesis_table_16")), tmp_path) == []
