from __future__ import annotations

import pytest
import torch

from nearkin.sampling import RandomSampler


def test_every_image_once_per_epoch():
    sampler = RandomSampler(torch.arange(23), batch_size=5)
    assert sampler.batch_sizes == [5, 5, 5, 5, 3]
    assert sorted(image for batch in sampler for image in batch) == list(range(23))


def test_epochs_of_some_batches():
    sampler = RandomSampler(torch.arange(23), batch_size=5, batches=3)
    assert sampler.batch_sizes == [5, 5, 5]
    first, second = ([image for batch in sampler for image in batch] for _ in range(2))
    assert len(set(first)) == len(set(second)) == 15
    assert first != second
    for wrong in (0, 5):
        with pytest.raises(ValueError, match=f"batches={wrong} must be from 1 to 4"):
            RandomSampler(torch.arange(23), batch_size=5, batches=wrong)


def test_every_image_is_as_likely_at_every_place():
    sampler = RandomSampler(torch.zeros(6, dtype=torch.long), batch_size=6)
    orders = torch.stack([sampler.plan(epoch)[0] for epoch in range(3000)])
    counts = torch.stack([(orders == image).sum(0) for image in range(6)]).float()
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert chi_square < 60  # 25 degrees of freedom: beyond this once in 10,000 times
