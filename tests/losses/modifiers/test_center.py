from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses.modifiers import Center, Matryoshka, build
from nearkin.losses.modifiers.base import resized
from nearkin.recipe import Recipe, RecipeError

CLASSES, DIM = 4, 5
LABELS = torch.tensor([0, 0, 1, 2, 2, 3, 0])


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def around(name: str = "multi_similarity", weight: float = 0.7) -> Center:
    sizes = {"num_classes": CLASSES, "embedding_dim": DIM}
    loss = Center(losses.build(name, **sizes), **sizes, weight=weight).double()
    torch.nn.init.normal_(loss.centres, generator=torch.Generator().manual_seed(5))
    return loss


def by_loops(x: torch.Tensor, centres: torch.Tensor) -> list[torch.Tensor]:
    return [
        sum((x[i, d] - centres[int(LABELS[i]), d]) ** 2 for d in range(DIM)) / 2 for i in range(len(LABELS))
    ]


@pytest.mark.parametrize("name", ["multi_similarity", "softmax", "triplet"])
def test_against_plain_loops(name):
    loss, x = around(name), batch().requires_grad_()
    inner = loss.loss(x, LABELS)
    expected = inner + 0.7 * sum(by_loops(x, loss.centres)) / len(LABELS)
    value = loss(x, LABELS)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    learnt = [x, *loss.parameters()]
    for one, other in zip(
        torch.autograd.grad(value, learnt), torch.autograd.grad(expected, learnt), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_values_and_weights_of_samples():
    loss, x = around(), batch()
    counts = torch.tensor([1.0, 0, 2, 1, 0, 3, 1], dtype=torch.float64)
    distances = torch.stack(by_loops(x, loss.centres.detach()))
    pull = loss(x, LABELS, weights=counts) - loss.loss(x, LABELS, weights=counts)
    torch.testing.assert_close(pull, 0.7 * (counts * distances).sum() / counts.sum())
    values = loss(x, LABELS, reduction="none")
    torch.testing.assert_close(values - loss.loss(x, LABELS, reduction="none"), 0.7 * distances)


def test_weight_0_is_the_inner_loss_bit_for_bit():
    x = batch()
    assert torch.equal(around(weight=0.0)(x, LABELS), losses.build("multi_similarity")(x, LABELS))


def test_its_centres_are_learnt():
    names = [group["name"] for group in around("proxy_anchor").param_groups(0.1)]
    assert names == ["proxies", "centres"]
    loss = around("softmax")
    optimizer = torch.optim.SGD([loss.centres], lr=1.0)
    x = batch()
    before = torch.stack(by_loops(x, loss.centres)).sum().item()
    for _ in range(20):
        optimizer.zero_grad()
        loss(x, LABELS).backward()
        optimizer.step()
    assert torch.stack(by_loops(x, loss.centres)).sum().item() < 0.5 * before


def test_another_size_has_centres_of_its_own():
    smaller = resized(around("proxy_anchor"), 3, torch.Generator())
    assert smaller.centres.shape == (CLASSES, 3)
    smaller(torch.randn(len(LABELS), 3), LABELS).backward()


def test_around_other_modifiers():
    loss = Center(Matryoshka(losses.build("contrastive"), [DIM, 2]), CLASSES, DIM)
    loss(batch().float().requires_grad_(), LABELS).backward()
    assert build("center", losses.build("nca"), num_classes=2, embedding_dim=3).weight == 0.003


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (torch.zeros(2, DIM), torch.tensor([0, CLASSES]), "label 4 is out of range"),
        (torch.zeros(2, DIM + 1), torch.tensor([0, 1]), "embedding_dim=5 but the embeddings have 6 columns"),
        (torch.zeros(2, DIM), torch.ones(2, 3, dtype=torch.bool), "labels must have shape"),
    ],
)
def test_what_it_refuses(x, labels, message):
    with pytest.raises(ValueError, match=message):
        around()(x, labels)


def test_in_a_recipe():
    recipe = Recipe.parse({"loss": {"name": "softmax", "center": {"weight": 0.01}}})
    assert [one.name for one in recipe.loss.modifiers] == ["center"]
    with pytest.raises(RecipeError, match="weight=-1"):
        Recipe.parse({"loss": {"name": "softmax", "center": {"weight": -1}}})
