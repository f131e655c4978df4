"""Metrics: what they measure, from one matrix product and finite everywhere."""

from __future__ import annotations

import naive
import pytest
import torch
from live_memory import peak_bytes

from nearkin import losses
from nearkin.losses.metric import METRICS, Hyperbolic, find_metric
from nearkin.losses.similarity import Side, similarities

RAW = ["euclidean_raw", "hyperbolic", "signal_to_noise"]
WITH_METRIC = ["contrastive", "triplet", "supcon", "info_nce", "ranked_list"]


def rows(count: int, dim: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * 1.7


def placed(metric, left: torch.Tensor, right: torch.Tensor | None) -> torch.Tensor:
    sides = [None if side is None else Side(side) for side in (left, right)]
    return similarities(*find_metric(metric).place(*sides))


@pytest.mark.parametrize("name", RAW)
def test_nearness_is_minus_the_distance(name):
    x, others = rows(5), rows(7, seed=1)
    metric = find_metric(name)
    S = placed(name, x, others)
    expected = torch.stack([torch.stack([-naive.DISTANCES[name](a, b) for b in others]) for a in x])
    torch.testing.assert_close(metric.nearness(S), expected, rtol=1e-10, atol=1e-10)
    near, slope = metric.nearness_and_slope(S)
    torch.testing.assert_close(near, expected, rtol=1e-10, atol=1e-10)
    S = S.detach().requires_grad_()
    (derivative,) = torch.autograd.grad(metric.nearness(S).sum(), S)
    torch.testing.assert_close(derivative, torch.as_tensor(slope, dtype=S.dtype).expand_as(S))
    themselves = metric.nearness(placed(name, x, None)).diagonal()
    torch.testing.assert_close(themselves, torch.zeros_like(themselves), rtol=0, atol=1e-10)


def test_the_surveys_triplet_and_its_gradients_are_literal():
    """(5) and (6): raw embeddings, squared distances, and gradients 2(n − p), 2(p − a), 2(a − n)."""
    generator = torch.Generator().manual_seed(0)
    a, p, n = (3 * torch.randn(1, 5, dtype=torch.float64, generator=generator) for _ in range(3))
    a.requires_grad_()
    others = torch.cat([p, n]).requires_grad_()
    loss = losses.build("triplet", metric="euclidean_raw", mining="all", margin=200.0)
    value = loss(a, torch.tensor([0]), references=others, reference_labels=torch.tensor([0, 1]))
    torch.testing.assert_close(value, (a - p).square().sum() - (a - n).square().sum() + 200.0)
    value.backward()
    torch.testing.assert_close(a.grad, 2 * (n - p))
    torch.testing.assert_close(others.grad, torch.cat([2 * (p - a.detach()), 2 * (a.detach() - n)]))


def test_curvature_and_clip():
    a, b = rows(1), rows(1, seed=1)
    for c, clip in ((0.01, 1.0), (1.0, 2.3), (4.0, 0.5)):
        metric = Hyperbolic(curvature=c, clip=clip)
        expected = naive.poincare_distance(a[0], b[0], c, clip)
        assert -metric.nearness(placed(metric, a, b)).item() == pytest.approx(expected.item(), rel=1e-10)
    flat = Hyperbolic(curvature=1e-6, clip=100.0)  # nearly flat: twice the Euclidean distance
    assert -flat.nearness(placed(flat, a, b)).item() == pytest.approx(2 * (a - b).norm().item(), rel=1e-4)


@pytest.mark.parametrize("loss", WITH_METRIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hyperbolic_gradients_are_finite_at_any_length(loss, dtype):
    lengths = [0.0, 1e-38, 1e-20, 1e-6, 1.0, 2.3, 1e4, 1e19, 1e30, 1e38, 0.0, 5.0]
    x = torch.nn.functional.normalize(rows(12)) * torch.tensor(lengths, dtype=torch.float64).unsqueeze(1)
    x[11] = x[4] * 5.0  # the same direction, beyond the clip
    x = x.to(dtype).requires_grad_()
    y = torch.arange(12) // 2
    value = losses.build(loss, metric="hyperbolic")(x, y)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad).all()
    assert x.grad[0].any() or loss not in ("supcon", "info_nce")  # the centre is a place like any other


def test_hyperbolic_needs_no_tensor_of_differences():
    """B × B × D of float32 would be 2 GB."""
    x = torch.randn(1024, 512, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.arange(1024) // 4
    loss = losses.build("contrastive", metric="hyperbolic")
    loss(x[:8], y[:8]).backward()
    assert peak_bytes(lambda: loss(x, y).backward()) < 100 * 2**20
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("loss", WITH_METRIC)
@pytest.mark.parametrize("metric", [*METRICS, Hyperbolic(curvature=0.5), {"name": "hyperbolic", "clip": 1.0}])
def test_every_loss_with_a_metric_takes_them_all(loss, metric):
    x, y = rows(12).requires_grad_(), torch.arange(12) // 3
    made = losses.build(loss, metric=metric)
    value = made(x, y)
    value.backward()
    assert torch.isfinite(value)
    torch.testing.assert_close(made(x, y, reduction="none").mean(), value)
    numbers = made.pair_weights(x, y)
    assert numbers.shape == (12, 12)
    assert "metric=" in repr(made)


def test_references_are_the_other_side():
    x, y = rows(12), torch.arange(12) // 3
    for metric in METRICS:
        loss = losses.build("contrastive", metric=metric, margin=1.0)
        whole = loss(x, y, references=x[:7], reference_labels=y[:7])
        mixed = loss(x[[3, 1]], y[[3, 1]], references=x[:7], reference_labels=y[:7])
        assert torch.isfinite(whole)
        assert torch.isfinite(mixed)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("manhattan", "metric='manhattan' must be one of: cosine, squared_euclidean"),
        ({"curvature": 1.0}, "metric=None must be one of"),
        ({"name": "cosine", "clip": 1.0}, "metric 'cosine' does not take 'clip'"),
        ({"name": "hyperbolic", "clip": -1.0}, "clip=-1.0 must be a finite number above 0"),
        ({"name": "hyperbolic", "clip": 100.0}, "√curvature · clip must be at most 10"),
    ],
)
def test_wrong_metrics_are_refused(metric, message):
    with pytest.raises(ValueError, match=message):
        losses.Contrastive(metric=metric)
