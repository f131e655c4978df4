from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import losses
from nearkin.losses.modifiers import CrossBatchMemory, Matryoshka
from nearkin.losses.testing import check_loss

CLASSES, DIM, SIZES, WEIGHTS = 5, 8, (8, 3, 2), (1.0, 0.5, 2.0)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 0, 4])


def batch(seed=0, dtype=torch.float64):
    return torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def build(name, dim=DIM):
    return losses.build(
        name, num_classes=CLASSES, embedding_dim=dim, generator=torch.Generator().manual_seed(3)
    ).double()


def of_prefixes(name, x, proxies):
    """The sum over sizes, each by a loss of that size whose proxies are the first columns of all."""
    total = 0
    for size, weight in zip(SIZES, WEIGHTS, strict=True):
        small = build(name, size)
        if proxies is not None:
            del small.proxies
            small.proxies = proxies[..., :size]
        total = total + weight * small(x[:, :size], LABELS)
    return total


def draws(name):
    loss = build(name)
    return len({loss(batch(), LABELS).item() for _ in range(4)}) > 1


@pytest.mark.parametrize("name", [name for name in losses.names() if not draws(name)])
def test_value_and_gradients_are_those_of_losses_of_the_smaller_sizes(name):
    loss = Matryoshka(build(name), SIZES, WEIGHTS)
    x = batch().requires_grad_()
    proxies = getattr(loss.loss, "proxies", None)
    whole = None if proxies is None else proxies.detach().clone().requires_grad_()
    value, expected = loss(x, LABELS), of_prefixes(name, x, whole)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad(value, [x] if proxies is None else [x, proxies])
    wanted = torch.autograd.grad(expected, [x] if whole is None else [x, whole])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_against_plain_loops():
    x = batch().requires_grad_()
    value = Matryoshka(losses.build("contrastive", margin=0.2), SIZES, WEIGHTS)(x, LABELS)
    total = 0
    for size, weight in zip(SIZES, WEIGHTS, strict=True):
        z = normalize(x[:, :size])
        pulls, pushes = [], []
        for i in range(len(z)):
            for j in range(len(z)):
                s = z[i] @ z[j]
                if i != j and LABELS[i] == LABELS[j]:
                    pulls.append(1 - s)
                if LABELS[i] != LABELS[j] and s > 0.2:
                    pushes.append(s - 0.2)
        total = total + weight * (sum(pulls) / len(pulls) + sum(pushes) / len(pushes))
    torch.testing.assert_close(value, total, rtol=1e-10, atol=1e-10)
    (found,), (expected,) = torch.autograd.grad(value, x), torch.autograd.grad(total, x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["multi_similarity", "proxy_anchor", "soft_triple"])
def test_one_size_that_is_the_whole_is_the_loss_itself(name):
    x = batch().requires_grad_()
    bare, around = build(name), Matryoshka(build(name), [DIM])
    first, second = bare(x, LABELS), around(x, LABELS)
    assert torch.equal(first, second)
    (one,), (other,) = torch.autograd.grad(first, x), torch.autograd.grad(second, x)
    assert torch.equal(one, other)


def test_proxies_are_whole_again_afterwards_and_after_an_error():
    loss = Matryoshka(build("proxy_anchor"), SIZES)
    proxies = loss.loss.proxies
    loss(batch(), LABELS)
    assert loss.loss.proxies is proxies
    assert loss.proxies is proxies
    with pytest.raises(ValueError, match="out of range"):
        loss(batch(), LABELS + CLASSES)
    assert loss.loss.proxies is proxies
    assert loss.loss.embedding_dim == DIM


def test_gradcheck():
    loss = Matryoshka(build("multi_similarity"), SIZES, WEIGHTS)
    torch.autograd.gradcheck(lambda x: loss(x, LABELS), (batch().requires_grad_(),), atol=1e-6)


def test_a_memory_goes_around_it_and_its_references_are_cut():
    around = CrossBatchMemory(Matryoshka(build("contrastive"), SIZES, WEIGHTS), size=30)
    by_size = [CrossBatchMemory(build("contrastive"), size=30) for _ in SIZES]
    for seed in range(3):
        x = batch(seed)
        expected = sum(w * one(x[:, :d], LABELS) for d, w, one in zip(SIZES, WEIGHTS, by_size, strict=True))
        torch.testing.assert_close(around(x, LABELS), expected)
    with pytest.raises(ValueError, match="put the memory around matryoshka"):
        Matryoshka(CrossBatchMemory(build("contrastive"), size=30), SIZES)


def test_values_by_sample_and_weights_go_through():
    loss = Matryoshka(build("multi_similarity"), SIZES, WEIGHTS)
    values = loss(batch(), LABELS, reduction="none")
    torch.testing.assert_close(values.mean(), loss(batch(), LABELS))
    counts = torch.arange(len(LABELS)).double()
    assert loss(batch(), LABELS, weights=counts).dim() == 0


@pytest.mark.parametrize("name", ["multi_similarity", "proxy_anchor"])
def test_common_checks(name):
    check_loss(lambda: Matryoshka(losses.build(name, num_classes=40, embedding_dim=8), [8, 4, 2]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": []}, "one or more sizes"),
        ({"sizes": 4}, "one or more sizes"),
        ({"sizes": [0]}, "at least 1"),
        ({"sizes": [4, 4]}, "names a size twice"),
        ({"sizes": [4, 2], "weights": [1.0]}, "1 weights for 2 sizes"),
        ({"sizes": [4], "weights": [-1.0]}, "at least 0"),
        ({"sizes": [4, 16], "embedding_dim": 8}, "16 is more than embedding_dim=8"),
    ],
)
def test_wrong_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Matryoshka(build("contrastive"), **arguments)


def test_a_size_above_the_embedding_is_refused():
    with pytest.raises(ValueError, match="16 is more than embedding_dim=8"):
        Matryoshka(build("contrastive"), [16])(batch(), LABELS)
