from __future__ import annotations

from math import pi, radians

import pytest
import torch

from nearkin import losses
from nearkin.losses.margin_softmax import add_angle


@pytest.mark.parametrize("degrees", [0.0, 28.6, 90.0, 130.0])
def test_always_falls_with_the_angle(degrees):
    theta = torch.linspace(0, pi, 20_001, dtype=torch.float64)
    moved, slope = add_angle(torch.cos(theta), radians(degrees))
    assert (moved.diff() <= 1e-12).all()
    assert torch.isfinite(slope).all()


def test_is_the_cosine_of_the_sum_until_it_would_rise():
    m = radians(28.6)
    theta = torch.linspace(0.01, pi - m - 0.01, 100, dtype=torch.float64)
    moved, slope = add_angle(torch.cos(theta), m)
    torch.testing.assert_close(moved, torch.cos(theta + m))
    torch.testing.assert_close(slope, torch.sin(theta + m) / torch.sin(theta))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_finite_gradients_on_and_opposite_to_the_proxy(dtype):
    loss = losses.ArcFace(num_classes=3, embedding_dim=4)
    proxy = loss.proxies.detach()
    x = torch.stack([proxy[0], 7 * proxy[1], -proxy[2], torch.zeros(4)]).to(dtype).requires_grad_()
    value = loss(x, torch.tensor([0, 1, 2, 0]))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(loss.proxies.grad).all()


@pytest.mark.parametrize("wrong", [131.0, -1.0, float("nan")])
def test_margin_is_an_angle(wrong):
    with pytest.raises(ValueError, match="margin_degrees"):
        losses.ArcFace(2, 2, margin_degrees=wrong)
