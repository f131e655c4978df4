"""The published data sets, from small copies in their own layout, and the real birds where they are."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import torch

from nearkin import data


@pytest.fixture
def cub(tmp_path, save_image):
    """Two classes of each half, two images each, in the official layout."""
    root = tmp_path / "CUB_200_2011"
    classes = {1: "001.Albatross", 100: "100.Pelican", 101: "101.White_Pelican", 200: "200.Yellowthroat"}
    images = [(number, f"{name}/{copy}.jpg") for number, name in classes.items() for copy in "ab"]
    for _, path in images:
        save_image(f"CUB_200_2011/images/{path}")
    (root / "classes.txt").write_text("".join(f"{number} {name}\n" for number, name in classes.items()))
    (root / "images.txt").write_text("".join(f"{i} {path}\n" for i, (_, path) in enumerate(images, 1)))
    (root / "image_class_labels.txt").write_text("".join(f"{i} {n}\n" for i, (n, _) in enumerate(images, 1)))
    return root


def test_cub200_splits_its_classes_in_the_middle_and_reports_other_counts(cub):
    for root in (cub, cub.parent):
        birds = data.build("cub200", root=root)
        assert birds.train.class_names == ("001.Albatross", "100.Pelican")
        assert birds.test.class_names == ("101.White_Pelican", "200.Yellowthroat")
        assert birds.test.labels.tolist() == [0, 0, 1, 1]
        assert birds.train[0][0].shape == (3, 60, 80)
        assert birds.train.samples.name(3) == "images/100.Pelican/b.jpg"
    assert birds.notes == (
        "train: 4 images of 2 classes here, 5,864 of 100 published",
        "test: 4 images of 2 classes here, 5,924 of 100 published",
    )


def test_the_real_cub200_is_as_published(shared):
    birds = data.build("cub200", root=shared / "datasets")
    assert (len(birds.train), len(birds.test)) == (5_864, 5_924)
    assert (birds.train.num_classes, birds.test.num_classes) == (100, 100)
    assert birds.notes == ()
    assert birds.test.class_names[0].startswith("101.")


@pytest.fixture
def cars(tmp_path):
    """196 classes of two images, annotated as in the original file; the files themselves are not there."""
    fields = [("relative_im_path", object), ("class", object), ("test", object)]
    rows = [(f"car_ims/{2 * n + c:06d}.jpg", n + 1, c) for n in range(196) for c in range(2)]
    names = np.array([f"Make {number % 7} Model" for number in range(196)], dtype=object)
    annotations = np.array([rows], dtype=fields)
    scipy.io.savemat(tmp_path / "cars_annos.mat", {"annotations": annotations, "class_names": names})
    return tmp_path


def test_cars196_from_annotations(cars):
    found = data.build("cars196", root=cars)
    assert (len(found.train), len(found.test)) == (196, 196)
    assert found.train.class_names[0] == "001 Make 0 Model"
    assert found.test.class_names[0] == "099 Make 0 Model"
    assert found.test.samples.name(0) == "car_ims/000196.jpg"
    assert found.notes[0] == "train: 196 images of 98 classes here, 8,054 of 98 published"


def test_cars196_from_class_folders(tmp_path):
    for number in range(196):
        (tmp_path / f"{number:03d} Car").mkdir()
        (tmp_path / f"{number:03d} Car" / "1.jpg").touch()
    found = data.build("cars196", root=tmp_path)
    assert found.train.class_names == tuple(f"{number:03d} Car" for number in range(98))
    assert len(found.test) == 98
    (tmp_path / "000 Car" / "1.jpg").unlink()
    (tmp_path / "000 Car").rmdir()
    with pytest.raises(
        FileNotFoundError, match=r"neither cars_annos.mat nor 196 class folders \(195 found\)"
    ):
        data.build("cars196", root=tmp_path)


def test_sop_from_its_lists(tmp_path):
    heading = "image_id class_id super_class_id path\n"
    train = ["1 1 1 bicycle_final/1_0.JPG", "2 1 1 bicycle_final/1_1.JPG", "3 2 1 bicycle_final/2_0.JPG"]
    (tmp_path / "Ebay_train.txt").write_text(heading + "\n".join(train) + "\n")
    (tmp_path / "Ebay_test.txt").write_text(heading + "4 11319 2 cabinet_final/9_0.JPG\n")
    found = data.build("sop", root=tmp_path)
    assert found.train.labels.tolist() == [0, 0, 1]
    assert found.train.class_names == ("00001", "00002")
    assert found.test.samples.path(0) == tmp_path / "cabinet_final/9_0.JPG"
    assert "59,551 of 11,318 published" in found.notes[0]


@pytest.mark.parametrize("layout", ["flat", "official"])
def test_inshop_has_queries_and_a_gallery(tmp_path, layout):
    lists = tmp_path / "Eval" if layout == "official" else tmp_path
    images = tmp_path / "Img" if layout == "official" else tmp_path
    (images / "img").mkdir(parents=True)
    lists.mkdir(exist_ok=True)
    rows = [
        "a id_01 train",
        "b id_01 train",
        "c id_02 query",
        "d id_02 gallery",
        "e id_03 gallery",
        "f id_03 query",
    ]
    lines = "\n".join(f"img/{row.replace(' ', '.jpg   ', 1)}" for row in rows)
    (lists / "list_eval_partition.txt").write_text(f"6\nimage_name item_id evaluation_status\n{lines}\n")
    found = data.build("inshop", root=tmp_path)
    assert (len(found.train), len(found.query), len(found.gallery), len(found.test)) == (2, 2, 2, 4)
    assert found.query.samples.path(0) == images / "img/c.jpg"
    assert found.test.class_names == ("id_02", "id_03")
    assert "14,218 of 3,985 published" in found.notes[1]


def test_labels_of_query_and_gallery_in_one_numbering():
    pixels = data.ImageArray(torch.zeros(3, 1, 4, 4, dtype=torch.uint8))
    query = data.SampleSet(pixels, ["b", "c", "b"])
    gallery = data.SampleSet(pixels, ["a", "b", "c"])
    assert [labels.tolist() for labels in data.common_labels(query, gallery)] == [[1, 2, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cub200", "no images.txt in .* Use download=True, or unpack https"),
        ("cars196", "put car_ims/ .* and cars_annos.mat"),
        ("sop", "no Ebay_train.txt in .* unpack Stanford_Online_Products.zip"),
        ("inshop", "no list_eval_partition.txt in .* agreement must be signed"),
        ("folder", "is not a folder"),
        ("csv", "there is no file"),
    ],
)
def test_a_missing_data_set_says_what_to_do(name, advice, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"(?s)^{name}: .*{advice}"):
        data.build(name, root=tmp_path / "nothing")
    with pytest.raises(ValueError, match=f"{name} needs root="):
        data.build(name)
