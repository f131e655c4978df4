from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import VICRegLoss

from nearkin import losses
from nearkin.losses.modifiers import VICReg
from nearkin.recipe import Recipe, RecipeError

LABELS = torch.tensor([0, 0, 1, 2, 2, 3, 0])
DIM = 4


def batch(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(LABELS), DIM, generator=generator, dtype=torch.float64) * 0.6


def by_loops(x: torch.Tensor, variance: float, covariance: float, deviation: float) -> torch.Tensor:
    B = len(x)
    means = [sum(x[i, d] for i in range(B)) / B for d in range(DIM)]

    def cov(d: int, e: int) -> torch.Tensor:
        return sum((x[i, d] - means[d]) * (x[i, e] - means[e]) for i in range(B)) / (B - 1)

    narrow = sum((deviation - (cov(d, d) + 1e-4).sqrt()).clamp(min=0) for d in range(DIM)) / DIM
    shared = sum(cov(d, e) ** 2 for d in range(DIM) for e in range(DIM) if d != e) / DIM
    return variance * narrow + covariance * shared


@pytest.mark.parametrize("settings", [(1.0, 0.04, 1.0), (0.0, 2.0, 1.0), (3.0, 0.0, 0.5)])
def test_against_plain_loops(settings):
    variance, covariance, deviation = settings
    loss = VICReg(losses.build("multi_similarity"), variance, covariance, deviation=deviation)
    x = batch().requires_grad_()
    value, expected = loss(x, LABELS), loss.loss(x, LABELS) + by_loops(x, *settings)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    found, wanted = torch.autograd.grad(value, x)[0], torch.autograd.grad(expected, x)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradcheck(loss.regularisation, (batch(1).requires_grad_(),))


def test_the_terms_are_those_of_pytorch_metric_learning():
    one, other = batch(1), batch(2)
    theirs = VICRegLoss()(one, ref_emb=other)
    ours = VICReg(
        losses.build("nca"), variance=12.5, covariance=1.0
    )  # they average the views' variance terms
    both = ours.regularisation(one) + ours.regularisation(other)
    torch.testing.assert_close(both + 25 * (one - other).square().mean(), theirs)


def test_collapsed_embeddings_are_driven_apart():
    loss = VICReg(losses.as_loss(lambda embeddings, labels: embeddings.sum() * 0), covariance=0.1)
    x = (batch() * 0.01).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss(x, LABELS).backward()
        optimizer.step()
    covariances = torch.cov(x.detach().T)
    assert covariances.diagonal().min() > 0.9
    assert (covariances - covariances.diagonal().diag()).abs().max() < 0.1


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_samples_have_no_terms(rows):
    loss = VICReg(losses.build("multi_similarity"))
    x = batch()[:rows].requires_grad_()
    value = loss(x, LABELS[:rows])
    assert value == 0
    value.backward()


def test_values_of_samples_have_all_of_both_terms():
    loss, x = VICReg(losses.build("multi_similarity")), batch()
    values = loss(x, LABELS, reduction="none")
    torch.testing.assert_close(values.mean(), loss(x, LABELS))
    assert values.shape == LABELS.shape


def test_weights_0_are_the_inner_loss_bit_for_bit():
    x = batch()
    loss = VICReg(losses.build("multi_similarity"), 0.0, 0.0)
    assert torch.equal(loss(x, LABELS), losses.build("multi_similarity")(x, LABELS))


def test_in_a_recipe():
    assert Recipe.parse({"loss": {"name": "triplet", "vicreg": {"covariance": 0.1}}}).loss.modifiers
    with pytest.raises(RecipeError, match="deviation=0"):
        Recipe.parse({"loss": {"name": "triplet", "vicreg": {"deviation": 0}}})
