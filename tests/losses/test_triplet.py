from __future__ import annotations

import pytest
import torch

from nearkin import losses, mining


def batch(classes: int, per_class: int, dim: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[labels] + torch.randn(len(labels), dim, generator=generator), labels


def dense_all_triplets(x, labels, margin):
    """The definition, with the B³ tensor that the loss avoids."""
    z = torch.nn.functional.normalize(x.double())
    S = z @ z.T
    same = labels[:, None] == labels
    terms = (S.unsqueeze(1) - S.unsqueeze(2) + margin).relu()  # (a, p, n)
    valid = same.clone().fill_diagonal_(False).unsqueeze(2) & ~same.unsqueeze(1)
    terms = terms[valid]
    return terms[terms > 0].mean()


@pytest.mark.parametrize(("classes", "per_class"), [(40, 4), (3, 40), (2, 1)])
def test_all_triplets_are_all_triplets(classes, per_class):
    x, labels = batch(classes, per_class)
    value = losses.Triplet(mining="all", margin=0.2)(x, labels)
    expected = dense_all_triplets(x, labels, 0.2).nan_to_num(0)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


def test_masks_of_any_miner_stand_for_their_triplets():
    x, labels = batch(6, 5)
    masks = losses.Triplet(mining=mining.MultiSimilarity(epsilon=10.0))(x, labels)
    torch.testing.assert_close(masks, losses.Triplet(mining="all")(x, labels))


def test_a_callable_is_a_miner():
    def first_of_each(similarities, positive, negative, **_):
        return mining.Hard()(similarities, positive, negative)

    x, labels = batch(6, 5)
    assert losses.Triplet(mining=first_of_each)(x, labels) == losses.Triplet(mining="hard")(x, labels)


@pytest.mark.parametrize("wrong", ["semihard", 3, None])
def test_wrong_mining_is_refused(wrong):
    with pytest.raises(ValueError, match="semi_hard|must be a miner's name or a miner"):
        losses.Triplet(mining=wrong)
