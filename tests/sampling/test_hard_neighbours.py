from __future__ import annotations

import pytest
import torch

from nearkin.sampling import BalancedSampler, HardNeighboursSampler

FAMILIES = torch.arange(24) // 4  # six families of four classes


def build(sizes, **keywords):
    labels = 7 * torch.arange(24).repeat_interleave(torch.as_tensor(sizes))
    return HardNeighboursSampler(labels, **{"batch_size": 12, "images_per_class": 3, **keywords})


def embed(sampler, spread=0.05, seed=0):
    noise = torch.randn(len(sampler.labels), 6, generator=torch.Generator().manual_seed(seed))
    return 3 * (torch.eye(6)[FAMILIES[sampler.labels // 7]] + spread * noise)


def families_of(sampler, batch):
    return FAMILIES[sampler.labels[batch] // 7].unique()


def test_before_the_first_refresh_it_is_balanced():
    sampler = build([6] * 24)
    balanced = BalancedSampler(sampler.labels, batch_size=12, images_per_class=3)
    assert all(torch.equal(a, b) for a, b in zip(sampler.plan(3), balanced.plan(3), strict=True))


@pytest.mark.parametrize("mining", ["hard", "semi_hard"])
def test_neighbours_meet_and_every_image_comes_once(mining):
    sampler = build([6] * 24, mining=mining, neighbours=18)  # the negatives in a family
    sampler.refresh(embed(sampler))
    batches = sampler.plan(0)
    assert sorted(torch.cat(batches).tolist()) == list(range(144))
    for batch in batches:
        assert sampler.labels[batch].unique(return_counts=True)[1].tolist() == [3] * 4
        assert len(families_of(sampler, batch)) == 1


def test_short_groups_find_their_neighbours_too():
    sampler = build([6] * 24, batch_size=4, images_per_class=4, neighbours=15)
    sampler.refresh(embed(sampler))
    batches = sampler.plan(0)
    assert sorted(torch.cat(batches).tolist()) == list(range(144))
    mixed = [batch for batch in batches if sampler.labels[batch].unique().numel() == 2]
    assert len(mixed) == 12
    assert all(len(families_of(sampler, batch)) == 1 for batch in mixed)


def test_the_batch_of_a_group_holds_the_first_negatives_of_its_images():
    sampler = build([3] * 24, batch_size=12, mining="hard", neighbours=40)
    embeddings = embed(sampler, spread=1.0)
    sampler.refresh(embeddings)
    negatives = sampler.tensors()["negatives"]
    generator = torch.Generator().manual_seed(2)
    groups = torch.arange(72).view(24, 3)
    batches = sampler._compose(torch.arange(24), groups, generator)
    first, *_ = batches.tolist()
    nearest = [int(image) // 3 for image in negatives[groups[first[0]]].T.flatten()]
    assert first[1:] == list(dict.fromkeys(nearest))[:3]
    assert sorted(batches.flatten().tolist()) == list(range(24))


def test_batches_are_harder_than_balanced_ones():
    """Measured by what a loss sees: how similar the most similar negative of an image is in its batch."""
    sampler = build([6] * 24, mining="hard")
    embeddings = torch.nn.functional.normalize(embed(sampler, spread=0.8), dim=1)

    def hardness(batches):
        nearest = []
        for batch in batches:
            S = embeddings[batch] @ embeddings[batch].T
            same = sampler.labels[batch].unsqueeze(1) == sampler.labels[batch]
            nearest.append(S.masked_fill(same, -2).amax(1))
        return float(torch.cat(nearest).mean())

    random = sum(hardness(sampler.plan(epoch)) for epoch in range(5)) / 5
    sampler.refresh(embeddings)
    mined = sum(hardness(sampler.plan(epoch)) for epoch in range(5)) / 5
    assert mined > random + 0.1


def test_a_resumed_sampler_has_its_negatives():
    sampler = build([6] * 24)
    sampler.refresh(embed(sampler))
    resumed = build([6] * 24)
    resumed.load_tensors(sampler.tensors())
    resumed.resume(2, 3)
    sampler.set_epoch(2)
    assert list(resumed) == list(sampler)[3:]
    resumed.load_tensors(build([6] * 24).tensors())
    assert resumed.tensors() == {}
    with pytest.raises(ValueError, match=r"negatives must have shape \(144, 9\), not \(144, 50\)"):
        build([6] * 24, neighbours=9).load_tensors(sampler.tensors())


def test_asks_for_embeddings_every_few_epochs():
    sampler = build([6] * 24, refresh_every=2)
    assert [sampler.needs_embeddings(epoch) for epoch in range(4)] == [True, False, True, False]


def test_wrong_arguments_are_named():
    for keywords, message in [
        ({"mining": "semihard"}, "mining='semihard' must be one of: hard, semi_hard"),
        ({"neighbours": 0}, "neighbours=0"),
        ({"refresh_every": 0}, "refresh_every=0"),
    ]:
        with pytest.raises(ValueError, match=message):
            build([6] * 24, **keywords)
    with pytest.raises(
        ValueError, match=r"embeddings must be \(144, D\), a row for every label, not \(3, 6\)"
    ):
        build([6] * 24).refresh(torch.zeros(3, 6))
