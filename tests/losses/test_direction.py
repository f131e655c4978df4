from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses import direction_triplet
from nearkin.losses.testing import CLASSES, DIM, LABELS, batch


@pytest.mark.parametrize(
    ("name", "base", "keywords"),
    [
        ("direction_triplet", "triplet", {"metric": "squared_euclidean", "mining": "all"}),
        ("direction_multi_similarity", "multi_similarity", {}),
        ("direction_proxy_nca", "proxy_nca", {}),
    ],
)
def test_no_direction_is_the_base_loss_exactly(name, base, keywords):
    sizes = {"num_classes": CLASSES, "embedding_dim": DIM}
    plain = losses.build(base, **sizes, **keywords)(batch(), LABELS)
    assert torch.equal(losses.build(name, **sizes, gamma=0.0)(batch(), LABELS), plain)


@pytest.mark.parametrize("name", ["direction_triplet", "direction_multi_similarity"])
def test_references_are_compared_among_themselves(name):
    """A batch that is its own gallery, and a gallery in another order, agree with each other."""
    loss = losses.build(name)
    x, gallery = batch(torch.float64), batch(torch.float64, seed=1)
    value = loss(x, LABELS, references=gallery, reference_labels=LABELS)
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(2))
    again = loss(x, LABELS, references=gallery[order], reference_labels=LABELS[order])
    torch.testing.assert_close(value, again)
    assert value > 0


def test_triplets_against_references_by_hand():
    x = torch.tensor([[1.0, 0.0]])
    gallery = torch.tensor([[0.6, 0.8], [0.8, -0.6]])
    value = losses.DirectionTriplet(margin=0.1, gamma=0.3)(
        x, torch.tensor([0]), references=gallery, reference_labels=torch.tensor([0, 1])
    )
    to_positive, to_negative = gallery[0] - x[0], gallery[1] - x[0]
    cosine = torch.nn.functional.cosine_similarity(to_positive, to_negative, dim=0)
    expected = to_positive.square().sum() - to_negative.square().sum() + 0.1 - 0.3 * cosine
    torch.testing.assert_close(value, expected)


def test_anchors_a_few_at_a_time_change_nothing(monkeypatch):
    x = batch(torch.float64).requires_grad_()
    loss = losses.build("direction_triplet")
    value = loss(x, LABELS)
    (gradient,) = torch.autograd.grad(value, x)
    monkeypatch.setattr(direction_triplet, "_CHUNK", 2 * len(LABELS))
    in_parts = loss(x, LABELS)
    torch.testing.assert_close(in_parts, value)
    torch.testing.assert_close(torch.autograd.grad(in_parts, x)[0], gradient)


def test_one_hot_labels_give_the_same_triplets():
    """With copies and zero vectors."""
    x = batch(torch.float64)
    x[1], x[4], x[6] = x[0], x[3], 0
    x.requires_grad_()
    loss = losses.build("direction_triplet")
    values = [loss(x, labels) for labels in (LABELS, torch.nn.functional.one_hot(LABELS))]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in values))
