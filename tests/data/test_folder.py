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
    with pytest.raises(ValueError, match=r"1 classes are in train and in test \(a\).*data.merge_splits=true"):
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


def names_of(found):
    return sorted({*found.train.class_names, *found.test.class_names})


def test_a_class_is_the_folder_that_directly_holds_images(tmp_path, save_image):
    for name in ("Fruit/Apple", "Fruit/Pear", "Vegetables/Leek", "Nuts"):
        save_image(f"{name}/1.jpg")
        save_image(f"{name}/2.jpg")
    found = data.folder(tmp_path)
    assert names_of(found) == ["Fruit/Apple", "Fruit/Pear", "Nuts", "Vegetables/Leek"]
    assert any("folders with several such folders: Fruit (2)" in note for note in found.notes)


def test_images_beside_deeper_class_folders(tmp_path, save_image):
    for name in ("Fruit", "Fruit/Apple", "Nuts"):
        save_image(f"{name}/1.jpg")
    assert names_of(data.folder(tmp_path)) == ["Fruit", "Fruit/Apple", "Nuts"]


@pytest.mark.parametrize("inner", ["images", "a/b"])
def test_one_inner_folder_of_the_same_name_in_each_class_is_no_class(tmp_path, save_image, inner):
    for name in ("Apple", "Pear", "Leek"):
        save_image(f"{name}/{inner}/1.jpg")
    save_image("Nuts/1.jpg")
    found = data.folder(tmp_path)
    assert names_of(found) == ["Apple", "Leek", "Nuts", "Pear"]
    assert not any("several such folders" in note for note in found.notes)


def test_one_class_folder_in_each_top_folder_is_named_by_its_path(tmp_path, save_image):
    for name in ("Fruit/Apple", "Vegetables/Leek"):
        save_image(f"{name}/1.jpg")
    assert names_of(data.folder(tmp_path)) == ["Fruit/Apple", "Vegetables/Leek"]


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [("Train", "Val", "TEST"), ("training", "valid", "testing"), ("train", "validation", "test")],
)
def test_split_folders_in_any_case(tmp_path, save_image, train, validation, test):
    for split, name in ((train, "a"), (train, "b"), (validation, "c"), (test, "d")):
        save_image(f"{split}/{name}/1.jpg")
    found = data.folder(tmp_path)
    assert (found.train.num_classes, found.validation.class_names, found.test.class_names) == (
        2,
        ("c",),
        ("d",),
    )


def test_without_a_test_folder_classes_of_train_are_held_out(tmp_path, save_image):
    for name in "abcd":
        save_image(f"train/{name}/1.jpg")
    save_image("val/e/1.jpg")
    found = data.folder(tmp_path, test_fraction=0.25)
    assert (found.train.num_classes, found.test.num_classes, found.validation.class_names) == (3, 1, ("e",))
    assert any("1 of the 4 classes of train are held out for the test" in note for note in found.notes)


def test_two_folders_for_one_split_are_refused(tmp_path, save_image):
    for name in ("train/a", "val/b", "valid/c"):
        save_image(f"{name}/1.jpg")
    with pytest.raises(ValueError, match="val and valid are both folders of the validation split"):
        data.folder(tmp_path)


@pytest.mark.parametrize("other", ["test", "val"])
def test_a_split_by_images_is_refused(tmp_path, save_image, other):
    for split in ("train", other):
        for name in "abcdefg":
            save_image(f"{split}/{name}/1.jpg")
    complaint = rf"7 classes are in train and in {other} \(a, b, c, d, e and 2 more\).*data.merge_splits=true"
    with pytest.raises(ValueError, match=complaint):
        data.folder(tmp_path)
    merged = data.folder(tmp_path, merge_splits=True, test_fraction=0.4)
    assert (merged.train.num_classes, merged.test.num_classes, merged.validation) == (4, 3, None)
    files = [part.samples.path(row) for part in (merged.train, merged.test) for row in range(len(part))]
    assert {file.relative_to(tmp_path).as_posix() for file in files} == {
        f"{split}/{name}/1.jpg" for split in ("train", other) for name in "abcdefg"
    }
    assert merged.train.labels.bincount().tolist() == [2] * 4
    assert merged.notes == (f"{tmp_path.name}: train, {other} are taken for one",)


def test_a_class_called_train_is_a_class(tmp_path, save_image):
    for name in ("train", "bus"):
        save_image(f"{name}/1.jpg")
    assert names_of(data.folder(tmp_path)) == ["bus", "train"]


def test_what_is_not_read_is_counted(tmp_path, save_image):
    for name in ("a/1.jpg", "b/1.jpg", "loose.jpg"):
        save_image(name)
    for number in range(3):
        (tmp_path / f"a/{number}.HEIC").touch()
    (tmp_path / "b/x.avif").touch()
    (tmp_path / "b/notes.txt").touch()
    notes = data.folder(tmp_path).notes
    assert any("4 files are not read: 3 .heic, 1 .avif" in note for note in notes)
    assert any("1 images are not read: they lie outside any class folder" in note for note in notes)


def test_a_folder_of_unread_files_says_so(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.heic").touch()
    with pytest.raises(ValueError, match=r"no folder in it has images.*1 files are not read: 1 \.heic"):
        data.folder(tmp_path)


def test_a_wrong_root_is_given_up(tmp_path, save_image):
    for number in range(40):
        (tmp_path / f"a/{number}").mkdir(parents=True)
    save_image("b/1.jpg")
    with pytest.raises(ValueError, match=r"stopped at .*a.* after 21 folders and files that are no images"):
        data.folder(tmp_path, most_other_entries=20)
    for number in range(60):
        save_image(f"A/{number}.jpg", 8, 8)
    save_image("C/1.jpg")
    assert len(data.folder(tmp_path, most_other_entries=20).train) > 0  # mostly images: a right one


@pytest.mark.parametrize("fraction", [0, 1, float("nan"), 0.01])
def test_a_wrong_share_is_called_by_its_key(tmp_path, save_image, fraction):
    for name in "abc":
        save_image(f"{name}/1.jpg")
    with pytest.raises(ValueError, match="^test_fraction="):
        data.folder(tmp_path, test_fraction=fraction)


def test_nothing_is_written_into_the_folder(tmp_path, save_image):
    for name in "abcd":
        save_image(f"photos/{name}/1.jpg")
    before = sorted(tmp_path.rglob("*"))
    found = data.folder(tmp_path / "photos")
    data.bad_images(found)
    found.train.fingerprint()
    assert sorted(tmp_path.rglob("*")) == before
