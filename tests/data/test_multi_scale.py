from __future__ import annotations

from collections import Counter

import pytest
import torch

from nearkin import data
from nearkin.data import Preprocessing, transforms

PREPROCESSING = Preprocessing(16, (0.5,) * 3, (0.5,) * 3, resize=20)
PIXELS = data.ImageArray(
    torch.randint(256, (4, 3, 30, 40), generator=torch.Generator().manual_seed(0)).byte()
)


def test_every_scale_is_drawn_as_often_and_is_a_random_crop_there():
    transform = transforms.build("multi_scale", PREPROCESSING, scales=(1.0, 1.5, 2.0))
    seen = Counter()
    for seed in range(900):
        view = transform.view_of(30, 40, seed)
        short = min(view.resized)
        seen[short] += 1
        single = transforms.RandomCrop(16, short)(30, 40, seed)
        assert view == single
    assert set(seen) == {20, 30, 40}
    assert all(240 < count < 360 for count in seen.values())


def test_one_scale_is_simple_crop():
    plain = transforms.build("simple_crop", PREPROCESSING)
    single = transforms.build("multi_scale", PREPROCESSING, scales=(1.0,))
    assert single(PIXELS, [0, 1, 2], [5, 6, 7]).equal(plain(PIXELS, [0, 1, 2], [5, 6, 7]))


def test_evaluation_is_the_centre_crop():
    plain = transforms.build("simple_crop", PREPROCESSING, train=False)
    assert repr(transforms.build("multi_scale", PREPROCESSING, train=False)) == repr(plain)


def test_the_scale_has_nothing_to_do_with_mirroring_and_place():
    transform = transforms.build("multi_scale", PREPROCESSING, scales=(1.0, 2.0))
    views = [transform.view_of(30, 40, seed) for seed in range(2000)]
    mirrored = [sum(view.flip for view in views if min(view.resized) == short) for short in (20, 40)]
    assert all(abs(count - 500) < 70 for count in mirrored)


@pytest.mark.parametrize("scales", [(), (0.5,), (1.0, float("inf")), (float("nan"),)])
def test_scales_that_leave_no_room_are_refused(scales):
    with pytest.raises(ValueError, match="must be numbers of at least 1"):
        transforms.build("multi_scale", PREPROCESSING, scales=scales)
