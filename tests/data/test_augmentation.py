"""Random changes of pixels: functions of a seed, within their limits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data import ImageArray, Preprocessing, transforms
from nearkin.data.augmentation import Augmentation

PIXELS = torch.randint(0, 256, (3, 24, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("keywords", [{"colour": 0.5}, {"erase": 1.0}, {"rand_augment": 3}])
def test_the_seed_decides(keywords):
    augmentation = Augmentation(**keywords)
    assert augmentation(PIXELS, 3).equal(augmentation(PIXELS, 3))
    different = {augmentation(PIXELS, seed).sum().item() for seed in range(20)}
    assert len(different) > 5
    assert PIXELS.dtype == augmentation(PIXELS, 1).dtype


def test_nothing_asked_for_is_nothing_done():
    assert not Augmentation()
    assert Augmentation()(PIXELS, 5).equal(PIXELS)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(1, 40), st.integers(1, 40))
def test_an_erased_box_has_the_mean_colour_and_a_limited_area(seed, height, width):
    pixels = PIXELS.repeat(1, 2, 2)[:, :height, :width]
    erased = Augmentation(erase=1.0)(pixels, seed)
    changed = (erased != pixels).any(dim=0)
    mean = pixels.float().mean(dim=(1, 2)).round().to(torch.uint8)
    assert (erased[:, changed] == mean[:, None]).all()
    assert changed.sum() <= max(0.25 * height * width + height + width, 1)


def test_an_image_is_erased_as_often_as_asked():
    augmentation = Augmentation(erase=0.3)
    share = sum(not augmentation(PIXELS, seed).equal(PIXELS) for seed in range(400)) / 400
    assert 0.22 < share < 0.38


@pytest.mark.parametrize(
    "keywords", [{"colour": 2.0}, {"erase": -0.1}, {"rand_augment": 99}, {"magnitude": 3.0}]
)
def test_wrong_values_are_named(keywords):
    (name,) = keywords
    with pytest.raises(ValueError, match=f"{name}="):
        Augmentation(**keywords)


@pytest.mark.parametrize("name", ["resized_crop", "simple_crop"])
def test_transforms_take_them_in_training_only(name):
    photos = ImageArray(PIXELS.repeat(1, 4, 4)[None])
    preprocessing = Preprocessing(24, (0.5,) * 3, (0.5,) * 3)
    plain = transforms.build(name, preprocessing)
    changed = transforms.build(name, preprocessing, erase=1.0)
    assert not changed(photos, [0], [1]).equal(plain(photos, [0], [1]))
    outside = transforms.build(name, preprocessing, train=False, erase=1.0)
    assert outside(photos, [0], [1]).equal(
        transforms.build(name, preprocessing, train=False)(photos, [0], [1])
    )
