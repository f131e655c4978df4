"""Losses that compare a batch with its own classes and a share of the others."""

from __future__ import annotations

import copy
import itertools
from math import ceil, comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin import losses
from nearkin.losses import sampled_classes, testing
from nearkin.losses.sampled_classes import distinct_numbers, draw_classes, step_generator

C, D = 60, 6
LABELS = torch.tensor([3, 3, 17, 59, 0, 17, 42])
PROXY_LOSSES = [name for name in losses.names() if losses.describe(name).needs_classes]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(len(LABELS), D, generator=generator(seed))


def built(name: str, **keywords):
    return losses.build(name, num_classes=C, embedding_dim=D, generator=generator(1), **keywords)


def value_and_gradients(loss, x=None):
    x = (batch() if x is None else x).clone().requires_grad_()
    value = loss(x, LABELS)
    value.backward()
    return value.detach(), x.grad, loss.proxies.grad


@given(
    labels=st.lists(st.integers(0, 29), min_size=1, max_size=40),
    share=st.floats(0.001, 1),
    seed=st.integers(0, 999),
)
@settings(max_examples=60)
def test_the_own_classes_and_as_many_others_as_asked_for(labels, share, seed):
    chosen = draw_classes(torch.tensor(labels), 30, share, generator(seed))
    own = set(labels)
    assert own <= set(chosen.tolist())
    assert len(chosen) == len(own) + ceil(share * (30 - len(own)))
    assert (chosen.diff() > 0).all()
    assert chosen.min() >= 0
    assert chosen.max() < 30


@pytest.mark.parametrize(("count", "limit"), [(2, 40), (9, 40), (30, 40), (40, 40), (0, 5), (5, 5)])
def test_every_number_is_drawn_equally_often(count, limit):
    draws = [distinct_numbers(count, limit, generator(seed)) for seed in range(1000)]
    assert all(len(set(one.tolist())) == count for one in draws)
    times = torch.bincount(torch.cat(draws), minlength=limit)
    expected = 1000 * count / limit
    assert (times - expected).abs().max() <= 5 * max(expected, 1) ** 0.5


def test_a_slice_of_the_classes():
    chosen = draw_classes(torch.tensor([2, 25, 21]), 10, 0.2, generator(), first=20)
    assert {21, 25} <= set(chosen.tolist())
    assert len(chosen) == 2 + 2
    assert ((chosen >= 20) & (chosen < 30)).all()


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_a_sample_of_1_is_the_dense_loss_bit_for_bit(name):
    for ours, dense in zip(
        value_and_gradients(built(name, sample=1.0)), value_and_gradients(built(name)), strict=True
    ):
        assert torch.equal(ours, dense)


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_a_sampled_loss_is_the_dense_loss_of_the_chosen_classes(name):
    """Value and gradients; the gradient of the proxies has the chosen rows and no others."""
    loss = built(name, sample=0.3)
    seed, step = loss.draws.tolist()
    chosen = draw_classes(LABELS, C, 0.3, step_generator(seed, step))
    value, to_embeddings, to_proxies = value_and_gradients(loss)
    assert len(chosen) == 5 + ceil(0.3 * 55)
    assert to_proxies.is_sparse
    assert torch.equal(to_proxies.coalesce().indices()[0], chosen)

    alone = losses.build(name, num_classes=len(chosen), embedding_dim=D)
    alone.proxies.data = loss.proxies.detach()[chosen].clone()
    x = batch().requires_grad_()
    expected = alone(x, torch.searchsorted(chosen, LABELS))
    expected.backward()
    assert torch.equal(value, expected)
    assert torch.equal(to_embeddings, x.grad)
    assert torch.equal(to_proxies.to_dense()[chosen], alone.proxies.grad)


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_values_and_weights_of_samples(name):
    values = built(name, sample=0.3)(batch(), LABELS, reduction="none")
    mean = built(name, sample=0.3)(batch(), LABELS)
    torch.testing.assert_close(values.mean(), mean, rtol=1e-4, atol=1e-5)
    weighted = built(name, sample=0.3)(batch(), LABELS, weights=torch.ones(len(LABELS)))
    torch.testing.assert_close(weighted, mean, rtol=1e-4, atol=1e-5)


def test_evaluation_compares_with_all():
    loss = built("arcface", sample=0.1).eval()
    assert torch.equal(loss(batch(), LABELS), built("arcface")(batch(), LABELS))
    assert loss.draws[1] == 0


def test_every_step_draws_others_and_a_restored_loss_the_same():
    loss = built("softmax", sample=0.2)
    rows = [value_and_gradients(loss)[2].coalesce().indices()[0]]
    loss.proxies.grad = None
    state = {name: tensor.clone() for name, tensor in loss.state_dict().items()}
    copied = copy.deepcopy(loss)
    rows.append(value_and_gradients(loss)[2].coalesce().indices()[0])
    assert not torch.equal(*rows)
    restored = built("softmax", sample=0.2)
    restored.load_state_dict(state)
    for other in (restored, copied):
        assert torch.equal(value_and_gradients(other)[2].coalesce().indices()[0], rows[1])
    other_seed = losses.build("softmax", num_classes=C, embedding_dim=D, generator=generator(2), sample=0.2)
    assert not torch.equal(value_and_gradients(other_seed)[2].coalesce().indices()[0], rows[0])


def test_gradients_of_several_batches_add_up():
    loss, dense = built("proxy_anchor", sample=0.2), torch.zeros(C, D)
    for seed in range(3):
        alone = copy.deepcopy(loss)
        alone.proxies.grad = None
        dense += value_and_gradients(alone, batch(seed))[2].to_dense()
        value_and_gradients(loss, batch(seed))
    torch.testing.assert_close(loss.proxies.grad.to_dense(), dense)


def test_the_mean_gradient_is_that_over_all_sets():
    """Simulation against every possible set of other classes."""
    small, labels = 9, torch.tensor([0, 4, 4])
    x = torch.randn(3, 4, generator=generator(), dtype=torch.float64)

    def gradient(loss, chosen):
        rows, y = loss.proxies.detach()[chosen].requires_grad_(), torch.searchsorted(chosen, labels)
        logits = 16 * torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(rows).T
        (found,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y), rows)
        return torch.zeros(small, 4, dtype=torch.float64).index_copy(0, chosen, found)

    def sampled(**keywords):
        return losses.build(
            "softmax", num_classes=small, embedding_dim=4, normalized=True, sample=0.4, **keywords
        ).double()

    loss, others = sampled(), [1, 2, 3, 5, 6, 7, 8]
    sets = [torch.tensor(sorted([0, 4, *some])) for some in itertools.combinations(others, 3)]
    assert len(sets) == comb(7, ceil(0.4 * 7))
    expected = torch.stack([gradient(loss, chosen) for chosen in sets]).mean(0)
    found = []
    for _ in range(800):
        loss.proxies.grad = None
        loss(x, labels).backward()
        found.append(loss.proxies.grad.to_dense())
    mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / len(found) ** 0.5
    assert ((mean - expected).abs() <= 5 * error + 1e-12).all()


def test_the_mean_gradient_is_the_documented_one():
    """With many drawn classes: the dense gradient in which others count ``share`` times."""
    many, share = 2000, 0.25
    labels = torch.arange(0, many, 10)
    x = torch.randn(len(labels), 8, generator=generator(), dtype=torch.float64).requires_grad_()
    keywords = {"num_classes": many, "embedding_dim": 8, "normalized": True, "scale": 4.0}
    loss = losses.build("softmax", sample=share, **keywords).double()
    count = torch.full((many,), share, dtype=torch.float64)
    count[labels] = 1
    proxies = loss.proxies.detach().clone().requires_grad_()
    logits = 4 * torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(proxies).T
    documented = torch.nn.functional.cross_entropy(logits + count.log(), labels)
    expected = torch.autograd.grad(documented, [x, proxies], retain_graph=True)
    sums = [torch.zeros_like(one) for one in expected]
    for _ in range(300):
        to_x, to_proxies = torch.autograd.grad(loss(x, labels), [x, loss.proxies])
        sums[0] += to_x / 300
        sums[1] += to_proxies.to_dense() / 300
    dense = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), [x, proxies])
    for mean, wanted, of_all in zip(sums, expected, dense, strict=True):
        assert (mean - wanted).norm() <= 0.005 * wanted.norm()
        assert (mean - wanted).norm() <= 0.3 * (mean - of_all).norm()  # and not that of all classes


CHECKS = [
    check
    for check in testing.CHECKS
    # Of sparse gradients autograd knows no numerical derivative; the checks themselves want dense ones.
    if check
    not in (
        testing.check_gradient_is_the_derivative,
        testing.check_gradients_reach_embeddings_and_parameters,
        testing.check_gradient_grows_with_the_loss,
    )
]


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_common_promises(name):
    for check in CHECKS:
        check(testing.maker(name, sample=0.3))


@pytest.mark.parametrize("wrong", [0, -0.1, 1.1, float("nan")])
def test_a_share_is_a_share(wrong):
    with pytest.raises(ValueError, match=f"sample={wrong} must be above 0 and at most 1"):
        built("arcface", sample=wrong)


def test_a_loss_without_proxies_has_none_to_sample():
    with pytest.raises(ValueError, match="sample=0.5: loss 'triplet' has no proxies"):
        losses.build("triplet", sample=0.5)


def test_print_tells_the_share():
    assert "sample=0.25" in repr(built("arcface", sample=0.25))
    assert "sample" not in repr(built("arcface"))


def test_drawing_costs_what_is_drawn(monkeypatch):
    """No permutation of a million classes for a hundred of them."""
    monkeypatch.setattr(sampled_classes.torch, "randperm", None)
    assert len(draw_classes(torch.arange(8), 10**9, 1e-7, generator())) == 8 + 100
