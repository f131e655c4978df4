"""Copies of images: told by bytes, by picture, across classes and splits."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearkin import data
from nearkin.data.duplicates import find_copies


@pytest.fixture
def folder(tmp_path):
    numbers = np.random.default_rng(0)
    for split, classes in (("train", "abc"), ("test", "xyz")):
        for name in classes:
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(3):
                tiles = numbers.integers(0, 255, (9, 12, 3)).astype(np.uint8)
                image = Image.fromarray(tiles).resize((120, 90), Image.Resampling.NEAREST)
                image.save(tmp_path / "data" / split / name / f"{number}.png")
    return tmp_path / "data"


def test_different_pictures_are_no_copies(folder):
    assert find_copies(data.build("folder", folder)) == []


def test_copies_are_found_and_the_worst_come_first(folder):
    first = folder / "train" / "a" / "0.png"
    (folder / "train" / "a" / "again.png").write_bytes(first.read_bytes())
    second = Image.open(folder / "train" / "a" / "1.png")
    second.resize((240, 180)).save(folder / "train" / "b" / "large.jpg", quality=90)
    (folder / "test" / "x" / "leak.png").write_bytes((folder / "train" / "c" / "0.png").read_bytes())
    found = find_copies(data.build("folder", folder))
    assert [(one.problem, one.identical) for one in found] == [
        ("across splits", True),
        ("across classes", False),
        ("within a class", True),
    ]
    assert set(found[0].splits) == {"train", "test"}
    assert str(found[1]).startswith("the same picture across classes: ")


def test_images_of_one_colour_are_not_taken_for_each_other(tmp_path):
    for name, colour in (("a", 10), ("b", 200)):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("L", (20, 20), colour + number).save(tmp_path / name / f"{number}.png")
    assert find_copies(data.build("folder", tmp_path)) == []


def test_the_command_tells_copies(folder, nearkin):
    (folder / "test" / "x" / "leak.png").write_bytes((folder / "train" / "c" / "0.png").read_bytes())
    code, out, _ = nearkin("datasets", "check", folder)
    assert code == 0
    assert "the same file across splits" in out
    assert "1 picture occurs more than once: 1 across splits" in out
    assert "0 of 19 images cannot be read" in out
    assert "taken for photographs" in out


def test_a_link_to_nothing_is_no_copy_of_anything(folder, tmp_path):
    first = folder / "train" / "a" / "0.png"
    (folder / "train" / "a" / "again.png").write_bytes(first.read_bytes())
    for name in ("gone", "lost"):
        (folder / "train" / "b" / f"{name}.png").symlink_to(tmp_path / "nothing.png")
    (found,) = find_copies(data.build("folder", folder))
    assert found.names == ("a/0.png", "a/again.png")
