from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.sampling import BalancedSampler, HardClassesSampler, HardNeighboursSampler


def labels_of(sizes):
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def class_counts(sampler, batch):
    return Counter(sampler.labels[batch].tolist())


def test_divisible_classes_give_p_classes_of_k_images_and_every_image():
    sampler = BalancedSampler(labels_of([10] * 12), batch_size=20, images_per_class=5)
    for epoch in range(20):
        batches = sampler.plan(epoch)
        assert sorted(torch.cat(batches).tolist()) == list(range(120))
        for batch in batches:
            assert list(class_counts(sampler, batch).values()) == [5] * 4


def test_every_class_in_every_batch_where_there_are_just_p_classes():
    sampler = BalancedSampler(labels_of([12] * 4), batch_size=12, images_per_class=3)
    for epoch in range(20):
        assert all(class_counts(sampler, batch) == {0: 3, 1: 3, 2: 3, 3: 3} for batch in sampler.plan(epoch))


def test_a_batch_starts_every_group_at_a_multiple_of_k_so_that_ranks_hold_whole_groups():
    sampler = BalancedSampler(labels_of([10] * 12), batch_size=20, images_per_class=5, rank=1, world_size=2)
    for batch in sampler:
        assert sampler.labels[batch].view(2, 5).unique(dim=1).shape == (2, 1)


def test_short_groups_meet_in_mixed_batches_and_nothing_is_left_out():
    sampler = BalancedSampler(labels_of([7] * 10), batch_size=10, images_per_class=5)
    batches = sampler.plan(0)
    assert sorted(torch.cat(batches).tolist()) == list(range(70))
    kinds = Counter(tuple(sorted(class_counts(sampler, batch).values())) for batch in batches)
    assert kinds == {(5, 5): 5, (2, 2, 2, 2, 2): 2}


def test_classes_of_one_image_are_shown():
    sampler = BalancedSampler(labels_of([1] * 7 + [4] * 4), batch_size=8, images_per_class=4)
    assert sampler.batch_sizes == [8, 8, 7]
    assert sorted(torch.cat(sampler.plan(0)).tolist()) == list(range(23))


def test_the_lone_image_of_a_class_is_another_in_other_epochs():
    sampler = BalancedSampler(labels_of([6, 5]), batch_size=10, images_per_class=5)
    alone = {int(sampler.plan(epoch)[-1]) for epoch in range(100)}
    assert alone == set(range(6))


def test_a_class_too_large_for_the_rule_sits_out_with_its_surplus():
    sampler = BalancedSampler(labels_of([100, 4, 4, 4]), batch_size=4, images_per_class=2)
    assert sampler.batch_sizes == [4] * 6 + [2]  # one group of the large class in each
    seen = set()
    for epoch in range(40):
        batches = sampler.plan(epoch)
        assert all(class_counts(sampler, batch)[0] == 2 for batch in batches)
        assert set(range(100, 112)) < set(torch.cat(batches).tolist())
        seen |= set(torch.cat(batches).tolist())
    assert seen == set(range(112))


@pytest.mark.parametrize("kind", [BalancedSampler, HardClassesSampler, HardNeighboursSampler])
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=15),
    K=st.integers(1, 6),
    P=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_the_rule_holds_whatever_the_class_sizes(kind, sizes, K, P, seed):
    if len(sizes) < P:
        sizes = sizes + [3] * (P - len(sizes))
    sampler = kind(labels_of(sizes), batch_size=P * K, images_per_class=K, seed=seed)
    sampler.refresh(torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(seed)))
    batches = sampler.plan(0)
    counts = [class_counts(sampler, batch) for batch in batches]
    assert all(max(count.values()) <= K for count in counts)
    assert sum(len(batch) < P * K for batch in batches) <= 2

    groups = [size // K for size in sizes]
    regular = max(t for t in range(sum(groups) + 1) if sum(min(g, t) for g in groups) >= t * P)
    if K == 1 or all(size % K != 1 for size in sizes):  # nobody leaves a single image over
        assert sum(list(count.values()) == [K] * P for count in counts) >= regular
    surplus = {label: max(0, g - regular - 1) * K for label, g in enumerate(groups)}
    shown = Counter(sampler.labels[torch.cat(batches)].tolist())
    assert shown == {label: size - surplus[label] for label, size in enumerate(sizes)}


def can_help(poor, donor, K):
    """By trying everything: whether swapping one or two images gives the poor batch a pair and leaves one."""
    for count in (1, 2):
        for out in itertools.combinations(range(len(poor)), min(count, len(poor))):
            for back in itertools.combinations(range(len(donor)), min(count, len(donor))):
                mine = [c for place, c in enumerate(poor) if place not in out] + [donor[b] for b in back]
                theirs = [c for place, c in enumerate(donor) if place not in back] + [poor[o] for o in out]
                counts = Counter(mine), Counter(theirs)
                if len(out) == len(back) and all(2 <= max(count.values()) <= K for count in counts):
                    return True
    return False


@pytest.mark.parametrize("kind", [BalancedSampler, HardClassesSampler, HardNeighboursSampler])
@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    K=st.integers(2, 5),
    P=st.integers(1, 4),
    lonely=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_no_batch_is_without_a_positive_pair_while_another_can_spare_one(kind, sizes, K, P, lonely, seed):
    sizes = sizes + [K + 1] * lonely + [3] * max(0, P - len(sizes) - lonely)
    sampler = kind(labels_of(sizes), batch_size=P * K, images_per_class=K, seed=seed)
    sampler.refresh(torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(seed)))
    batches = [sampler.labels[batch].tolist() for batch in sampler.plan(0)]
    for poor in batches:
        if len(poor) > 1 and len(set(poor)) == len(poor):
            assert not any(can_help(poor, donor, K) for donor in batches if len(set(donor)) < len(donor))


@pytest.mark.parametrize("kind", [BalancedSampler, HardClassesSampler, HardNeighboursSampler])
@given(
    K=st.integers(3, 6),
    P=st.integers(1, 4),
    lonely=st.lists(st.integers(1, 3), min_size=8, max_size=24),
    others=st.lists(st.integers(1, 20), max_size=4),
    seed=st.integers(0, 1000),
)
def test_classes_that_would_leave_a_single_image_halve_their_last(kind, K, P, lonely, others, seed):
    sizes = [groups * K + 1 for groups in lonely] + others
    sampler = kind(labels_of(sizes), batch_size=P * K, images_per_class=K, seed=seed)
    sampler.refresh(torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(seed)))
    batches = sampler.plan(0)
    assert len(torch.cat(batches).unique()) == sampler.images_per_epoch
    assert all(max(class_counts(sampler, batch).values()) <= K for batch in batches)


def test_halves_give_every_image_a_positive_but_where_a_batch_ends():
    """The case that went wrong: 4 of the 55 batches of an epoch had no pair at all."""
    sampler = BalancedSampler(labels_of([21] * 40), batch_size=20, images_per_class=5)
    for epoch in range(5):
        batches = sampler.plan(epoch)
        assert sorted(torch.cat(batches).tolist()) == list(range(840))
        counts = [class_counts(sampler, batch) for batch in batches]
        regular = [count for count in counts if list(count.values()) == [5] * 4]
        assert len(regular) == 30  # three groups of each of 40 classes, and two halves of three images
        assert all(sum(n > 1 for n in count.values()) >= 6 for count in counts if count not in regular)
        assert all(max(count.values()) == 3 for count in counts if count not in regular)


def test_a_batch_of_single_images_gets_half_of_another_and_gives_as_much():
    sampler = BalancedSampler(labels_of([3] * 8), batch_size=8, images_per_class=2)
    for epoch in range(20):
        batches = sampler.plan(epoch)
        assert sorted(torch.cat(batches).tolist()) == list(range(24))
        pairs = sorted(list(class_counts(sampler, batch).values()).count(2) for batch in batches)
        assert pairs == [2, 2, 4]


def test_where_no_batch_can_spare_a_pair_nothing_is_lost():
    sampler = BalancedSampler(labels_of([1] * 30 + [2]), batch_size=4, images_per_class=2)
    batches = sampler.plan(0)
    assert sorted(torch.cat(batches).tolist()) == list(range(32))
    assert sum(max(class_counts(sampler, batch).values()) == 2 for batch in batches) == 1


def test_two_classes_meet_as_often_as_any_two():
    sampler = BalancedSampler(labels_of([6] * 8), batch_size=6, images_per_class=2)
    together = torch.zeros(8, 8)
    for epoch in range(1500):
        for batch in sampler.plan(epoch):
            present = torch.zeros(8)
            present[sampler.labels[batch]] = 1
            together += present.outer(present)
    pairs = together[torch.triu_indices(8, 8, 1).unbind()]
    assert pairs.sum() == 1500 * 8 * 3
    assert (pairs / pairs.mean() - 1).abs().max() < 0.06


@pytest.mark.parametrize(
    ("sizes", "batch_size", "images_per_class", "message"),
    [
        ([9] * 9, 12, 5, "batch_size=12 is not a multiple of images_per_class=5"),
        ([9] * 9, 12, 0, "images_per_class=0 must be at least 1"),
        (
            [9] * 3,
            20,
            5,
            "batch_size=20 with 5 images per class needs 4 classes, but there are 3: use batch_size=15 or "
            "less, or batch_size=18 with images_per_class=6, which nearkin.sampling.fitting chooses",
        ),
        ([9], 20, 5, "needs 4 classes, but there are 1: use batch_size=5 or less"),
    ],
)
def test_impossible_batches_are_refused(sizes, batch_size, images_per_class, message):
    with pytest.raises(ValueError, match=message):
        BalancedSampler(labels_of(sizes), batch_size=batch_size, images_per_class=images_per_class)


def test_more_classes_than_short_integers_can_number():
    sampler = BalancedSampler(torch.arange(80_000) // 2, batch_size=100, images_per_class=2)
    images = torch.cat(sampler.plan(0)).view(-1, 2)
    assert torch.equal(images.flatten().sort().values, torch.arange(80_000))
    assert torch.equal(images[:, 0] // 2, images[:, 1] // 2)


def test_drop_short_keeps_to_p_classes_of_k_images():
    sampler = BalancedSampler(
        labels_of([7, 5, 6, 9, 2, 11]), batch_size=10, images_per_class=5, drop_short=True
    )
    assert sampler.batch_sizes == [10, 10, 10]
    for epoch in range(20):
        assert all(list(class_counts(sampler, batch).values()) == [5] * 2 for batch in sampler.plan(epoch))


def test_drop_short_without_a_class_that_is_large_enough():
    with pytest.raises(ValueError, match="needs 2 classes of at least 5 images, but there are 0$"):
        BalancedSampler(labels_of([4] * 9), batch_size=10, images_per_class=5, drop_short=True)


def test_one_class_alone_fills_batches_of_one_class():
    sampler = BalancedSampler(labels_of([7]), batch_size=3, images_per_class=3)
    assert sampler.batch_sizes == [3, 3, 1]
