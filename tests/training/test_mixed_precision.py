"""Mixed precision reaches the steps of a training and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nearkin.training import mixed_precision
from nearkin.training.mixed_precision import (
    DepthwiseInFloat32,
    MixedPrecision,
    autocast,
    steps_are_faster_in_bf16,
)

CPU = torch.device("cpu")


def depthwise(**settings) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(6, 6, 5, groups=6, **settings)


def gradients(layer: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    inputs = images.clone().requires_grad_()
    rows = layer(inputs)
    factors = torch.linspace(-1, 1, rows.numel()).view_as(rows)
    return rows, *torch.autograd.grad((rows.float() * factors).sum(), [inputs, *layer.parameters()])


@pytest.mark.parametrize(
    "settings",
    [{}, {"stride": 2, "padding": 2}, {"padding": (2, 1), "bias": False}, {"dilation": 2, "padding": 4}],
    ids=str,
)
def test_a_depthwise_convolution_is_torchs_forward_and_float32s_backward(settings):
    layer = depthwise(**settings)
    images = torch.randn(3, 6, 12, 11)
    with autocast("bf16", CPU):
        rows, *ours = gradients(layer, images)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(images)
    _, *exact = gradients(layer, images)
    assert rows.dtype == torch.bfloat16
    assert torch.allclose(rows.float(), expected.float(), atol=2e-2)
    for gradient, wanted in zip(ours, exact, strict=True):
        assert gradient.dtype == torch.float32
        scale = wanted.abs().max()
        assert (gradient - wanted).abs().max() < 0.02 * scale, "rounding of the inputs alone"


def test_the_backward_pass_multiplies_in_float32():
    """With numbers that bf16 holds exactly, both gradients are float32's to its own rounding."""
    layer = depthwise(padding=2, bias=False)
    layer.weight.data.copy_(layer.weight.bfloat16().float())
    images = torch.randn(2, 6, 9, 9).bfloat16().float()
    factors = torch.randn(2, 6, 9, 9).bfloat16()
    wanted = torch.autograd.grad(
        (layer(inputs := images.clone().requires_grad_()) * factors.float()).sum(), [inputs, layer.weight]
    )
    with autocast("bf16", CPU):
        rows = layer(inputs)
    found = torch.autograd.grad(rows, [inputs, layer.weight], factors)
    for gradient, exact in zip(found, wanted, strict=True):
        assert torch.allclose(gradient, exact, rtol=1e-5, atol=1e-5)


def test_other_convolutions_are_left_to_torch(monkeypatch):
    def refuse(*_):
        raise AssertionError("not a depthwise convolution in bf16")

    monkeypatch.setattr(mixed_precision._Depthwise, "apply", refuse)
    images = torch.randn(2, 6, 9, 9)
    with autocast("bf16", CPU):
        for layer in (
            nn.Conv2d(6, 4, 3),
            nn.Conv2d(6, 6, 3, groups=3),
            nn.Conv2d(6, 12, 3, groups=2),
            depthwise(padding="same"),
        ):
            assert layer(images).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert depthwise()(images).dtype == torch.float32
    with DepthwiseInFloat32():
        assert depthwise()(images).dtype == torch.float32


def test_a_networks_output_is_float32_and_fp32_changes_nothing():
    network = nn.Sequential(depthwise(), nn.Flatten(), nn.Linear(6 * 25, 4))
    images = torch.randn(2, 6, 9, 9)
    plain = network(images)
    assert torch.equal(MixedPrecision(network, "fp32")(images), plain)
    half = MixedPrecision(network, "bf16")(images)
    assert half.dtype == torch.float32
    assert not torch.equal(half, plain)
    assert torch.allclose(half, plain, atol=2e-2)
    assert torch.equal(network(images), plain), "the network itself is left as it was"


@pytest.mark.parametrize(
    ("capabilities", "faster"),
    [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx512_f": True}, False), ({}, False)],
)
def test_bf16_needs_the_processors_instructions(capabilities, faster, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert steps_are_faster_in_bf16() is faster
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not steps_are_faster_in_bf16(), "an older torch does not say"
