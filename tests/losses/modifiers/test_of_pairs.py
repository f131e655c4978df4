"""Known pairs handed to a loss by the numbers of samples."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses import PairLoss
from nearkin.losses.modifiers import OfPairs, build

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def known(ids):
    rows = LABELS[ids]
    return 2 * (rows[:, None] == rows).int() - 1


def rows(count=8):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", losses.names())
def test_every_pair_loss_takes_pairs_and_others_say_what_to_do(name):
    loss = losses.build(name, num_classes=4, embedding_dim=4, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([7, 0, 1, 6, 3, 2, 5, 4])
    if not isinstance(loss, PairLoss) or loss.chooses_by_class:
        with pytest.raises(ValueError, match="only pairs of the samples are known: choose a loss over pairs"):
            OfPairs(loss, known)
        return
    again = losses.build(name, num_classes=4, embedding_dim=4, generator=torch.Generator().manual_seed(0))
    expected = again(rows(), known_pairs=known(ids))
    assert torch.equal(OfPairs(loss, known)(rows(), torch.zeros(8, dtype=torch.long), ids=ids), expected)


def test_values_per_sample_and_parameters_are_those_of_the_loss():
    loss = OfPairs(losses.build("contrastive"), known)
    ids = torch.arange(8)
    values = loss(rows(), LABELS, ids=ids, reduction="none")
    assert torch.allclose(values.mean(), loss(rows(), LABELS, ids=ids))
    assert loss.asks("ids")
    assert loss.param_groups(0.1) == []
    with pytest.raises(ValueError, match="known pairs need ids="):
        loss(rows(), LABELS)


def test_a_matryoshka_goes_around_it():
    inner = OfPairs(losses.build("contrastive"), known)
    loss = build("matryoshka", inner, sizes=[4, 2])
    ids = torch.arange(8)
    expected = inner(rows(), LABELS, ids=ids) + inner(rows()[:, :2], LABELS, ids=ids)
    assert loss.asks("ids")
    assert torch.allclose(loss(rows(), LABELS, ids=ids), expected)
