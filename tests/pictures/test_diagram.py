from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from nearkin.pictures.diagram import critical_difference_diagram, rank_diagram
from nearkin.tournament.ranking import rank_published
from nearkin.tournament.standings import NemenyiTest, Ranking, RankRow


def test_the_diagram_names_everybody_and_is_the_same_file_each_time(tmp_path):
    standings = rank_published("thesis")
    files = [
        critical_difference_diagram(standings.ranking, standings.nemenyi, tmp_path / name)
        for name in ("a.svg", "b.svg")
    ]
    svg = files[0].read_text()
    assert svg == files[1].read_text()
    ElementTree.fromstring(svg)
    for row in standings.ranking.rows:
        assert row.contender in svg
        assert f"{row.average:.2f}" in svg
    assert "critical difference 3.91" in svg
    assert svg.count("stroke: #c2410c") == len(standings.nemenyi.groups)


def test_the_diagram_is_also_a_picture(tmp_path):
    standings = rank_published("thesis")
    file = critical_difference_diagram(standings.ranking, standings.nemenyi, tmp_path / "a.png")
    with Image.open(file) as picture:
        assert picture.size[0] == 1600


def ranked(averages: dict[str, float], groups: list[list[str]]) -> tuple[Ranking, NemenyiTest]:
    rows = [RankRow(name, 0, average, 0, {}) for name, average in averages.items()]
    return Ranking(rows, []), NemenyiTest(1.25, 0.05, {}, groups)


def test_a_rank_diagram_keeps_order_scale_and_groups():
    averages = {"a": 1.0, "b": 2.5, "c": 3.0, "d": 3.5}
    diagram = rank_diagram(*ranked(averages, [["b", "c", "d"]]))
    places = {mark.label: mark.x for mark in diagram.marks}
    unit = diagram.ticks[1][0] - diagram.ticks[0][0]
    assert places["b"] - places["a"] == pytest.approx(1.5 * unit, abs=0.2)
    assert diagram.ruler[1] - diagram.ruler[0] == pytest.approx(1.25 * unit, abs=0.2)
    (bar,) = diagram.bars
    assert bar.x1 < places["b"] < places["c"] < places["d"] < bar.x2
    assert places["a"] < bar.x1
    assert [mark.left for mark in diagram.marks] == [True, True, False, False]
    heights = [(mark.left, mark.y) for mark in diagram.marks]
    assert len(set(heights)) == 4
    assert max(mark.y for mark in diagram.marks) < diagram.height


def test_bars_share_a_level_where_they_do_not_overlap():
    averages = dict(zip("abcdef", (1.0, 2.0, 2.5, 4.0, 4.5, 6.0), strict=True))
    bars = rank_diagram(*ranked(averages, [["a", "b"], ["b", "c"], ["d", "e"]])).bars
    assert bars[0].y == bars[2].y < bars[1].y
