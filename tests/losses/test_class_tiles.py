"""Tiles of classes, and slices of them in several processes, change nothing but rounding."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses import proxy, testing, tiles

C, D = 23, 6
LABELS = torch.tensor([3, 3, 17, 22, 0, 17, 12, 3])
TILED = [
    ("softmax", {}),
    ("softmax", {"normalized": True}),
    ("proxy_nca", {}),
    ("proxy_nca_pp", {}),
    ("arcface", {}),
    ("cosface", {}),
    ("sub_center_arcface", {}),
    ("curricularface", {}),
    ("adaface", {}),
    ("soft_triple", {}),
    ("soft_triple", {"proxies_per_class": 1}),
    ("proxy_gml", {"proxies_per_class": 3, "ratio": 0.2}),
    ("proxy_gml", {"proxies_per_class": 2, "ratio": 1.0, "regularization": 0.0}),
    ("proxy_gml", {"proxies_per_class": 4, "ratio": 0.01}),
    ("proxy_anchor", {}),
    ("proxy_anchor", {"alpha": 200.0}),
]


def batch(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(LABELS), D, dtype=torch.float64, generator=generator)


def built(name: str, tile: int | None, **keywords):
    sizes = {"num_classes": C, "embedding_dim": D, "generator": torch.Generator().manual_seed(1)}
    loss = losses.build(name, **sizes, **keywords).double()
    loss.tile = tile
    return loss


def value_and_gradients(loss) -> list[torch.Tensor]:
    x = batch().requires_grad_()
    value = loss(x, LABELS)
    (value * 3).backward()
    gradient = loss.proxies.grad
    return [value.detach(), x.grad, gradient.to_dense() if gradient.is_sparse else gradient, *loss.buffers()]


@pytest.mark.parametrize("tile", [1, 5, 23, 100])
@pytest.mark.parametrize(("name", "keywords"), TILED, ids=str)
def test_tiles_change_nothing(name, keywords, tile):
    whole, tiled = built(name, None, **keywords), built(name, tile, **keywords)
    for _ in range(2):  # running means and all
        for ours, expected in zip(value_and_gradients(tiled), value_and_gradients(whole), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "keywords"), TILED, ids=str)
def test_tiles_of_sampled_classes(name, keywords):
    whole, tiled = built(name, None, sample=0.5, **keywords), built(name, 4, sample=0.5, **keywords)
    for ours, expected in zip(value_and_gradients(tiled), value_and_gradients(whole), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "keywords"), TILED, ids=str)
def test_values_without_gradients(name, keywords):
    with torch.no_grad():
        value = built(name, 4, **keywords)(batch(), LABELS)
    torch.testing.assert_close(value, built(name, None, **keywords)(batch(), LABELS))
    assert not value.requires_grad


@pytest.mark.parametrize("name", sorted({name for name, _ in TILED}))
def test_common_promises_hold_in_tiles(name):
    def make():
        loss = testing.maker(name)()
        loss.tile = 7
        return loss

    for check in testing.CHECKS:
        check(make)


@pytest.mark.parametrize("name", sorted({name for name, _ in TILED}))
def test_a_single_class(name):
    expected = None
    for tile in (None, 1):
        loss = losses.build(name, num_classes=1, embedding_dim=D).double()
        loss.tile = tile
        x = batch().requires_grad_()
        value = loss(x, torch.zeros_like(LABELS))
        value.backward()
        expected = value.detach() if expected is None else expected
        torch.testing.assert_close(value.detach(), expected)
        assert torch.isfinite(x.grad).all()


def test_many_classes_are_compared_in_tiles_by_themselves(monkeypatch):
    expected = value_and_gradients(built("arcface", None))
    seen = []
    monkeypatch.setattr(proxy, "MOST_AT_ONCE", len(LABELS) * C - 1)
    monkeypatch.setattr(proxy, "classes_of_a_tile", lambda samples, proxies: seen.append(samples) or 5)
    for ours, wanted in zip(value_and_gradients(built("arcface", None)), expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-10)
    assert seen == [len(LABELS)]


def test_what_cannot_be_divided_says_so():
    with pytest.raises(ValueError, match="ProxyRepulsion cannot be divided among processes"):
        losses.ProxyRepulsion(4, 2).shard(0, 2)
    with pytest.raises(ValueError, match="use regularization=0"):
        losses.ProxyGML(4, 2).shard(0, 2)
    alone = built("arcface", None)
    alone.shard(0, 1)
    with pytest.raises(ValueError, match="divided among processes already"):
        alone.shard(0, 1)
    with pytest.raises(ValueError, match="there are no weights or values of samples"):
        alone(batch(), LABELS, reduction="none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_proxies_are_selected_as_if_sorted(dtype):
    generator = torch.Generator().manual_seed(0)
    samples, proxies = (torch.randn(*size, D, generator=generator).to(dtype) for size in ((8,), (C, 3)))
    tiled = tiles.Tiled(built("arcface", None), LABELS, LABELS, 4, tiles.Slice(0, C), False)
    work = tiles.Work(tiled, samples, proxies, on_sphere=False)
    S = (samples @ proxies.flatten(0, 1).T).view(8, C, 3)
    S[torch.arange(8), LABELS] = -torch.inf
    ordered = S.flatten(1).sort(descending=True).values
    for n in (1, 2, 10, 66):
        assert torch.equal(work.nth_largest(n), tiles.in_order(ordered[:, n - 1 : n]))
    assert (work.nth_largest(0) > tiles.in_order(ordered[:, :1])).all()


@pytest.mark.parametrize(("name", "keywords"), TILED, ids=str)
def test_one_process_that_owns_all_classes(name, keywords):
    keywords = {**keywords, "regularization": 0.0} if name == "proxy_gml" else keywords
    alone = built(name, None, **keywords)
    alone.shard(0, 1)
    for ours, wanted in zip(
        value_and_gradients(alone), value_and_gradients(built(name, None, **keywords)), strict=True
    ):
        torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-10)
