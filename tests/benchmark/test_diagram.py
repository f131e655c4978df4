from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from PIL import Image

from nearkin.benchmark.diagram import critical_difference_diagram
from nearkin.benchmark.tournament import rank_published


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
