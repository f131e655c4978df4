"""Tables of images and their texts."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearkin import data
from nearkin.data.caption_tables import lists_captions

NAMES = [f"{number}.png" for number in range(6)]


@pytest.fixture
def table(tmp_path):
    for name in NAMES:
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name)

    def write(*lines: str, columns: str = "image,text"):
        path = tmp_path / "captions.csv"
        path.write_text("\n".join([columns, *lines]) + "\n")
        return path

    return write


def test_lines_are_pairs_and_what_they_join_is_one_class(table):
    path = table("0.png,a wren", "0.png,a small bird", "1.png,a small bird", "2.png,a gull", "3.png,a crow")
    assert lists_captions(path)
    found = data.as_data_set(path)
    classes = [
        {found_in.samples.name(row).split(" ~ ")[1] for row in found_in.of_classes([label]).labels.tolist()}
        for found_in in (found.train, found.test)
        for label in range(found_in.num_classes)
    ]
    assert len(classes) == 3  # the wren and the small birds, the gull, the crow
    assert found.notes == ("5 pairs in 3 classes (image: 4, text: 4)",)
    assert found.train.samples.names == ("image", "text")


def test_labels_make_classes(table):
    lines = [f"{n}.png,text {n},{'wren' if n < 3 else 'gull'}" for n in range(6)]
    found = data.build("captions", table(*lines, columns="image,text,label"))
    assert {*found.train.class_names, *found.test.class_names} == {"wren", "gull"}


def test_splits_are_kept(table):
    lines = [
        f"{n}.png,text {n},{split}"
        for n, split in enumerate(["train", "train", "validation", "test", "test"])
    ]
    found = data.build("captions", table(*lines, columns="image,text,split"))
    assert [len(part) for part in (found.train, found.validation, found.test)] == [2, 1, 2]
    assert found.validation.samples.name(0).endswith("2.png ~ text 2")


@pytest.mark.parametrize(
    ("columns", "lines", "message"),
    [
        ("image,text", [], "no lines below its first"),
        ("image,words", ["0.png,a"], "no column text in its first line"),
        ("image,text", ["0.png,a", "1.png,"], "line 3: the text is empty"),
        ("image,text", ["0.png,a,b"], "line 2: not as many fields as the first line has"),
        ("image,text,split", ["0.png,a,learn"], "line 2: split is 'learn', not one of train"),
        (
            "image,text,split",
            ["0.png,a,train", "1.png,b,test", "2.png,b,train"],
            r"'2.png ~ b' belongs together with '1.png ~ b', and they are in the splits train and test",
        ),
        ("image,text,split", ["0.png,a,train", "1.png,b,train"], "no line has the split test"),
        (
            "image,text,label",
            ["0.png,a,x", "0.png,b,y"],
            r"0.png belongs to the classes 'x' and 'y': an item may be of one class only",
        ),
    ],
)
def test_odd_tables_are_told_in_a_sentence(table, columns, lines, message):
    with pytest.raises(ValueError, match=message):
        data.build("captions", table(*lines, columns=columns))


def test_other_tables_are_not_taken_for_captions(tmp_path):
    (tmp_path / "other.csv").write_text("path,label\n0.png,wren\n")
    assert not lists_captions(tmp_path / "other.csv")
    assert not lists_captions(tmp_path / "none.csv")


def test_images_that_cannot_be_read_are_found_and_left_out(table, tmp_path):
    path = table(*(f"{n}.png,text {n}" for n in range(6)))
    (tmp_path / "2.png").write_bytes(b"broken")
    found = data.as_data_set(path)
    bad = data.check_images(found)
    assert [one.name for one in bad] == ["2.png"]
    assert [one.name for one in data.bad_images(found, folder=tmp_path / "cache")] == ["2.png"]
    kept = data.leave_out(found, bad)
    assert len(kept.train) + len(kept.test) == 5
    assert "2.png" in kept.notes[-1]
