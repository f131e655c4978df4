"""The sampler of known pairs: every match once, with somebody who differs."""

from __future__ import annotations

import pytest
import torch

from nearkin.sampling import PairsSampler

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4])
PAIRS = torch.tensor([[0, 1, 1], [1, 2, 1], [3, 4, 1], [2, 3, 0], [0, 5, 0], [6, 7, 0]])


def test_every_match_comes_once_with_a_sample_that_differs_from_its_group():
    sampler = PairsSampler(LABELS, pairs=PAIRS, batch_size=100)
    met = set()
    for epoch in range(20):
        (batch,) = (one.tolist() for one in sampler.plan(epoch))
        assert len(batch) == 11 == sampler.images_per_epoch
        for match, others in (((0, 1), (3, 5)), ((1, 2), (3, 5)), ((3, 4), (2,))):
            place = next(n for n in range(10) if tuple(batch[n : n + 2]) == match)
            assert batch[place + 2] in others
            met.add((match, batch[place + 2]))
        place = batch.index(6)
        assert batch[place + 1] == 7
    assert len(met) == 5  # over the epochs all of them


def test_matches_alone_come_alone():
    sampler = PairsSampler(LABELS, pairs=PAIRS[:3], batch_size=4)
    assert sampler.batch_sizes == [4, 2]
    assert sorted(torch.cat(sampler.plan(0)).tolist()) == [0, 1, 1, 2, 3, 4]


def test_what_is_no_list_of_pairs_is_refused():
    with pytest.raises(ValueError, match=r"pairs must be \(P, 3\)"):
        PairsSampler(LABELS, pairs=PAIRS[:, :2], batch_size=4)
    with pytest.raises(ValueError, match=r"pairs must be \(P, 3\)"):
        PairsSampler(torch.arange(4), batch_size=4)  # of no class are there two
