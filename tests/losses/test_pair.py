"""What is particular to losses over pairs."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses, mining
from nearkin.losses.pair import find_pairs
from nearkin.losses.testing import LABELS, batch

PAIR_LOSSES = [name for name in losses.names() if not losses.describe(name).needs_classes]
OTHER_MINERS = ["all", "hard", "semi_hard", "distance_weighted", "multi_similarity", "random"]


@pytest.mark.parametrize("miner", OTHER_MINERS)
@pytest.mark.parametrize("name", ["contrastive", "multi_similarity", "lifted_structure", "triplet", "margin"])
def test_any_miner_serves_any_loss(name, miner):
    loss = losses.build(name, mining=mining.build(miner))
    x = batch().requires_grad_()
    value = loss(x, LABELS)
    value.backward()
    assert value > 0
    assert torch.isfinite(x.grad).all()
    assert x.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([2**24, 2**24 + 1, 2**24, -5]),
        torch.tensor([-(2**24), -(2**24) - 1, -(2**24), 5]),
        torch.tensor([2**53, 2**53 + 1, 2**53, -(2**60)]),
        torch.tensor([7, 5, 7, 0], dtype=torch.int32),
        torch.tensor([255, 0, 255, 3], dtype=torch.uint8),
        torch.tensor([2**16 - 1, 0, 2**16 - 1, 3], dtype=torch.uint16),
    ],
    ids=["beyond float32", "below float32", "beyond float64", "int32", "uint8", "uint16"],
)
def test_labels_of_any_size_are_told_apart(labels, dtype):
    for others in (None, labels.clone()):
        positive, negative = (pairs.bool() for pairs in find_pairs(labels, others, dtype))
        same = torch.zeros(4, 4, dtype=torch.bool)
        same[0, 2] = same[2, 0] = True
        itself = torch.eye(4, dtype=torch.bool)
        assert torch.equal(negative, ~same & ~itself)
        assert torch.equal(positive, same if others is None else same | itself)


MULTI_HOT = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]])
SHARED = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]], dtype=torch.bool)


@pytest.mark.parametrize("name", ["contrastive", "triplet", "margin", "lifted_structure", "multi_similarity"])
def test_a_shared_label_makes_a_pair_positive(name):
    """The masks that miners see follow from several labels each."""
    seen = []

    def spy(similarities, positive, negative, **_):
        seen.append((positive.clone(), negative.clone()))
        return mining.Masks(positive, negative)

    assert torch.isfinite(losses.build(name, mining=spy)(batch()[:4], MULTI_HOT))
    ((positive, negative),) = seen
    assert torch.equal(positive, SHARED)
    assert torch.equal(negative, ~SHARED & ~torch.eye(4, dtype=torch.bool))


@pytest.mark.parametrize("name", ["nca", "npair"])
def test_a_shared_label_is_pulled(name):
    weights = losses.build(name).pair_weights(batch()[:4], MULTI_HOT)
    assert (weights[SHARED] < 0).all()
    assert (weights[~SHARED & ~torch.eye(4, dtype=torch.bool)] > 0).all()


def test_directed_triplets_of_shared_labels():
    """Nearly all triplets are active under so large a margin: their number is that of the masks."""
    weights = losses.DirectionTriplet(margin=100.0, gamma=0.001).pair_weights(batch()[:4], MULTI_HOT)
    assert (weights[SHARED] < 0).all()
    assert (weights[~SHARED & ~torch.eye(4, dtype=torch.bool)] > 0).all()


@pytest.mark.parametrize(
    ("loss", "keywords"),
    [
        ("contrastive", {"mining": "all"}),
        ("multi_similarity", {"mining": "all"}),
        ("lifted_structure", {"mining": "all"}),
        ("margin", {"mining": "all", "beta": 0.1}),
        ("nca", {}),
        ("npair", {}),
    ],
)
def test_a_copy_of_the_batch_as_references_keeps_the_diagonal(loss, keywords):
    """Each sample then has itself as a positive: no pair is excluded when there are references."""
    x = batch(torch.float64)
    loss = losses.build(loss, **keywords)
    itself = torch.eye(len(LABELS), dtype=torch.bool)
    with_itself = loss.pair_weights(x, LABELS, references=x + 0.3, reference_labels=LABELS)
    assert (with_itself[itself] != 0).all()
    assert not loss.pair_weights(x, LABELS)[itself].any()


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_weights_of_one_anchor_and_one_reference(name):
    x = batch(torch.float64)
    alone = losses.build(name).pair_weights(x[:1], LABELS[:1], references=x[5:6], reference_labels=LABELS[:1])
    everything = losses.get(name).among_references
    assert alone.shape == ((2, 2) if everything else (1, 1))
    assert torch.isfinite(alone).all()


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_references_may_be_made_in_inference_mode(name):
    with torch.inference_mode():
        gallery = batch(seed=1)
    x = batch().requires_grad_()
    gradients = []
    for references in (gallery, gallery.clone()):
        loss = losses.build(name)  # with its generator at the start
        value = loss(x, LABELS, references=references, reference_labels=LABELS)
        gradients.append(torch.autograd.grad(value, x)[0])
    assert torch.equal(*gradients)


def test_contrastive_against_references_by_hand():
    x = torch.tensor([[1.0, 0.0]])
    gallery = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    value = losses.Contrastive(margin=0.5)(
        x, torch.tensor([0]), references=gallery, reference_labels=torch.tensor([0, 0, 1])
    )
    torch.testing.assert_close(value, torch.tensor((0 + 0.4) / 2 + 0.3))


def test_one_pair_per_class_against_references():
    x, y = batch(torch.float64), LABELS
    gallery, z = batch(torch.float64, seed=1)[:8], torch.tensor([3, 1, 1, 0, 3, 7, 0, 39])
    loss = losses.NPair(pairs="one_per_class", l2=0.0)
    value = loss(x, y, references=gallery, reference_labels=z)
    couples = [(0, 3), (3, 1), (6, 0), (10, 7)]  # the first of each class that both sides have
    expected = torch.stack(
        [
            torch.log1p(sum(torch.exp(x[a] @ gallery[q] - x[a] @ gallery[p]) for b, q in couples if b != a))
            for a, p in couples
        ]
    ).mean()
    torch.testing.assert_close(value, expected)
    weights = loss.pair_weights(x, y, references=gallery, reference_labels=z)
    assert weights.shape == (12, 8)
    assert (weights != 0).sum() == 16
    with pytest.raises(ValueError, match="multi-hot"):
        loss(x, torch.eye(12, dtype=torch.long))


@pytest.mark.parametrize("l2", [0.0, 0.02])
def test_gradient_of_one_pair_per_class(l2):
    """By differences, towards anchors and references, scaled from above, and twice through one graph."""
    x, gallery = batch(torch.float64).requires_grad_(), batch(torch.float64, seed=1)[:8].requires_grad_()
    z = torch.tensor([3, 1, 1, 0, 3, 7, 0, 39])
    loss = losses.NPair(pairs="one_per_class", l2=l2)
    assert torch.autograd.gradcheck(lambda x: 7 * loss(x, LABELS), (x,))
    assert torch.autograd.gradcheck(
        lambda x, gallery: loss(x, LABELS, references=gallery, reference_labels=z), (x, gallery)
    )
    value = loss(x, LABELS)
    (first,) = torch.autograd.grad(value, x, retain_graph=True)
    assert torch.equal(torch.autograd.grad(value, x)[0], first)
    with pytest.raises(RuntimeError, match="once only"):
        torch.autograd.grad(loss(x, LABELS), x, create_graph=True)


def test_autocast_does_not_reach_into_one_pair_per_class():
    x = batch()
    loss = losses.NPair(pairs="one_per_class")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(x, LABELS)
    torch.testing.assert_close(inside, loss(x, LABELS))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"references": batch()}, "come together"),
        ({"reference_labels": LABELS}, "come together"),
        ({"references": batch()[:, :3], "reference_labels": LABELS}, "references have 3 columns"),
        ({"references": batch(), "reference_labels": LABELS[:3]}, "3 reference_labels for 12"),
        ({"references": batch(), "reference_labels": torch.eye(12).long()}, "of the same kind"),
        ({"references": batch() * float("nan"), "reference_labels": LABELS}, "references contain NaN"),
    ],
)
def test_wrong_references_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        losses.build("contrastive")(batch(), LABELS, **keywords)


def test_generator_state_is_a_tensor_in_the_state_dict():
    state = losses.build("margin").state_dict()
    assert state["_extra_state"].dtype == torch.uint8
    assert "_extra_state" not in losses.build("nca").state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keywords"), [("triplet", {"mining": "all"}), ("lifted_structure", {}), ("multi_similarity", {})]
)
def test_a_batch_of_4096(name, keywords):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1024).repeat_interleave(4)
    x = torch.randn(1024, 512, generator=generator)[labels] + 2 * torch.randn(4096, 512, generator=generator)
    x.requires_grad_()
    value = losses.build(name, **keywords)(x, labels)
    value.backward()
    assert value > 0
    assert torch.isfinite(x.grad).all()
