from __future__ import annotations

import pytest
import torch

from nearkin import networks
from nearkin.networks.mlp import ACTIVATIONS, Step


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("relu", lambda x: torch.where(x > 0, x, 0)),
        ("tanh", lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())),
        ("sigmoid", lambda x: 1 / (1 + (-x).exp())),
        ("step", lambda x: torch.where(x >= 0, 1.0, -1.0)),
    ],
)
def test_activations_are_the_formulas_of_the_thesis(name, formula):
    x = torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0])
    expected = formula(x)
    torch.testing.assert_close(ACTIVATIONS[name]()(x.clone()), expected)


def test_the_step_passes_gradients_on_near_0_and_stops_them_elsewhere():
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0], requires_grad=True)
    (Step()(x) * torch.arange(1.0, 6.0)).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 3.0, 4.0, 0.0]
    assert Step()(x.half()).dtype == torch.half


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_mlp_with_any_activation_learns_xor(activation):
    """What no perceptron can, one hidden layer does."""
    keywords = {"size": 2, "channels": 1, "hidden": (32,), "activation": activation}
    network = networks.build("mlp", embedding_dim=1, **keywords)
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    images = torch.cat([x, x], dim=1).view(4, 1, 2, 2) * 2 - 1
    target = torch.tensor([-1.0, -1.0, 1.0, 1.0])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (network(images)[:, 0] - target).square().mean().backward()
        optimizer.step()
    assert (network(images)[:, 0].sign() == target).all()


def test_wrong_activations_are_named():
    with pytest.raises(ValueError, match="activation='gelu' must be one of: relu, tanh, sigmoid, step"):
        networks.build("mlp", embedding_dim=2, activation="gelu")
