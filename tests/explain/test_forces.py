from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from nearkin import losses
from nearkin.explain import LossChoice, draw_forces, every_loss, forces, layouts
from nearkin.explain.layouts import Layout
from nearkin.pictures.style import LIGHT


def three_points() -> Layout:
    """Anchor, positive and negative of which one triplet only is active: (a, p, n)."""
    return Layout(
        torch.tensor([[0.0, 0.0], [0.9, 0.3], [-0.2, 0.8]]),
        torch.tensor([0, 0, 1]),
        ("a", "p", "n"),
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
    )


def test_the_plane_shows_the_surveys_equation_6():
    layout = three_points()
    a, p, n = layout.points
    loss = losses.build("triplet", metric="squared_euclidean", mining="all", margin=0.1)
    drawn = forces(loss, layout, "plane").on_points
    torch.testing.assert_close(drawn, -2 * torch.stack([n - p, p - a, a - n]))


def test_in_the_plane_proxies_pull_along_lines():
    layout = three_points()
    found = forces(losses.build("proxy_nca", num_classes=2, embedding_dim=2), layout, "plane")
    x, w = layout.points.clone().requires_grad_(), layout.proxies.clone().requires_grad_()
    squared = torch.cdist(x, w).square()
    own = squared.gather(1, layout.labels.unsqueeze(1))
    other = squared.gather(1, 1 - layout.labels.unsqueeze(1))
    (9 * (own - other)).mean().backward()
    torch.testing.assert_close(found.on_points, -x.grad)
    torch.testing.assert_close(found.on_proxies, -w.grad)


@pytest.mark.parametrize("choice", every_loss(), ids=lambda choice: choice.name)
def test_forces_on_the_circle_are_what_a_small_step_says(choice):
    crowd = layouts.find("crowd")
    layout = Layout(crowd.points.double(), crowd.labels, crowd.names, crowd.proxies.double())
    if choice.name == "margin":
        choice = LossChoice("margin", {"mining": "all"})  # its own mining draws anew each time
    loss = choice.build(3, 2).double().eval()  # running means stay as they are
    found = forces(loss, layout)
    if loss.on_sphere:
        radial = (found.on_points * layout.points).sum(dim=1)
        torch.testing.assert_close(radial, torch.zeros_like(radial), atol=1e-9, rtol=0)
    if loss.stops_gradients:
        return  # its forces are not the slopes of its value
    step = 1e-6
    for index, place in ((0, 0), (2, 1), (6, 0)):
        values = []
        for sign in (1, -1):
            moved = layout.points.clone()
            moved[index, place] += sign * step
            values.append(loss(moved, layout.labels).item())
        slope = (values[0] - values[1]) / (2 * step)
        assert -slope == pytest.approx(found.on_points[index, place].item(), abs=1e-5)


def test_proxies_stand_where_the_layout_wants_them():
    layout = layouts.find("triplet")
    one = losses.build("proxy_anchor", num_classes=2, embedding_dim=2)
    assert torch.equal(forces(one, layout).proxies, layout.proxies)
    several = losses.build("soft_triple", num_classes=2, embedding_dim=2, proxies_per_class=3)
    found = forces(several, layout)
    assert found.proxy_labels.tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(found.proxies[[1, 4]], layout.proxies)
    torch.testing.assert_close(found.proxies.norm(dim=1), torch.ones(6))


def test_a_content_loss_has_no_force():
    assert forces(losses.build("multi_similarity"), layouts.find("easy")).longest == 0


def test_the_grid_is_written_as_its_name_says(tmp_path):
    choices = [LossChoice.parse(text) for text in ("contrastive", "triplet:margin=0.3", "proxy_anchor")]
    layout = layouts.find("triplet")
    assert len(draw_forces(choices, layout, tmp_path / "forces.png")) == 3
    with Image.open(tmp_path / "forces.png") as picture:
        assert picture.width > 600
    for name in ("once.svg", "twice.svg"):
        draw_forces(choices, layout, tmp_path / name)
    assert ElementTree.parse(tmp_path / "once.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "once.svg").read_bytes() == (tmp_path / "twice.svg").read_bytes()
    used = set(re.findall(r"#[0-9a-f]{6}", (tmp_path / "once.svg").read_text(encoding="utf-8")))
    assert {LIGHT.positive, LIGHT.negative} < used <= set(LIGHT.css().values())
    draw_forces(choices[:1], layout, tmp_path / "forces.pdf", space="plane")
    assert (tmp_path / "forces.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ValueError, match=r"forces.bmp: pictures are written as png, svg, pdf"):
        draw_forces(choices, layout, tmp_path / "forces.bmp")


def test_an_unknown_space_is_refused():
    with pytest.raises(ValueError, match="space='sphere' must be one of: circle, plane"):
        forces(losses.build("triplet"), layouts.find("triplet"), "sphere")
