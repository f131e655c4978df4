"""What is particular to losses with proxies."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses import proxy_gml, proxy_repulsion

PROXY_LOSSES = [name for name in losses.names() if losses.describe(name).needs_classes]


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_proxies_start_from_the_generator(name):
    def proxies(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return losses.build(name, num_classes=4, embedding_dim=3, generator=generator).proxies

    assert torch.equal(proxies(1), proxies(1))
    assert not torch.equal(proxies(1), proxies(2))
    assert proxies(1).shape[0] == 4
    assert proxies(1).shape[-1] == 3


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_proxies_learn_from_embeddings_made_in_inference_mode(name):
    """As ``networks.embed`` makes them: the proxies' gradient is that of an ordinary copy."""
    with torch.inference_mode():
        embeddings = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12) % 4
    gradients = []
    for rows in (embeddings, embeddings.clone()):
        loss = losses.build(name, num_classes=4, embedding_dim=8)
        loss(rows, labels).backward()
        gradients.append(loss.proxies.grad)
    assert gradients[0].any()
    assert torch.equal(*gradients)


def test_start_of_the_proxies():
    normal = losses.build("proxy_anchor", num_classes=500, embedding_dim=128).proxies
    assert normal.std().item() == pytest.approx((2 / 500) ** 0.5, rel=0.02)
    uniform = losses.build("soft_triple", num_classes=50, embedding_dim=64).proxies
    assert uniform.abs().max().item() == pytest.approx(500**-0.5, rel=0.01)
    assert uniform.std().item() == pytest.approx(500**-0.5 / 3**0.5, rel=0.02)


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_a_single_class_is_no_problem(name):
    loss = losses.build(name, num_classes=1, embedding_dim=3)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = loss(x, torch.zeros(4, dtype=torch.long))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_repulsion_through_many_samples_stays_finite(dtype):
    loss = losses.build("proxy_repulsion", num_classes=30, embedding_dim=16)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 16, generator=generator).abs().to(dtype).requires_grad_()
    value = loss(x, torch.randint(30, (4096,), generator=generator))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(loss.proxies.grad).all()


def test_no_relations_is_the_loss_as_it_was_bit_for_bit():
    sizes = {"num_classes": 7, "embedding_dim": 5}
    plain, none = (
        losses.build("proxy_repulsion", **sizes),
        losses.build("proxy_repulsion", relations=0.0, **sizes),
    )
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 5, generator=generator), torch.randint(7, (9,), generator=generator)
    assert torch.equal(plain(x, y), none(x, y))
    assert set(none.state_dict()) == {"proxies"}
    assert not none.compares_samples


def test_relations_add_a_share_of_multi_similarity():
    loss = losses.build("proxy_repulsion", num_classes=7, embedding_dim=5, relations=0.25).double()
    plain = losses.build("proxy_repulsion", num_classes=7, embedding_dim=5).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    y = torch.randint(3, (9,), generator=generator)
    torch.testing.assert_close(loss(x, y), plain(x, y) + 0.25 * losses.build("multi_similarity")(x, y))
    assert torch.autograd.gradcheck(lambda x: loss(x, y), x)
    assert loss.compares_samples
    assert [group["name"] for group in loss.param_groups(0.1)] == ["proxies"]
    with pytest.raises(ValueError, match="relations=1.5 must be from 0 to 1"):
        losses.build("proxy_repulsion", num_classes=7, embedding_dim=5, relations=1.5)


def test_chunks_change_nothing(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 5, dtype=torch.float64, generator=generator)
    y = torch.randint(7, (9,), generator=generator)
    cases = [
        ("proxy_gml", {"proxies_per_class": 3, "ratio": 0.5}),
        ("proxy_repulsion", {"through_samples": True}),
        ("proxy_repulsion", {"through_samples": False}),
    ]

    def values_and_gradients():
        for name, keywords in cases:
            loss = losses.build(name, num_classes=7, embedding_dim=5, **keywords).double()
            value = loss(x, y)
            value.backward()
            yield value.detach()
            yield loss.proxies.grad

    whole = list(values_and_gradients())
    monkeypatch.setattr(proxy_gml, "_CHUNK", 20)
    monkeypatch.setattr(proxy_repulsion, "_CHUNK", 20)
    for chunked, at_once in zip(values_and_gradients(), whole, strict=True):
        torch.testing.assert_close(chunked, at_once)


def test_selected_proxies_are_counted_without_rounding_errors():
    assert losses.ProxyGML(100, 2, proxies_per_class=1, ratio=0.07).selected_per_sample == 7
    assert losses.ProxyGML(100, 2).selected_per_sample == 60
    assert losses.ProxyGML(3, 2).selected_per_sample == 12


def test_a_ratio_of_1_selects_every_proxy():
    loss = losses.ProxyGML(4, 2, proxies_per_class=3, ratio=1.0)
    assert loss.selected_per_sample == 12
    with pytest.raises(ValueError, match="ratio=1.01 must be at most 1"):
        losses.ProxyGML(4, 2, ratio=1.01)


def test_scale_of_a_raw_softmax_is_refused():
    with pytest.raises(ValueError, match="only means something with normalized=True"):
        losses.Softmax(3, 2, scale=4.0)


@pytest.mark.parametrize("name", ["proxy_gml", "soft_triple"])
@pytest.mark.parametrize("wrong", [0, 1.5, True])
def test_proxies_per_class_is_a_count(name, wrong):
    with pytest.raises(ValueError, match="proxies_per_class"):
        losses.build(name, num_classes=3, embedding_dim=2, proxies_per_class=wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["proxy_anchor", "proxy_nca", "arcface", "softmax", "direction_proxy_nca"])
def test_a_hundred_thousand_classes(name):
    loss = losses.build(name, num_classes=100_000, embedding_dim=128)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(180, 128, generator=generator).requires_grad_()
    value = loss(x, torch.randint(100_000, (180,), generator=generator))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(loss.proxies.grad).all()


@pytest.mark.parametrize("name", sorted({*PROXY_LOSSES} - {"direction_proxy_nca"}))  # it has more rows in S
def test_the_closed_form_is_the_value_of_the_equation(name):
    """``value`` stands for the equation, also where another road computes it."""
    loss = losses.build(name, num_classes=5, embedding_dim=4, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    S = torch.rand(7, loss.proxies.flatten(0, -2).shape[0], generator=generator, dtype=torch.float64) * 2 - 1
    labels = torch.tensor([0, 0, 1, 3, 3, 3, 4])
    S.requires_grad_()
    loss.eval()  # no running means
    loss.prepare(torch.linspace(1, 60, 7, dtype=torch.float64).unsqueeze(1))
    value = loss.value(S, labels).mean()
    measured = loss.measure(S.detach().clone(), labels, True)
    torch.testing.assert_close(measured.value, value.detach())
    torch.testing.assert_close(measured.weights, torch.autograd.grad(value, S)[0])


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_there_are_no_weights_of_pairs(name):
    loss = losses.build(name, num_classes=4, embedding_dim=3)
    with pytest.raises(ValueError, match=f"^{type(loss).__name__} is no function of the similarities of a"):
        loss.pair_weights(torch.eye(3), torch.tensor([0, 0, 1]))
