from __future__ import annotations

import pytest

from nearkin import data


def test_classes_are_split_where_there_are_no_split_folders(tmp_path, save_image):
    for number in range(10):
        for copy in range(2):
            save_image(f"class {number}/{copy}.jpg")
    found = data.build("folder", root=tmp_path, test_fraction=0.3)
    assert (found.train.num_classes, found.test.num_classes) == (7, 3)
    assert not set(found.train.class_names) & set(found.test.class_names)
    assert data.build("folder", root=tmp_path, test_fraction=0.3).test.class_names == found.test.class_names
    other = data.build("folder", root=tmp_path, test_fraction=0.3, seed=1)
    assert other.test.class_names != found.test.class_names


def test_split_folders_are_taken_as_they_are(tmp_path, save_image):
    for split, name in [("train", "a"), ("train", "b"), ("val", "c"), ("test", "d")]:
        save_image(f"{split}/{name}/1.jpg")
        save_image(f"{split}/{name}/2.PNG")
    found = data.build("folder", root=tmp_path)
    assert (found.train.class_names, found.validation.class_names, found.test.class_names) == (
        ("a", "b"),
        ("c",),
        ("d",),
    )
    assert [found.train.samples.name(i) for i in range(2)] == ["a/1.jpg", "a/2.PNG"]
    save_image("test/a/1.jpg")
    with pytest.raises(ValueError, match=r"1 classes are in train and in test \(a\).*merge these folders"):
        data.build("folder", root=tmp_path)


@pytest.fixture
def awkward(tmp_path, save_image):
    """An empty class, a class of one, broken files, links in a circle, and names from all over the world."""
    (tmp_path / "empty").mkdir()
    save_image("single/1.jpg")
    for name in (
        "鳥/ツバメ.jpg",
        "鳥/🦅 2.jpg",
        "Zaunkönig/é.jpg",
        "Zaunkönig/2.jpg",
        "plain/1.jpg",
        "plain/2.jpg",
    ):
        save_image(name)
    (tmp_path / "plain/text.jpg").write_text("no image")
    (tmp_path / "plain/nothing.jpg").touch()
    (tmp_path / "plain/notes.txt").write_text("not even called an image")
    (tmp_path / "plain/.hidden.jpg").write_text("no image")
    (tmp_path / "plain/loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "plain/again").symlink_to("..", target_is_directory=True)
    (tmp_path / "plain/self").symlink_to(".", target_is_directory=True)
    return tmp_path


def test_an_awkward_folder_is_read_with_notes(awkward):
    found = data.build("folder", root=awkward)
    names = {s.samples.name(i) for s in (found.train, found.test) for i in range(len(s))}
    below_plain = {name for name in names if name.startswith("plain/") and "again" not in name}
    assert below_plain == {f"plain/{file}.jpg" for file in ("1", "2", "text", "nothing", "loop")}
    assert {"鳥/ツバメ.jpg", "鳥/🦅 2.jpg", "Zaunkönig/é.jpg"} <= names
    assert not any("hidden" in name or "self" in name for name in names)
    assert any("classes left out because they have no image: empty" in note for note in found.notes)
    assert any("classes with only one image, which has no match: single" in note for note in found.notes)


def test_an_awkward_folder_is_checked_and_cleaned(awkward):
    (awkward / "plain/again").unlink()
    found = data.build("folder", root=awkward)
    seen = []
    bad = data.check_images(found, workers=2, progress=lambda done, total: seen.append((done, total)))
    assert {image.name: image.reason for image in bad} == {
        "plain/text.jpg": "not an image in any known format",
        "plain/nothing.jpg": "empty file (0 bytes)",
        "plain/loop.jpg": "too many levels of symbolic links",
    }
    assert seen[-1] == (10, 10)
    text = next(image for image in bad if image.name == "plain/text.jpg")
    assert str(text) == f"{awkward / 'plain/text.jpg'}: not an image in any known format"
    clean = data.leave_out(found, bad)
    assert data.check_images(clean) == []
    assert len(clean.train) + len(clean.test) == 7
    assert clean.notes[:-1] == found.notes
    assert clean.notes[-1].startswith("left out 3 images that cannot be read: ")
    assert "plain/text.jpg: not an image in any known format" in clean.notes[-1]
    assert data.leave_out(found, []) is found


def test_links_to_the_folder_above_do_not_go_round_in_circles(awkward):
    found = data.build("folder", root=awkward)
    plain = [s.samples.name(i) for s in (found.train, found.test) for i in range(len(s))]
    assert plain
    assert not any("again" in name for name in plain)
    assert not any("/" in name for name in (*found.train.class_names, *found.test.class_names))


def test_folders_without_any_image_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="no folder in it has images .*each class needs a folder of its own"):
        data.build("folder", root=tmp_path)


def test_a_split_without_a_good_image_is_refused(tmp_path, save_image):
    save_image("train/a/1.jpg")
    (tmp_path / "test/b").mkdir(parents=True)
    (tmp_path / "test/b/1.jpg").touch()
    found = data.build("folder", root=tmp_path)
    with pytest.raises(ValueError, match="folder: no image of test can be read"):
        data.leave_out(found, data.check_images(found))


def test_a_class_whose_images_are_all_bad_disappears(tmp_path, save_image):
    for name in ("a", "b"):
        save_image(f"train/{name}/1.jpg")
    save_image("test/c/1.jpg")
    (tmp_path / "train/b/1.jpg").write_bytes(b"")
    found = data.build("folder", root=tmp_path)
    clean = data.leave_out(found, data.check_images(found.train))
    assert clean.train.class_names == ("a",)
