from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from samples_of_any_kind import KINDS, SENTENCES, samples_of_kind

from nearkin.data import SampleSet
from nearkin.pictures.run import (
    contact_sheet,
    embedding_map,
    fold_curves,
    learning_curve,
    retrieval_gallery,
)
from nearkin.pictures.style import DARK, LIGHT, Theme

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)


@pytest.fixture(params=KINDS)
def samples(request) -> SampleSet:
    return samples_of_kind(request.param)


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def pixels_of(path: Path, colour: str) -> int:
    with Image.open(path) as opened:
        picture = np.asarray(opened.convert("RGB")).astype(int)
    wanted = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return int((np.abs(picture - wanted).max(axis=2) <= 6).sum())


def words_in(path: Path) -> str:
    """Everything written in an SVG, line after line."""
    found = ElementTree.fromstring(path.read_text(encoding="utf-8")).iter("{http://www.w3.org/2000/svg}text")
    return " ".join("".join(element.itertext()) for element in found)


def classes_apart(samples: SampleSet) -> torch.Tensor:
    noise = torch.randn(len(samples), samples.num_classes, generator=torch.Generator().manual_seed(0))
    return torch.eye(samples.num_classes)[samples.labels] + 0.01 * noise


def classes_mixed(samples: SampleSet) -> torch.Tensor:
    """The nearest neighbours of a sample are those at the same place in the other classes."""
    place = torch.arange(len(samples)) % (len(samples) // samples.num_classes)
    return torch.eye(int(place.max()) + 1)[place] + 0.01 * torch.randn(len(samples), int(place.max()) + 1)


WITHOUT_STRIPS = tuple(kind for kind in KINDS if kind != "vectors")  # a strip has the same colours


@THEMES
@pytest.mark.parametrize("kind", WITHOUT_STRIPS)
def test_a_perfect_embedding_has_frames_of_positives_only(kind, tmp_path, theme: Theme):
    samples, path = samples_of_kind(kind), tmp_path / "gallery.png"
    few = len(samples) // samples.num_classes - 1
    retrieval_gallery(samples, classes_apart(samples), path, queries=3, neighbours=few, theme=theme)
    assert pixels_of(path, theme.positive) > 1000
    assert pixels_of(path, theme.negative) == 0


@pytest.mark.parametrize("kind", WITHOUT_STRIPS)
def test_a_hopeless_embedding_has_frames_of_negatives_only(kind, tmp_path):
    samples, path = samples_of_kind(kind), tmp_path / "gallery.png"
    retrieval_gallery(samples, classes_mixed(samples), path, queries=3, neighbours=3)
    assert pixels_of(path, LIGHT.negative) > 1000
    assert pixels_of(path, LIGHT.positive) == 0


def test_queries_search_a_gallery_with_its_own_numbering(tmp_path):
    samples = samples_of_kind("images3")
    gallery, queries = samples.of_classes([3, 4, 5]), samples.of_classes([4, 5])
    retrieval_gallery(
        queries,
        torch.eye(6)[queries.labels + 4],
        tmp_path / "gallery.png",
        gallery=gallery,
        gallery_embeddings=torch.eye(6)[gallery.labels + 3],
        neighbours=4,
    )
    assert pixels_of(tmp_path / "gallery.png", LIGHT.positive) > 300
    assert pixels_of(tmp_path / "gallery.png", LIGHT.negative) == 0


def test_right_and_wrong_are_also_said_without_colours(tmp_path):
    samples = samples_of_kind("images1")
    retrieval_gallery(samples, classes_apart(samples), tmp_path / "a.svg", neighbours=4, queries=6)
    words = words_in(tmp_path / "a.svg")
    assert (words.count("✓"), words.count("✗")) == (6 * 3, 6)


def test_texts_are_written_into_galleries_sheets_and_maps(tmp_path):
    samples = samples_of_kind("texts")
    draw = {
        "gallery": partial(retrieval_gallery, samples, classes_apart(samples), neighbours=11),
        "sheet": partial(contact_sheet, samples),
        "map": partial(embedding_map, samples, classes_apart(samples)),
    }
    for name, picture in draw.items():
        path = tmp_path / f"{name}.svg"
        picture(path)
        words = words_in(path)
        assert "Gold is up." in words
        assert "Она" in words
        assert "$6" in words
        assert "<b>" in words
        for class_name in SENTENCES if name != "gallery" else ():
            assert class_name in words


def test_things_are_named(tmp_path):
    samples = samples_of_kind("things")
    contact_sheet(samples, tmp_path / "a.svg")
    words = words_in(tmp_path / "a.svg")
    assert all(f"sample {index}" in words for index in range(24))


def test_what_cannot_be_drawn_on_a_map_without_hiding_something_is_a_mark(tmp_path):
    samples = samples_of_kind("things")
    embedding_map(samples, classes_apart(samples), tmp_path / "crowded.svg", side=150)
    embedding_map(samples, classes_apart(samples), tmp_path / "wide.svg", side=3000)
    crowded, wide = (words_in(tmp_path / name).count("sample") for name in ("crowded.svg", "wide.svg"))
    assert crowded < wide <= 24


def test_the_map_shows_every_class_in_its_colours(tmp_path):
    path = tmp_path / "map.png"
    embedding_map(samples_of_kind("images3"), torch.randn(24, 5), path, side=900)
    assert size_of(path) == (900, 900)
    assert all(pixels_of(path, colour) > 300 for colour in LIGHT.series[:6])
    assert all(pixels_of(path, colour) == 0 for colour in LIGHT.series[6:7])


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", ["images3", "texts"])
def test_the_map_of_a_few_samples(kind, count, tmp_path):
    few = samples_of_kind(kind).select(list(range(count)))
    embedding_map(few, torch.randn(count, 5), tmp_path / "map.png", side=400)
    assert (tmp_path / "map.png").stat().st_size > 500


def metrics(epochs: int, validated: bool = True) -> list[dict[str, float]]:
    scores = {"recall_at_1": 0.5, "recall_at_2": 0.6} if validated else {}
    return [{"epoch": e, **scores} | ({"loss": 3.0 / e} if e else {}) for e in range(epochs + 1)]


@pytest.mark.parametrize("validated", [True, False])
def test_the_learning_curve(validated, tmp_path):
    rows = metrics(2, validated)
    learning_curve(rows, tmp_path / "curve.png", title="a run", chosen_epoch=2)
    width, height = size_of(tmp_path / "curve.png")
    assert (width > 1.8 * height) == validated
    learning_curve(rows, tmp_path / "curve.svg", title="a $run_1$", chosen_epoch=2)
    words = words_in(tmp_path / "curve.svg")
    assert "a $run_1$" in words
    assert ("chosen: epoch 2" in words) == validated


def test_a_contact_sheet_has_a_row_per_class(samples, tmp_path):
    contact_sheet(samples, tmp_path / "two.png", classes=2, samples_per_class=2)
    contact_sheet(samples, tmp_path / "four.png", classes=4, samples_per_class=2)
    assert size_of(tmp_path / "four.png")[1] > 1.7 * size_of(tmp_path / "two.png")[1]


def every_picture(folder: Path, kind: str, theme: Theme, ending: str) -> list[Path]:
    samples = samples_of_kind(kind)
    embeddings = classes_apart(samples)
    names = ("gallery", "sheet", "map", "curve", "folds")
    gallery, sheet, landscape, curve, folds = paths = [folder / f"{name}.{ending}" for name in names]
    retrieval_gallery(samples, embeddings, gallery, queries=3, neighbours=4, theme=theme)
    contact_sheet(samples, sheet, classes=3, samples_per_class=4, theme=theme)
    embedding_map(samples, embeddings, landscape, side=500, theme=theme)
    learning_curve(metrics(3), curve, title="a run", chosen_epoch=2, theme=theme)
    fold_curves([metrics(3), metrics(4)], folds, title="a run", chosen_epochs=[1, 2], theme=theme)
    return paths


@THEMES
@pytest.mark.parametrize("kind", ["texts", "things", "images3"])
def test_pictures_use_the_colours_of_their_theme_only(kind, theme: Theme, tmp_path):
    allowed = set(theme.css().values())
    for path in every_picture(tmp_path, kind, theme, "svg"):
        svg = re.sub(r"base64,[^\"]*", "", path.read_text(encoding="utf-8"))
        used = set(re.findall(r"(?:fill|stroke|color)\s*[:=]\s*\"?(#[0-9a-f]{3,8})", svg))
        assert used
        assert used <= allowed, path.name


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_pictures_are_the_same_files(ending, tmp_path):
    first = every_picture(tmp_path / "a", "texts", LIGHT, ending)
    second = every_picture(tmp_path / "b", "texts", LIGHT, ending)
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_an_unknown_format_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(ValueError, match=r"a.jpg: pictures are written as png, svg, pdf"):
        embedding_map(samples_of_kind("texts"), None, tmp_path / "a.jpg")
