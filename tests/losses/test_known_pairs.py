"""Pairs in the place of labels, for every pair loss: the same where they say the same, and unknown pairs."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses import PairLoss
from nearkin.losses.pair import find_pairs

LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
OTHERS = torch.tensor([0, 0, 1, 1, 2, 2])
DIM = 4
KEYWORDS = {"npair": {"pairs": "all"}}
NAMES = [
    name
    for name in losses.names()
    if isinstance(losses.build(name, num_classes=3, embedding_dim=DIM, **KEYWORDS.get(name, {})), PairLoss)
]


def made(name):
    return losses.build(
        name,
        num_classes=3,
        embedding_dim=DIM,
        generator=torch.Generator().manual_seed(0),
        **KEYWORDS.get(name, {}),
    ).double()


def rows(count=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, DIM, generator=generator, dtype=torch.float64)


def known(labels, others=None):
    positive, negative = find_pairs(labels, others)
    return positive.int() - negative.int()


def test_there_are_many_of_them():
    assert {"contrastive", "triplet", "multi_similarity", "supcon", "smooth_ap", "info_nce"} <= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_pairs_that_say_what_labels_say_give_the_same_loss(name):
    x, references = rows().requires_grad_(), rows(len(OTHERS), 1)
    by_labels = made(name)(x, LABELS)
    by_pairs = made(name)(x, known_pairs=known(LABELS))
    assert torch.equal(by_labels, by_pairs)
    gradients = [torch.autograd.grad(value, x)[0] for value in (by_labels, by_pairs)]
    assert torch.equal(*gradients)
    pairs = known(LABELS, OTHERS)
    one = made(name)(x, LABELS, references=references, reference_labels=OTHERS)
    other = made(name)(x, references=references, known_pairs=pairs)
    assert torch.equal(one, other)


# Some also look at a pair of an anchor's positive and its negative, whatever is known of that one.
@pytest.mark.parametrize("name", [name for name in NAMES if not losses.get(name).among_references])
def test_what_is_not_known_of_a_pair_is_not_asked_for(name):
    generator = torch.Generator().manual_seed(1)
    pairs = known(LABELS)
    hidden = torch.rand(pairs.shape, generator=generator) < 0.3
    hidden |= hidden.T.clone()
    pairs[hidden] = 0
    weights = made(name).pair_weights(rows(), known_pairs=pairs)
    assert weights[pairs == 0].abs().max() == 0
    # Histograms of so few pairs are flat where another pair would have to be, and have no slope there.
    assert weights.abs().max() > 0 or name == "histogram"


def test_contrastive_on_some_pairs_pulls_and_pushes_those():
    pairs = torch.zeros(8, 8, dtype=torch.int8)
    for a, b, same in ((0, 1, 1), (2, 7, -1), (3, 5, 1), (4, 6, -1), (0, 6, -1)):
        pairs[a, b] = pairs[b, a] = same
    units = torch.nn.functional.normalize(rows())
    weights = losses.build("contrastive", margin=0.1).double().pair_weights(rows(), known_pairs=pairs)
    for a in range(8):
        for b in range(8):
            expected = 0
            if pairs[a, b] > 0:
                expected = -1
            elif pairs[a, b] < 0 and units[a] @ units[b] > 0.1:
                expected = 1
            assert torch.sign(weights[a, b]) == expected


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "needs labels, or known_pairs="),
        ({"labels": LABELS, "known_pairs": known(LABELS)}, "labels or known_pairs, not both"),
        ({"known_pairs": known(LABELS)[:, :3]}, r"known_pairs must have shape \(8, 8\), not \(8, 3\)"),
    ],
)
def test_wrong_calls_are_named(keywords, message):
    with pytest.raises(ValueError, match=message):
        losses.build("triplet")(rows(), **keywords)


def test_losses_that_choose_by_class_say_so():
    by_class = losses.build("npair", pairs="one_per_class")
    for loss in (by_class, losses.build("margin", num_classes=3, per_class=True)):
        with pytest.raises(ValueError, match="takes labels, no known_pairs"):
            loss(rows(), known_pairs=known(LABELS))
