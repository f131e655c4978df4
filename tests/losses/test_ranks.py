"""The ranking core: tiles, memory, references, several labels, and what stands behind the soft ranks."""

from __future__ import annotations

import naive
import pytest
import torch
from live_memory import peak_bytes

from nearkin import losses
from nearkin.losses import ranks

NAMES = ["smooth_ap", "sup_ap", "recall_at_k", "pnp"]


def batch(size: int, per_class: int, dim: int = 16, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(size)
    labels = torch.arange(size) // per_class
    centres = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    return (centres[labels] + noise).to(dtype), labels[torch.randperm(size, generator=generator)]


def value_and_gradient(name: str, x: torch.Tensor, y: torch.Tensor, **keywords):
    x = x.detach().clone().requires_grad_()
    value = losses.build(name)(x, y, **keywords)
    value.sum().backward()
    return value.detach(), x.grad


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tile", [1, 300, 2**30])
def test_tiles_change_nothing(name, tile, monkeypatch):
    x, _ = batch(48, 4, dtype=torch.float64)
    y = torch.tensor([0] * 20 + [1] * 9 + [2] * 9 + list(range(3, 13)))  # unequal, and classes of one
    expected, expected_gradient = value_and_gradient(name, x, y)
    monkeypatch.setattr(ranks, "_TILE", tile)
    value, gradient = value_and_gradient(name, x, y)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["smooth_ap", "recall_at_k", "pnp"])
def test_a_gallery_is_ranked_as_loops_rank_it(name):
    """A query before a gallery is a batch in which only its first sample counts as an anchor."""
    x, y = batch(12, 4, dtype=torch.float64)
    gallery, its_labels = x[4:], y[4:]
    values = losses.build(name)(
        x[:4], y[:4], references=gallery, reference_labels=its_labels, reduction="none"
    )
    with_positive = sum(bool((its_labels == label).any()) for label in y[:4])
    for i in range(4):
        labels = [int(y[i]), *its_labels.tolist()]
        only_first = [1.0] + [0.0] * len(its_labels)
        expected = getattr(naive, name)(torch.cat([x[i : i + 1], gallery]), labels, counts=only_first)
        assert values[i].item() == pytest.approx(expected[0].item() * 4 / with_positive, abs=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_several_labels(name):
    x, y = batch(10, 2, dtype=torch.float64)
    one_hot = torch.nn.functional.one_hot(y, 12)
    value, gradient = value_and_gradient(name, x, y)
    again, same_gradient = value_and_gradient(name, x, one_hot)
    torch.testing.assert_close(again, value)
    torch.testing.assert_close(same_gradient, gradient)
    one_hot[0, 7] = one_hot[5, 7] = 1
    other, _ = value_and_gradient(name, x, one_hot)
    assert other != value


@pytest.mark.parametrize("name", NAMES)
def test_memory_grows_with_the_square_of_the_batch(name):
    """At B 1,024 one B × B × B tensor of float32 would be 4 GB; the matrices here are 4 MB each."""
    x, y = batch(1024, 4)
    x.requires_grad_()
    loss = losses.build(name)
    loss(x[:16], y[:16]).backward()
    assert peak_bytes(lambda: loss(x, y).backward()) < 60 * 2**20


def test_cold_soft_ranks_are_ranks():
    """Smooth-AP at a tiny temperature is one less average precision, PNP of order O counts negatives."""
    x, y = batch(40, 4, dtype=torch.float64)
    z = torch.nn.functional.normalize(x)
    S = z @ z.T
    lost, before = [], []
    for i in range(len(y)):
        order = [j for j in S[i].argsort(descending=True).tolist() if j != i]
        right = [rank for rank, j in enumerate(order, 1) if y[j] == y[i]]
        if right:
            lost.append(1 - sum(found / rank for found, rank in enumerate(right, 1)) / len(right))
            before.append(sum(rank - found for found, rank in enumerate(right, 1)) / len(right))
    smooth = losses.SmoothAP(temperature=1e-9)(x, y)
    assert smooth.item() == pytest.approx(sum(lost) / len(lost), abs=1e-9)
    counted = losses.PNP(form="O", temperature=1e-9)(x, y)
    assert counted.item() == pytest.approx(sum(before) / len(before), abs=1e-9)


def test_sup_ap_bounds_average_precision():
    """Whatever the batch, it is at least one less average precision."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(24, 6, generator=generator, dtype=torch.float64)
        y = torch.randint(0, 5, (24,), generator=generator)
        exact = losses.SmoothAP(temperature=1e-9)(x, y)
        assert losses.SupAP(calibration=0.0)(x, y) >= exact - 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_with_a_memory(name):
    loss = losses.CrossBatchMemory(losses.build(name), size=8)
    x, y = batch(16, 2)
    loss(x[:8], y[:8])
    x = x[8:].requires_grad_()
    loss(x, y[:8]).backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.any()


@pytest.mark.parametrize("ks", [(), (0,), (1, 2.5), (-1,)])
def test_wrong_numbers_of_neighbours_are_refused(ks):
    with pytest.raises(ValueError, match="ks="):
        losses.RecallAtK(ks=ks)


def test_differentiating_twice_is_refused():
    x, y = batch(8, 2)
    x.requires_grad_()
    values = losses.SmoothAP()(x, y, reduction="none")
    with pytest.raises(RuntimeError, match="once only"):
        torch.autograd.grad(values.sum(), x, create_graph=True)
