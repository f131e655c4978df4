from __future__ import annotations

import pytest
import torch

from nearkin.sampling import NPairSampler

SIZES = [1, 2, 3, 4, 5, 6, 7, 1]
LABELS = torch.arange(8).repeat_interleave(torch.tensor(SIZES))


def test_pairs_of_different_classes_side_by_side():
    sampler = NPairSampler(LABELS, batch_size=6)
    for epoch in range(20):
        for batch in sampler.plan(epoch):
            first, second = sampler.labels[batch].view(-1, 2).unbind(1)
            assert torch.equal(first, second)
            assert len(first.unique()) == len(first)


def test_an_odd_image_sits_out_and_is_another_in_other_epochs():
    sampler = NPairSampler(LABELS, batch_size=6)
    assert sampler.images_per_epoch == sum(size - size % 2 for size in SIZES) == 24
    shown = [set(torch.cat(sampler.plan(epoch)).tolist()) for epoch in range(60)]
    lonely = {0, len(LABELS) - 1}
    assert set.union(*shown) == set(range(len(LABELS))) - lonely


def test_odd_batches_and_lonely_classes_are_refused():
    with pytest.raises(ValueError, match="batch_size=7 is not a multiple of images_per_class=2"):
        NPairSampler(LABELS, batch_size=7)
    with pytest.raises(
        ValueError, match="needs 8 classes of at least 2 images, but there are 6: use batch_size=12"
    ):
        NPairSampler(LABELS, batch_size=16)
