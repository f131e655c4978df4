"""What is particular to the losses of the margin core."""

from __future__ import annotations

from math import pi

import naive
import pytest
import torch

from nearkin import losses
from nearkin.losses.margin_softmax import turn
from nearkin.losses.testing import CLASSES, DIM, LABELS, batch, check_loss

SIZES = {"num_classes": CLASSES, "embedding_dim": DIM}


def assert_same(one: losses.Loss, other: losses.Loss) -> None:
    """Equal proxies, then equal values and gradients."""
    one, other = one.double(), other.double()
    other.proxies.data.copy_(one.proxies.data.view_as(other.proxies))
    x, y = batch(torch.float64).requires_grad_(), batch(torch.float64).requires_grad_()
    value, expected = one(x, LABELS), other(y, LABELS)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        one.proxies.grad.flatten(), other.proxies.grad.flatten(), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("name", ["arcface", "cosface"])
def test_without_margin_all_are_a_softmax(name):
    margin = {"margin_degrees": 0.0} if name == "arcface" else {"margin": 0.0}
    softmax = losses.build("softmax", normalized=True, scale=64.0, **SIZES)
    assert_same(losses.build(name, **margin, **SIZES), softmax)


def test_one_centre_is_arcface():
    assert_same(
        losses.build("sub_center_arcface", proxies_per_class=1, **SIZES), losses.build("arcface", **SIZES)
    )


def test_cosface_is_a_soft_triple_with_one_centre():
    cosface = losses.build("cosface", margin=0.1, scale=20.0, **SIZES)
    assert_same(cosface, losses.build("soft_triple", proxies_per_class=1, margin=0.1, **SIZES))


@pytest.mark.parametrize("quality", [-1, 0])
def test_adaface_between_arcface_and_cosface(quality):
    ada = losses.build("adaface", margin=0.4, **SIZES)
    ada.mean_length.fill_(1e9 if quality else 0)
    ada.deviation.fill_(1.0 if quality else 1e30)
    angle = 0.4 * 180 / pi
    other = losses.build("arcface", margin_degrees=angle, **SIZES) if quality else None
    assert_same(ada, other or losses.build("cosface", margin=0.4, **SIZES))


def test_curricularface_with_a_t_against_loops():
    loss = losses.build("curricularface", **SIZES).double()
    loss.t.fill_(0.37)
    x = batch(torch.float64).requires_grad_()
    value = loss(x, LABELS)
    value.backward()
    y, w = batch(torch.float64).requires_grad_(), loss.proxies.detach().clone().requires_grad_()
    expected = naive.curricularface(y, LABELS.tolist(), w, t=0.37).sum()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(loss.proxies.grad, w.grad, rtol=1e-9, atol=1e-10)


def test_t_follows_the_own_cosines_from_the_next_batch_on():
    loss = losses.build("curricularface", **SIZES)
    unit, proxies = torch.nn.functional.normalize, loss.proxies.detach()
    expected = 0.0
    for seed in range(3):
        x = batch(seed=seed)
        frozen = losses.build("curricularface", **SIZES)
        frozen.t.fill_(expected)
        assert torch.equal(loss(x, LABELS), frozen(x, LABELS))
        mean = (unit(x) * unit(proxies)[LABELS]).sum(1).mean().item()
        expected = 0.99 * expected + 0.01 * mean
        assert loss.t.item() == pytest.approx(expected, abs=1e-7)
    loss.eval()
    loss(batch(), LABELS)
    assert loss.t.item() == pytest.approx(expected, abs=1e-7)


def test_running_lengths_of_adaface():
    loss = losses.build("adaface", **SIZES)
    mu, sigma = 20.0, 100.0
    for seed in range(3):
        x = batch(seed=seed) * 5
        frozen = losses.build("adaface", **SIZES)
        frozen.mean_length.fill_(mu)
        frozen.deviation.fill_(sigma)
        assert torch.equal(loss(x, LABELS), frozen(x, LABELS))
        lengths = x.norm(dim=1)
        mu = 0.99 * mu + 0.01 * lengths.mean().item()
        sigma = 0.99 * sigma + 0.01 * lengths.std().item()
        assert loss.mean_length.item() == pytest.approx(mu, rel=1e-6)
        assert loss.deviation.item() == pytest.approx(sigma, rel=1e-6)
    loss(batch()[:1], LABELS[:1])
    assert loss.deviation.item() == pytest.approx(sigma, rel=1e-6)


def test_running_means_are_learnt_with_weights_and_values_too():
    for name in ("curricularface", "adaface"):
        plain, by_sample = losses.build(name, **SIZES), losses.build(name, **SIZES)
        plain(batch(), LABELS)
        by_sample(batch(), LABELS, reduction="none")
        for one, other in zip(plain.buffers(), by_sample.buffers(), strict=True):
            torch.testing.assert_close(one, other)


def test_the_gradient_of_adaface_is_that_with_a_constant_quality():
    """By finite differences with ẑ held fixed; the length itself has no gradient."""
    w = losses.build("adaface", **SIZES).proxies.detach().double()
    qualities = [0.333 * (row.norm().item() - 20) / 100.001 for row in batch(torch.float64)]

    def surrogate(x, labels):
        logits = 64 * torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(w).T
        for i, (own, quality) in enumerate(zip(labels.tolist(), qualities, strict=True)):
            theta = torch.acos(logits[i, own] / 64) - 0.4 * quality
            logits = logits.index_put(
                (torch.tensor([i]), torch.tensor([own])), 64 * (torch.cos(theta) - 0.4 - 0.4 * quality)
            )
        return torch.nn.functional.cross_entropy(logits, labels)

    check_loss(lambda: losses.build("adaface", **SIZES), surrogate=surrogate)


def test_turned_angles_stay_between_0_and_pi():
    theta = torch.linspace(0, pi, 1001, dtype=torch.float64)
    for angle in (-1.0, -0.4, 0.0, 0.4, 1.0):
        moved, slope = turn(torch.cos(theta), torch.full_like(theta, angle))
        torch.testing.assert_close(moved, torch.cos((theta + angle).clamp(0, pi)), rtol=0, atol=1e-7)
        assert (moved.diff() <= 1e-12).all()
        assert torch.isfinite(slope).all()


def noisy_classes() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two classes around axes 0 and 1; some samples of each lie elsewhere."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.eye(4)[[0] * 20 + [1] * 20 + [2] * 3 + [3] * 2]
    labels = torch.tensor([0] * 20 + [1] * 20 + [0] * 3 + [1] * 2)
    noise = 0.05 * torch.randn(rows.shape, generator=generator)
    return rows + noise, labels, torch.tensor([False] * 40 + [True] * 5)


def test_samples_far_from_the_dominant_centre_are_found():
    rows, labels, wrong = noisy_classes()
    loss = losses.SubCenterArcFace(2, 4, proxies_per_class=2)
    loss.proxies.data = torch.eye(4)[
        torch.tensor([[2, 0], [1, 3]])
    ]  # of class 0 the second centre is dominant
    assert loss.dominant_centres(rows, labels).tolist() == [1, 0]
    assert torch.equal(loss.far_from_dominant_centre(rows, labels), wrong)
    assert not loss.far_from_dominant_centre(rows, labels, degrees=180.0).any()
    with pytest.raises(ValueError, match="degrees=181 must be an angle"):
        loss.far_from_dominant_centre(rows, labels, degrees=181)
    with pytest.raises(ValueError, match="label 2 is out of range"):
        loss.far_from_dominant_centre(rows, labels + 1)


def test_the_cleaner_learns_from_noise():
    """Trained on the noisy labels, the centres themselves give the wrong ones away."""
    rows, labels, wrong = noisy_classes()
    loss = losses.SubCenterArcFace(2, 4, proxies_per_class=2, scale=16.0)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss(rows, labels).backward()
        optimizer.step()
    assert torch.equal(loss.far_from_dominant_centre(rows, labels, degrees=60), wrong)


def test_wrong_values_are_refused():
    with pytest.raises(ValueError, match="margin=1.6 must be at most 1.5"):
        losses.AdaFace(2, 2, margin=1.6)
    with pytest.raises(ValueError, match="momentum=2.0 must be from 0 to 1"):
        losses.CurricularFace(2, 2, momentum=2.0)
    with pytest.raises(ValueError, match="concentration=0"):
        losses.AdaFace(2, 2, concentration=0)
