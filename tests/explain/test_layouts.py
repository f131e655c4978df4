from __future__ import annotations

import json

import pytest
import torch

from nearkin.explain import layouts


@pytest.mark.parametrize("name", layouts.names())
def test_named_layouts_lie_on_the_circle(name):
    layout = layouts.find(name)
    torch.testing.assert_close(layout.points.norm(dim=1), torch.ones(len(layout.points)))
    assert len(layout.names) == len(layout.labels) == len(layout.points)
    assert layout.num_classes == int(layout.labels.max()) + 1


def test_points_are_read_from_csv_and_json(tmp_path):
    rows = [
        {"x": 1, "y": 0, "label": "wren", "name": "a"},
        {"x": 0, "y": 1, "label": "gull"},
        {"x": 0.5, "y": 0.5, "label": "wren", "name": "p"},
        {"x": 3, "y": 4, "label": "gull", "kind": "proxy"},
    ]
    (tmp_path / "points.json").write_text(json.dumps(rows))
    (tmp_path / "points.csv").write_text(
        "label,x,y,name,kind\nwren,1,0,a,\ngull,0,1,,sample\nwren,0.5,0.5,p,\ngull,3,4,,proxy\n"
    )
    for file in ("points.json", "points.csv"):
        layout = layouts.find(tmp_path / file)
        assert layout.points.tolist() == [[1, 0], [0, 1], [0.5, 0.5]]
        assert layout.labels.tolist() == [0, 1, 0]
        assert layout.names == ("a", "", "p")
        assert layout.proxies[1].tolist() == [3, 4]
        assert layout.proxies[0].norm().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,y,label\n1,2,\n", "point 1 has no label"),
        ("x,y,label\n1,two,a\n", "x='1', y='two' must be numbers"),
        ("x,y,label\n", "has no points"),
        ("x,y,label,kind\n1,2,a,prxy\n", "kind='prxy' must be one of: sample, proxy"),
        ("x,y,label,kind\n1,2,a,\n1,2,b,proxy\n", "class 'b' has a proxy but no points"),
    ],
)
def test_a_wrong_file_is_explained(content, message, tmp_path):
    (tmp_path / "points.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        layouts.find(tmp_path / "points.csv")


def test_missing_files_and_names_are_explained(tmp_path):
    with pytest.raises(ValueError, match="there is no layout"):
        layouts.find(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match=r"must be one of triplet, hard, .* or a .csv or .json file"):
        layouts.find("triplets")
    (tmp_path / "points.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a list of objects"):
        layouts.find(tmp_path / "points.json")
