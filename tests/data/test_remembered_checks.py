from __future__ import annotations

import pytest
from PIL import Image

from nearkin import data
from nearkin.data import remembered_checks


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    for name in "abcd":
        (root / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20, 16), (number * 40, 0, 90)).save(root / name / f"{number}.jpg")
    return root


def bad_names(photos, tmp_path) -> list[str]:
    return [image.name for image in data.bad_images(data.build("folder", photos), folder=tmp_path / "cache")]


def test_the_answer_is_remembered_until_a_file_changes(photos, tmp_path, monkeypatch):
    (photos / "a" / "broken.jpg").write_text("not an image")
    assert bad_names(photos, tmp_path) == ["a/broken.jpg"]
    with monkeypatch.context() as patched:
        patched.setattr(remembered_checks, "check_images", lambda *_, **__: pytest.fail("checked again"))
        assert bad_names(photos, tmp_path) == ["a/broken.jpg"]
    (photos / "b" / "0.jpg").write_bytes(b"")
    assert bad_names(photos, tmp_path) == ["a/broken.jpg", "b/0.jpg"]


def test_a_damaged_answer_is_found_anew(photos, tmp_path):
    (photos / "a" / "broken.jpg").write_text("not an image")
    bad_names(photos, tmp_path)
    (answer,) = (tmp_path / "cache" / "checked").iterdir()
    answer.write_text('[["a"')
    assert bad_names(photos, tmp_path) == ["a/broken.jpg"]


def test_images_in_memory_are_never_bad(glyphs_root, tmp_path):
    glyphs = data.build("glyphs", glyphs_root, num_classes=60, images_per_class=8, size=16)
    assert data.bad_images(glyphs, folder=tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_a_link_to_nothing_is_a_bad_image_until_its_file_is_there(photos, tmp_path):
    (photos / "a" / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    assert bad_names(photos, tmp_path) == ["a/link.jpg"]
    Image.new("RGB", (20, 16)).save(tmp_path / "gone.jpg")
    assert bad_names(photos, tmp_path) == []
