"""Pairs instead of labels: two views, two modalities, a memory."""

from __future__ import annotations

import naive
import pytest
import torch

from nearkin import losses


def two_views(count: int = 6, dim: int = 5):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), (x + torch.randn(x.shape, generator=generator)).detach().requires_grad_()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("labels", [None, [0, 1, 0, 2, 2, 3]])
@pytest.mark.parametrize("counts", [None, [1.0, 0.5, 0, 2, 1, 1]])
def test_partners(symmetric, labels, counts):
    x, others = two_views()
    loss = losses.InfoNCE(symmetric=symmetric, temperature=0.2)
    y = None if labels is None else torch.tensor(labels)
    weights = None if counts is None else torch.tensor(counts, dtype=torch.float64)
    value = loss(x, y, references=others, weights=weights)
    expected = naive.info_nce_of_partners(
        x, others, labels or list(range(6)), temperature=0.2, symmetric=symmetric, counts=counts
    )
    torch.testing.assert_close(value, expected.sum(), rtol=1e-12, atol=1e-12)
    found, wanted = (torch.autograd.grad(loss_of, [x, others]) for loss_of in (value, expected.sum()))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    values = loss(x, y, references=others, weights=weights, reduction="none")
    torch.testing.assert_close(values, expected * 6, rtol=1e-9, atol=1e-11)
    if y is not None:
        assert loss(x, y, references=others, reference_labels=y, weights=weights) == value


def test_without_labels_it_is_cross_entropy():
    x, others = two_views()
    S = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(others).T / 0.05
    target = torch.arange(6)
    both = [torch.nn.functional.cross_entropy(logits, target) for logits in (S, S.T)]
    torch.testing.assert_close(losses.InfoNCE()(x, references=others), sum(both) / 2)
    torch.testing.assert_close(losses.InfoNCE(symmetric=False)(x, references=others), both[0])


def test_two_views_in_one_batch_are_nt_xent():
    x, others = two_views()
    together, y = torch.cat([x, others]), torch.arange(6).repeat(2)
    z = torch.nn.functional.normalize(together)
    S = (z @ z.T / 0.05).fill_diagonal_(-torch.inf)
    expected = torch.nn.functional.cross_entropy(S, torch.arange(12).roll(6))
    torch.testing.assert_close(losses.InfoNCE()(together, y), expected)
    torch.testing.assert_close(losses.SupCon(temperature=0.05)(together, y), expected)


def test_a_memory_has_labels_of_its_own():
    loss = losses.CrossBatchMemory(losses.InfoNCE(), size=12)
    x, others = two_views()
    y = torch.tensor([0, 1, 0, 2, 2, 1])
    loss(others.detach(), y.flip(0))
    value = loss(x, y)
    direct = losses.InfoNCE()(x, y, references=others, reference_labels=y.flip(0))
    torch.testing.assert_close(value, losses.InfoNCE()(x, y) + direct)


def test_weights_of_partners():
    x, others = two_views()
    weights = losses.InfoNCE().pair_weights(x, references=others)
    assert weights.shape == (6, 6)
    assert (weights.diagonal() < 0).all()
    assert (weights.fill_diagonal_(0) >= 0).all()


def test_compiled_pairs():
    x, others = two_views()
    loss = losses.InfoNCE()
    expected = loss(x, references=others)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, references=others), expected, rtol=1e-12, atol=1e-12)


def test_what_is_missing_is_said():
    x, others = two_views()
    with pytest.raises(ValueError, match="info_nce needs labels, or references="):
        losses.InfoNCE()(x)
    with pytest.raises(ValueError, match="4 references for 6 embeddings: partners come row by row"):
        losses.InfoNCE()(x, references=others[:4])
