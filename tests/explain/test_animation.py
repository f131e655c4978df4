from __future__ import annotations

import json
import re

import pytest
import torch
from PIL import Image

from nearkin.explain import LossChoice, animate, descend, layouts
from nearkin.pictures.style import DARK, LIGHT


@pytest.mark.parametrize("name", ["contrastive", "nca", "proxy_nca_pp", "npair"])
def test_points_go_downhill(name):
    layout = layouts.find("clusters")
    track = descend(LossChoice(name).build(3, 2), layout, steps=40)
    assert track.points.shape == (41, 21, 2)
    assert track.values[-1] < 0.5 * track.values[0]
    assert track.recalls[-1] >= track.recalls[0]
    if name != "npair":
        torch.testing.assert_close(track.points.norm(dim=2), torch.ones(41, 21))
    moves = torch.cat([track.points, track.proxies], dim=1).diff(dim=0).norm(dim=2)
    assert moves.max() <= 0.05 + 1e-6


def test_a_gif_moves(tmp_path):
    choices = [LossChoice("contrastive"), LossChoice("proxy_nca")]
    animate(choices, layouts.find("hard"), tmp_path / "a.gif", steps=4)
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.n_frames >= 5
        first = picture.convert("RGB").tobytes()
        picture.seek(4)
        assert picture.convert("RGB").tobytes() != first


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    choices = [LossChoice("soft_triple", {"proxies_per_class": 2})]
    (track,) = animate(choices, layouts.find("crowd"), tmp_path / "a.html", steps=3)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "://" not in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)
    data = json.loads(re.search(r"const data = (.*);\n", page)[1])
    assert data["panels"][0]["name"] == "soft_triple"
    torch.testing.assert_close(torch.tensor(data["panels"][0]["points"]), track.points, atol=6e-4, rtol=0)
    assert len(data["panels"][0]["proxyLabels"]) == 6
    for theme in (LIGHT, DARK):
        assert all(f"--{name}: {colour};" in page for name, colour in theme.css().items())
    assert set(re.findall(r"styleOf\([`\"]--(\w+)", page)) <= set(LIGHT.css()) | {"s"}


def test_wrong_requests_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a.mp4: pictures are written as gif, html"):
        animate([LossChoice("nca")], layouts.find("hard"), tmp_path / "a.mp4")
    with pytest.raises(ValueError, match="steps=0 must be a whole number"):
        descend(LossChoice("nca").build(2, 2), layouts.find("hard"), steps=0)
