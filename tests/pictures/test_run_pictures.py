from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data import ImageArray, SampleSet
from nearkin.pictures.run import contact_sheet, embedding_map, learning_curve, retrieval_gallery

GREEN, RED = np.array([42, 157, 74]), np.array([209, 52, 47])


@pytest.fixture(params=[1, 3], ids=["grey", "colour"])
def images(request) -> SampleSet:
    generator = torch.Generator().manual_seed(0)
    shades = torch.randint(100, 156, (24, request.param, 12, 12), generator=generator, dtype=torch.uint8)
    return SampleSet(ImageArray(shades), torch.arange(24) // 4)


def size_of(path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def pixels_of(path, colour) -> int:
    with Image.open(path) as opened:
        picture = np.asarray(opened.convert("RGB")).astype(int)
    return int((np.abs(picture - colour).max(axis=2) <= 6).sum())


def test_a_perfect_embedding_has_green_frames_only(images, tmp_path):
    embeddings = torch.eye(6)[images.labels] + 0.01 * torch.randn(24, 6)
    retrieval_gallery(images, embeddings, tmp_path / "gallery.png", neighbours=3)
    assert pixels_of(tmp_path / "gallery.png", GREEN) > 1000
    assert pixels_of(tmp_path / "gallery.png", RED) == 0


def test_a_hopeless_embedding_has_red_frames_only(images, tmp_path):
    embeddings = torch.eye(4)[torch.arange(24) % 4] + 0.01 * torch.randn(24, 4)
    retrieval_gallery(images, embeddings, tmp_path / "gallery.png", neighbours=5)
    assert pixels_of(tmp_path / "gallery.png", RED) > 1000
    assert pixels_of(tmp_path / "gallery.png", GREEN) == 0


def test_queries_search_a_gallery_with_its_own_numbering(images, tmp_path):
    gallery = images.of_classes([3, 4, 5])
    queries = images.of_classes([4, 5])
    retrieval_gallery(
        queries,
        torch.eye(6)[queries.labels + 4],
        tmp_path / "gallery.png",
        gallery=gallery,
        gallery_embeddings=torch.eye(6)[gallery.labels + 3],
        neighbours=4,
    )
    assert pixels_of(tmp_path / "gallery.png", GREEN) > 300
    assert pixels_of(tmp_path / "gallery.png", RED) == 0


def test_the_map_shows_every_class_in_its_colour(images, tmp_path):
    embedding_map(images, torch.randn(24, 5), tmp_path / "map.png", side=600)
    with Image.open(tmp_path / "map.png") as picture:
        assert picture.size == (600, 600)
        colours = {c for n, c in picture.getcolors(600 * 600) if n > 100 and len(set(c)) > 1}
    assert len(colours) >= 6


def test_the_map_of_a_few_images(images, tmp_path):
    few = images.select([0, 1, 4])
    embedding_map(few, torch.randn(3, 5), tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize("validated", [True, False])
def test_the_learning_curve(validated, tmp_path):
    scores = {"recall_at_1": 0.5, "recall_at_2": 0.6} if validated else {}
    rows = [{"epoch": 0, **scores}, {"epoch": 1, "loss": 3.0, **scores}, {"epoch": 2, "loss": 2.0, **scores}]
    learning_curve(rows, tmp_path / "curve.png", title="a run", chosen_epoch=2)
    width, height = size_of(tmp_path / "curve.png")
    assert (width > 1.8 * height) == validated


def test_a_contact_sheet_has_a_row_per_class(images, tmp_path):
    contact_sheet(images, tmp_path / "three.png", classes=3)
    contact_sheet(images, tmp_path / "six.png", classes=6)
    assert size_of(tmp_path / "six.png")[1] > 1.7 * size_of(tmp_path / "three.png")[1]
