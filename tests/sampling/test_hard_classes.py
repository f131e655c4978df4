from __future__ import annotations

import pytest
import torch

from nearkin.sampling import BalancedSampler, HardClassesSampler

# Six families of four classes that lie close together; labels are no class numbers.
FAMILIES = torch.arange(24) // 4
VECTORS = torch.eye(6)[FAMILIES] + 0.1 * torch.randn(24, 6, generator=torch.Generator().manual_seed(0))


def build(sizes, **keywords):
    labels = 7 * torch.arange(24).repeat_interleave(torch.as_tensor(sizes))
    return HardClassesSampler(labels, **{"batch_size": 12, "images_per_class": 3, **keywords})


def families_of(sampler, batch):
    return FAMILIES[sampler.labels[batch] // 7].unique()


def test_without_vectors_it_is_balanced():
    sampler = build([6] * 24)
    balanced = BalancedSampler(sampler.labels, batch_size=12, images_per_class=3)
    assert all(torch.equal(a, b) for a, b in zip(sampler.plan(3), balanced.plan(3), strict=True))


def test_a_family_meets_and_every_image_comes_once():
    sampler = build([6] * 24)
    sampler.set_class_vectors(VECTORS)
    batches = sampler.plan(0)
    assert sorted(torch.cat(batches).tolist()) == list(range(144))
    for batch in batches:
        assert len(families_of(sampler, batch)) == 1
        assert sampler.labels[batch].unique(return_counts=True)[1].tolist() == [3] * 4


def test_short_groups_of_a_family_meet_too():
    sampler = build([6] * 24, batch_size=4, images_per_class=4)
    sampler.set_class_vectors(VECTORS)
    batches = sampler.plan(0)
    assert sorted(torch.cat(batches).tolist()) == list(range(144))
    mixed = [batch for batch in batches if sampler.labels[batch].unique().numel() == 2]
    assert len(mixed) == 12
    assert all(len(families_of(sampler, batch)) == 1 for batch in mixed)


def test_a_naive_reading_of_the_rule_gives_the_same_batches():
    """Replays the plan with loops: after its seed, a batch has the nearest classes that are left."""
    sampler = build([9] * 24)
    sampler.set_class_vectors(VECTORS)
    generator = torch.Generator().manual_seed(4)
    group_class = torch.arange(24).repeat_interleave(3)
    batches = sampler._compose(group_class, torch.empty(72, 3), generator)

    seeds = iter(group_class[torch.randperm(72, generator=torch.Generator().manual_seed(4))].tolist())
    unit = VECTORS / VECTORS.norm(dim=1, keepdim=True)
    left = [3] * 24
    for number, batch in enumerate(batches):
        due = {c for c in range(24) if left[c] == len(batches) - number}
        seed = next(c for c in seeds if left[c])
        rest = [c for c in range(24) if left[c] and c not in due | {seed}]
        rest.sort(key=lambda c: -float(unit[seed] @ unit[c]))
        expected = (due | {seed}) | set(rest[: 4 - len(due | {seed})])
        assert set(group_class[batch].tolist()) == expected
        for c in expected:
            left[c] -= 1
    assert left == [0] * 24
    assert sorted(batches.flatten().tolist()) == list(range(72))


def test_refresh_takes_means_of_normalised_embeddings():
    sampler = HardClassesSampler([5, 3, 5, 3], batch_size=2, images_per_class=1)
    sampler.refresh(torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 8.0], [0.0, 3.0]]).bfloat16())
    half = 0.5**0.5
    torch.testing.assert_close(sampler.tensors()["class_vectors"], torch.tensor([[0.0, 1.0], [half, half]]))


def test_several_proxies_per_class_count_by_their_mean_direction():
    sampler = HardClassesSampler([0, 1], batch_size=2, images_per_class=1)
    sampler.set_class_vectors(torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [1.0, 0.0]]]))
    half = 0.5**0.5
    torch.testing.assert_close(sampler.tensors()["class_vectors"], torch.tensor([[half, half], [1.0, 0.0]]))


def test_a_resumed_sampler_has_its_vectors():
    sampler = build([6] * 24)
    sampler.set_class_vectors(VECTORS)
    resumed = build([6] * 24)
    resumed.load_tensors(sampler.tensors())
    resumed.resume(2, 3)
    sampler.set_epoch(2)
    assert list(resumed) == list(sampler)[3:]
    resumed.load_tensors(build([6] * 24).tensors())
    assert resumed.tensors() == {}


def test_asks_for_embeddings_every_few_epochs():
    assert [build([6] * 24, refresh_every=3).needs_embeddings(epoch) for epoch in range(5)] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_wrong_shapes_are_named():
    sampler = build([6] * 24)
    with pytest.raises(ValueError, match="23 class vectors for 24 classes among the labels"):
        sampler.set_class_vectors(VECTORS[:-1])
    with pytest.raises(ValueError, match=r"class vectors must be \(C, D\) or \(C, M, D\), not \(24,\)"):
        sampler.set_class_vectors(VECTORS[:, 0])
    with pytest.raises(ValueError, match="23 class vectors for 24 classes"):
        sampler.load_tensors({"class_vectors": VECTORS[:-1]})
    with pytest.raises(
        ValueError, match=r"embeddings must be \(144, D\), a row for every label, not \(24, 6\)"
    ):
        sampler.refresh(VECTORS)
    with pytest.raises(ValueError, match="refresh_every=0"):
        build([6] * 24, refresh_every=0)
