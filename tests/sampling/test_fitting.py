from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.sampling import BalancedSampler, fitting


def labels_of(sizes):
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


@pytest.mark.parametrize(
    ("sizes", "asked", "expected"),
    [
        ([50] * 100, (180, 5), (180, 5)),  # it fits
        ([50] * 10, (180, 5), (180, 18)),  # few large classes: more images of each
        ([8] * 10, (180, 5), (80, 8)),  # few small classes: a smaller batch
        ([2] * 500, (180, 5), (180, 2)),  # many classes of two
        ([1] * 9 + [40] * 8, (20, 4), (20, 2)),  # most have one image, two are asked for
        ([30] * 20, (8, 5), (8, 4)),  # a batch of one class would have no negatives
        ([30], (8, 5), (5, 5)),  # unless there is one class only
        ([30] * 100, (182, 5), (180, 5)),
        ([30] * 2, (1, 1), (1, 1)),
    ],
)
def test_chooses_what_the_classes_allow(sizes, asked, expected):
    assert fitting(labels_of(sizes), *asked) == expected


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    batch_size=st.integers(1, 200),
    images_per_class=st.integers(1, 50),
    world_size=st.sampled_from([1, 1, 2, 4]),
)
def test_a_sampler_can_be_built_from_it(sizes, batch_size, images_per_class, world_size):
    try:
        size, images = fitting(labels_of(sizes), batch_size, images_per_class, world_size=world_size)
    except ValueError:
        assert world_size > 1  # one process can always be served
        return
    assert size <= batch_size
    if len(sizes) > 1 and batch_size > 1 and world_size == 1:
        assert size // images > 1
    sampler = BalancedSampler(
        labels_of(sizes), batch_size=size, images_per_class=images, rank=0, world_size=world_size
    )
    assert sampler.batch_size == size


def test_what_fits_is_left_alone():
    for batch_size, images in [(180, 5), (20, 2), (12, 6)]:
        assert fitting(labels_of([10] * 100), batch_size, images) == (batch_size, images)


def test_ranks_divide_the_batch():
    assert fitting(labels_of([50] * 9), 90, 5, world_size=4) == (80, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], 0, 1), "batch_size=0 must be at least 1"),
        (([0], 1, 0), "images_per_class=0 must be at least 1"),
        (([], 1, 1), "labels are empty"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        fitting(*arguments)


def test_more_processes_than_images_in_a_batch():
    with pytest.raises(ValueError, match="batch_size=2 cannot be divided among world_size=4 processes"):
        fitting([0, 0, 1, 1], 2, 1, world_size=4)
