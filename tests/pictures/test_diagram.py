from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from nearkin.pictures.diagram import critical_difference_diagram, rank_diagram
from nearkin.pictures.style import DARK, LIGHT
from nearkin.tournament.ranking import rank_published


@pytest.fixture(scope="module")
def standings():
    return rank_published("thesis")


def draw(standings, path, **keywords):
    test = standings.nemenyi
    return critical_difference_diagram(
        standings.ranking.averages,
        path,
        critical_difference=test.critical_difference,
        groups=test.groups,
        alpha=test.alpha,
        **keywords,
    )


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_the_diagram_names_everybody_and_is_the_same_file_each_time(standings, tmp_path, theme):
    files = [draw(standings, tmp_path / name, theme=theme) for name in ("a.svg", "b.svg")]
    svg = files[0].read_text()
    assert svg == files[1].read_text()
    ElementTree.fromstring(svg)
    for row in standings.ranking.rows:
        assert row.contender in svg
        assert f"{row.average:.2f}" in svg
    assert "critical difference 3.91" in svg
    assert svg.count(f"stroke: {theme.accent}") == len(standings.nemenyi.groups)


def test_the_diagram_is_also_a_picture(standings, tmp_path):
    with Image.open(draw(standings, tmp_path / "a.png")) as picture:
        assert picture.size[0] == 1600


def test_a_rank_diagram_keeps_order_scale_and_groups():
    averages = {"a": 1.0, "b": 2.5, "c": 3.0, "d": 3.5}
    diagram = rank_diagram(averages, critical_difference=1.25, groups=[["b", "c", "d"]])
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
    groups = [["a", "b"], ["b", "c"], ["d", "e"]]
    bars = rank_diagram(averages, critical_difference=1.25, groups=groups).bars
    assert bars[0].y == bars[2].y < bars[1].y
