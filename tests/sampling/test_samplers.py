"""What every registered sampler must do; a new one is checked from the moment it has a name."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from nearkin import sampling

NAMES = sampling.names()
# Twelve classes of 1 to 14 images, in no order, with labels that are no class numbers.
LABELS = 100 - 3 * torch.arange(12).repeat_interleave(torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14]))
LABELS = LABELS[torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(5))]


def build(case, labels=LABELS, batch_size=10, **keywords):
    name, _, refreshed = case.partition(" ")
    sampler = sampling.build(name, labels, batch_size=batch_size, **keywords)
    if refreshed:
        sampler.refresh(torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(1)))
    return sampler


# A sampler that looks at embeddings must keep every promise before it has seen any, and after.
CASES = NAMES + [f"{name} refreshed" for name in NAMES if build(name).needs_embeddings(epoch=0)]


def epoch_of(sampler, epoch=0):
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("name", CASES)
class TestEverySampler:
    def test_no_image_twice_in_an_epoch(self, name):
        batches = epoch_of(build(name))
        images = [image for batch in batches for image in batch]
        if name == "neighbours refreshed":  # an image comes along with whoever it is near to
            assert all(len(batch) == len(set(batch)) for batch in batches)
        else:
            assert len(images) == len(set(images))
        assert set(images) <= set(range(len(LABELS)))

    def test_announced_sizes_are_the_sizes(self, name):
        for drop_last in (False, True):
            sampler = build(name, drop_last=drop_last)
            for epoch in range(3):
                assert [len(batch) for batch in epoch_of(sampler, epoch)] == sampler.batch_sizes
            assert len(sampler) == len(sampler.batch_sizes) > 0
            assert sampler.images_per_epoch == sum(sampler.batch_sizes)

    def test_only_the_end_of_an_epoch_is_incomplete(self, name):
        sizes = build(name).batch_sizes
        assert sizes == sorted(sizes, key=lambda size: size < 10)
        assert max(sizes) == 10
        assert build(name, drop_last=True).batch_sizes == [size for size in sizes if size == 10]

    def test_deterministic_in_seed_and_epoch_and_different_in_each(self, name):
        first = epoch_of(build(name, seed=1), 2)
        torch.manual_seed(99)
        assert epoch_of(build(name, seed=1), 2) == first
        assert epoch_of(build(name, seed=2), 1) != first
        assert epoch_of(build(name, seed=1), 3) != first

    def test_global_random_state_is_left_alone(self, name):
        before = torch.get_rng_state()
        epoch_of(build(name))
        assert torch.equal(torch.get_rng_state(), before)

    def test_plan_is_what_a_pass_gives(self, name):
        sampler = build(name)
        assert [batch.tolist() for batch in sampler.plan(4)] == epoch_of(sampler, 4)

    @pytest.mark.parametrize("world_size", [2, 5])
    def test_ranks_are_disjoint_and_together_the_single_process(self, name, world_size):
        whole = epoch_of(build(name), 1)
        ranks = [epoch_of(build(name, rank=r, world_size=world_size), 1) for r in range(world_size)]
        kept = [batch for batch in whole if len(batch) >= world_size]
        assert len(whole) - len(kept) <= 1
        assert all(len(rank) == len(kept) for rank in ranks)
        for batch, *slices in zip(kept, *ranks, strict=True):
            assert [image for piece in slices for image in piece] == batch
            assert max(map(len, slices)) - min(map(len, slices)) <= 1
            assert min(map(len, slices)) > 0

    def test_resumes_in_mid_epoch(self, name):
        whole = epoch_of(build(name), 3)
        interrupted = build(name)
        interrupted.set_epoch(3)
        batches = iter(interrupted)
        seen = [next(batches), next(batches)]
        state = json.loads(json.dumps(interrupted.state_dict()))
        assert state == {"epoch": 3, "batch": 2}

        resumed = build(name)
        resumed.load_state_dict(state)
        resumed.set_epoch(3)  # as a training loop does at the top of its epoch: it must not lose the place
        assert seen + list(resumed) == whole
        assert resumed.state_dict() == {"epoch": 4, "batch": 0}
        assert list(resumed) == epoch_of(build(name), 4)

    def test_every_pass_is_a_new_epoch_unless_one_is_chosen(self, name):
        sampler = build(name)
        epochs = [epoch_of(build(name), epoch) for epoch in range(4)]
        assert [list(sampler) for _ in range(3)] == epochs[:3]
        sampler.set_epoch(1)
        assert [list(sampler) for _ in range(2)] == epochs[1:3]
        sampler.set_epoch(3)  # where it stands already
        assert list(sampler) == epochs[3]

    def test_a_pass_that_was_left_is_over(self, name):
        sampler = build(name)
        next(iter(sampler))
        assert sampler.state_dict() == {"epoch": 0, "batch": 1}
        assert list(sampler) == epoch_of(build(name), 1)

    def test_a_pass_that_was_left_goes_on_where_its_epoch_is_chosen_again(self, name):
        sampler = build(name)
        first = next(iter(sampler))
        sampler.set_epoch(0)
        assert [first, *sampler] == epoch_of(build(name), 0)

    def test_a_loader_with_workers_sees_new_batches_in_every_epoch(self, name):
        loader = DataLoader(
            torch.arange(len(LABELS)), batch_sampler=build(name), num_workers=1, persistent_workers=True
        )
        passes = [[batch.tolist() for batch in loader] for _ in range(3)]
        assert passes == [epoch_of(build(name), epoch) for epoch in range(3)]

    def test_two_passes_at_once_are_two_epochs(self, name):
        sampler = build(name)
        both = list(zip(sampler, sampler, strict=True))
        assert [first for first, _ in both] == epoch_of(build(name), 0)
        assert [second for _, second in both] == epoch_of(build(name), 1)
        assert sampler.epoch == 2

    def test_a_resumed_sampler_needs_no_new_embeddings(self, name):
        sampler = build(name)
        resumed = build(name.partition(" ")[0])
        resumed.load_tensors(sampler.tensors())
        assert epoch_of(resumed, 2) == epoch_of(sampler, 2)

    def test_resumes_by_batches_trained_on_where_workers_ran_ahead(self, name):
        dataset = torch.arange(len(LABELS))
        whole = epoch_of(build(name), 1)
        sampler = build(name)
        sampler.set_epoch(1)
        trained = 0
        for _ in DataLoader(dataset, batch_sampler=sampler, num_workers=1, prefetch_factor=3):
            trained += 1
            if trained == 2:
                break
        assert sampler.state_dict()["batch"] > trained
        sampler.resume(1, trained)
        rest = [batch.tolist() for batch in DataLoader(dataset, batch_sampler=sampler)]
        assert rest == whole[trained:]

    def test_a_finished_epoch_resumes_to_nothing_and_another_starts_fresh(self, name):
        sampler = build(name)
        sampler.resume(0, len(sampler))
        assert list(sampler) == []
        sampler.resume(0, 1)
        sampler.set_epoch(1)
        assert list(sampler) == epoch_of(build(name), 1)

    def test_wrong_places_are_refused(self, name):
        sampler = build(name)
        with pytest.raises(ValueError, match=f"batch=999 but an epoch has {len(sampler)} batches"):
            sampler.resume(0, 999)
        with pytest.raises(ValueError, match="epoch=-1"):
            sampler.set_epoch(-1)

    @pytest.mark.parametrize(
        ("keywords", "message"),
        [
            ({"batch_size": 0}, "batch_size=0 must be at least 1"),
            ({"seed": -1}, "seed=-1"),
            ({"rank": 2, "world_size": 2}, "rank=2 must be from 0 to world_size - 1, and world_size=2"),
            ({"rank": None, "world_size": 2}, "rank=None and world_size=2: give both, or None for both"),
            (
                {"world_size": 3},
                "batch_size=10 is the batch over all ranks and not a multiple of world_size=3",
            ),
            ({"labels": torch.zeros(4, 2, dtype=torch.long)}, r"not of shape \(4, 2\)"),
            ({"labels": torch.zeros(0, dtype=torch.long)}, r"not of shape \(0,\)"),
            ({"labels": torch.zeros(20)}, "labels must be integers, not torch.float32"),
            ({"batch_sise": 1}, "has no keyword 'batch_sise': did you mean batch_size?"),
        ],
    )
    def test_wrong_arguments_are_named(self, name, keywords, message):
        with pytest.raises(ValueError, match=message):
            build(name, **keywords)


@pytest.mark.parametrize("name", CASES)
@given(
    sizes=st.lists(st.integers(2, 9), min_size=5, max_size=12),
    lonely=st.integers(0, 5),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
)
def test_any_class_sizes_give_a_sound_epoch(name, sizes, lonely, seed, epoch):
    sizes = torch.tensor(sizes + [1] * lonely)
    labels = torch.arange(len(sizes)).repeat_interleave(sizes)
    sampler = build(name, labels, batch_size=10, seed=seed)
    batches = epoch_of(sampler, epoch)
    images = [image for batch in batches for image in batch]
    assert len(images) == sampler.images_per_epoch
    assert len(images) == len(set(images)) or name == "neighbours refreshed"
    assert [len(batch) for batch in batches] == sampler.batch_sizes


def test_unknown_name():
    with pytest.raises(ValueError, match="unknown sampler 'balancd': did you mean balanced?"):
        build("balancd")
