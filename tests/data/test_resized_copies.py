from __future__ import annotations

import pytest
import torch
from PIL import Image

from nearkin import data


@pytest.fixture
def photos(save_image):
    paths = [
        save_image("a.jpg", 300, 400),
        save_image("b/a.png", 500, 200, seed=1),
        save_image("small.jpg", 30, 40),
    ]
    root = paths[0].parent
    names = [path.relative_to(root).as_posix() for path in paths]
    return data.SampleSet(data.ImageFiles(names, root), ["x", "y", "x"])


def test_copies_are_smaller_and_show_the_same(photos, tmp_path):
    copies = data.resized_copy(photos, tmp_path / "copies", short_side=64)
    assert [tuple(copies[i][0].shape[1:]) for i in range(3)] == [(64, 85), (160, 64), (30, 40)]
    assert copies.labels.equal(photos.labels)
    assert copies.class_names == photos.class_names
    transform = data.evaluation_transform(
        data.Preprocessing(56, (0.0,) * 3, (1.0,) * 3, value_range=255, resize=64)
    )
    for index in range(3):
        original, copy = (transform(s.samples, [index], [0]) for s in (photos, copies))
        assert (original - copy).abs().mean() < 3


def test_copies_are_kept_until_the_originals_change(photos, tmp_path):
    first = data.resized_copy(photos, tmp_path / "copies", short_side=64)
    written = [first.samples.path(i).stat().st_mtime_ns for i in range(3)]
    first.samples.path(1).unlink()  # as if interrupted
    seen = []
    again = data.resized_copy(photos, tmp_path / "copies", short_side=64, progress=lambda *c: seen.append(c))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [again.samples.path(i).stat().st_mtime_ns == written[i] for i in range(3)] == [True, False, True]
    Image.new("RGB", (90, 90), "red").save(photos.samples.path(0))
    changed = data.resized_copy(photos, tmp_path / "copies", short_side=64)
    assert changed[0][0].shape == (3, 64, 64)


def test_only_files_have_copies(tmp_path):
    array = data.SampleSet(data.ImageArray(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)), [0])
    with pytest.raises(TypeError, match="takes images on disk, not ImageArray"):
        data.resized_copy(array, tmp_path)


def test_fingerprints_tell_images_apart(photos, save_image):
    whole = data.fingerprint(photos.samples)
    assert whole == data.fingerprint(photos.samples.select([0, 1, 2]))
    assert whole != data.fingerprint(photos.samples.select([0, 2, 1]))
    pixels = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    before = data.fingerprint(data.ImageArray(pixels))
    assert before == data.fingerprint(data.ImageArray(pixels.clone()))
    pixels[1, 0, 2, 2] = 1
    assert before != data.fingerprint(data.ImageArray(pixels))
    save_image("a.jpg", 300, 401)
    assert whole != data.fingerprint(photos.samples)
