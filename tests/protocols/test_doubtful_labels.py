"""Doubtful labels of all splits: as plain loops find them, in a table and on a contact sheet."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin as library
from nearkin.data import UNKNOWN, ImageArray, SampleSet, Texts, Vectors
from nearkin.protocols.doubtful_labels import Part, doubtful_labels


def naive(parts, k):
    """(name, split, label, suggested, agreement) of every doubt, by loops over names."""
    pool = [
        (name, part.split, part.samples.class_names[int(label)], row / row.norm())
        for part in parts
        for name, label, row in zip(
            map(part.samples.samples.name, range(len(part.samples))),
            part.samples.labels,
            part.embeddings,
            strict=True,
        )
        if int(label) != UNKNOWN
    ]
    found = []
    for i, (name, split, label, row) in enumerate(pool):
        others = [one for j, one in enumerate(pool) if j != i]
        near = sorted(others, key=lambda one: -float(one[3] @ row))[:k]
        said = [one[2] for one in near]
        if label in said or all(one[2] != label for one in others):
            continue
        share = max(said.count(one) for one in said) / len(said)
        found.append(
            (name, split, label, {one for one in said if said.count(one) / len(said) == share}, share)
        )
    return found


def part(split, classes, count, seed, first=0):
    """Random points; class names are common to all parts."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 3, generator=generator)
    labels = [f"class {first + int(n)}" for n in torch.randint(classes, (count,), generator=generator)]
    names = [f"{split} {n}" for n in range(count)]
    return Part(split, SampleSet(Texts(names), labels), points)


@pytest.mark.parametrize("neighbours", [1, 4, 500])
def test_doubts_are_those_of_plain_loops_over_all_parts(neighbours):
    parts = [part("train", 5, 40, 0), part("validation", 4, 15, 1, first=5), part("test", 6, 30, 2, first=3)]
    hidden = parts[0].samples.without_labels([3, 4])
    parts[0] = Part("train", hidden, parts[0].embeddings)
    found = doubtful_labels(parts, neighbours)
    expected = {one[0]: one for one in naive(parts, neighbours)}
    rows = list(found.rows())
    assert {row["sample"] for row in rows} == set(expected)
    assert bool(rows) == (neighbours < 100)
    for row in rows:
        _, split, label, suggested, share = expected[row["sample"]]
        assert (row["split"], row["label"]) == (split, label)
        assert row["suggested"] in suggested
        assert row["agreement"] == pytest.approx(share, abs=1e-4)
    assert [row["agreement"] for row in rows] == sorted((row["agreement"] for row in rows), reverse=True)
    assert sum(found.by_split.values()) == len(found) == len(rows)
    for split, count in found.by_split.items():
        assert count == sum(row["split"] == split for row in rows)


def test_beside_a_doubt_are_the_nearest_samples_of_its_own_label():
    found = doubtful_labels([part("train", 4, 60, 0), part("test", 4, 30, 1)], 3)
    points = torch.cat([one.embeddings for one in found.parts])
    said = [one.samples.class_names[int(n)] for one in found.parts for n in one.samples.labels]
    assert len(found) > 3
    for number, doubt in enumerate(found.doubts):
        own = [n for n, label in enumerate(said) if label == said[doubt.index] and n != doubt.index]
        own.sort(key=lambda n: -float(torch.cosine_similarity(points[n], points[doubt.index], dim=0)))
        shown = [cell.name for cell in found._cells(number) if cell.words.startswith("same label: ")]
        assert 0 < len(shown) <= len(own)
        assert shown == [found.name(n) for n in own[: len(shown)]]


def test_planted_labels_are_found_and_nothing_else(tmp_path):
    """Ten tight groups of which three samples, in two splits, have the label of another group."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(10).repeat_interleave(12, dim=0)
    points = centres + 0.05 * torch.randn(120, 10, generator=generator)
    truth = torch.arange(10).repeat_interleave(12)
    labels = truth.clone()
    planted = {5: 3, 40: 9, 100: 1}
    for row, label in planted.items():
        labels[row] = label
    names = [f"class {n}" for n in range(10)]
    pixels = (20 * truth).view(-1, 1, 1, 1).expand(120, 3, 8, 8).to(torch.uint8)
    images = ImageArray(pixels, [f"{n}.png" for n in range(120)])
    rows = {"train": slice(0, 60), "test": slice(60, 120)}
    parts = [
        Part(
            split,
            SampleSet(images.select(range(120)[own]), [names[n] for n in labels[own].tolist()]),
            points[own],
        )
        for split, own in rows.items()
    ]
    found = doubtful_labels(parts)
    assert {(row["sample"], row["split"], row["label"], row["suggested"]) for row in found.rows()} == {
        ("5.png", "train", "class 3", "class 0"),
        ("40.png", "train", "class 9", "class 3"),
        ("100.png", "test", "class 1", "class 8"),
    }
    assert found.by_split == {"train": 2, "test": 1}
    found.write_table(tmp_path / "doubts.csv")
    with (tmp_path / "doubts.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {key: str(value) for key, value in row.items()} for row in found.rows()
        ]
    found.write_sheet(tmp_path / "doubts.html", title="Doubts <of> birds")
    page = (tmp_path / "doubts.html").read_text()
    assert page.count('<figure class="first">') == 3
    assert page.count("data:image/jpeg;base64,") == 3 * (1 + 5 + 3)
    assert "Doubts &lt;of&gt; birds" in page
    assert "says class 3, looks like class 0 (100% of its neighbours)" in page
    assert "http" not in page
    own = [re.findall(r"<figcaption>(.*?)<br>", row) for row in page.split("<h2>")[1:]]
    for (label, suggested), captions in zip([(3, 0), (9, 3), (1, 8)], own, strict=True):
        assert captions[1:6] == [f"near: class {suggested}"] * 5
        assert captions[6:] == [f"same label: class {label}"] * 3
    found.write_sheet(tmp_path / "one.html", title="One", most=1)
    assert (tmp_path / "one.html").read_text().count('<figure class="first">') == 1
    assert "The first 1 of 3 are shown." in (tmp_path / "one.html").read_text()


def test_samples_that_are_no_images_are_shown_as_words_and_missing_ones_as_missing(tmp_path):
    points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
    labels = ["gull", "gull", "wren", "wren", "wren"]
    texts = SampleSet(Texts([f"text <{n}>" for n in range(5)]), labels)
    doubtful_labels([Part("train", texts, points)], 2).write_sheet(tmp_path / "a.html", title="Texts")
    assert '<div class="none">text &lt;2&gt;</div>' in (tmp_path / "a.html").read_text()
    vectors = SampleSet(Vectors(points), labels)
    doubtful_labels([Part("train", vectors, points)], 2).write_sheet(tmp_path / "b.html", title="Vectors")
    assert (tmp_path / "b.html").read_text().count('<figure class="first">') == 1

    class Gone(Texts):
        def __getitem__(self, index):
            raise OSError("no such file")

    gone = SampleSet(Gone([str(n) for n in range(5)]), labels)
    doubtful_labels([Part("train", gone, points)], 2).write_sheet(tmp_path / "c.html", title="Gone")
    assert (tmp_path / "c.html").read_text().count("cannot be read") == 5


COLOURS = [(200, 30, 30), (30, 200, 30), (30, 30, 200), (200, 200, 30), (200, 30, 200), (30, 200, 200)]
MISFILED = {"train/red 0/wrong.png": 1, "train/blue 0/wrong.png": 4, "test/green 1/wrong.png": 0}
"""Where a picture was put, and which colour it has."""


def write_colours(root):
    """Twelve classes in two splits: light and dark pictures of six colours, and three in a wrong folder."""
    names = ["red", "green", "blue", "yellow", "pink", "cyan"]
    generator = np.random.default_rng(0)

    def save(path, colour, shade):
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = generator.integers(-20, 20, (24, 24, 3))
        pixels = np.clip(np.array(COLOURS[colour]) * (1 - 0.6 * shade) + noise, 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(path)

    for shade, split in enumerate(("train", "test")):
        for colour, name in enumerate(names):
            for number in range(8):
                save(root / split / f"{name} {shade}" / f"{number}.png", colour, shade)
    for path, colour in MISFILED.items():
        save(root / path, colour, int(path.startswith("test")))
    return root


def test_a_folder_with_misfiled_pictures_is_told_where_they_are(nearkin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_colours(tmp_path / "colours")
    settings = ["training.epochs=2", "network.size=16", "network.width=4", "protocol.name=standard"]
    options = [word for one in settings for word in ("--set", one)]
    assert nearkin("train", "colours", *options, "-o", "run")[0] == 0
    code, out, err = nearkin("evaluate", "run")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader((tmp_path / "run/doubtful_labels.csv").read_text().splitlines()))
    found = {(row["split"], row["label"], row["sample"].rpartition("/")[2]) for row in rows}
    assert {tuple(path.split("/")) for path in MISFILED} <= found
    assert len(rows) <= 2 * len(MISFILED)
    assert "run/doubtful_labels.csv" in out
    assert "run/doubtful_labels.html" in out
    assert "says red 0, looks like green 0 (train)" in out
    assert "wrong.png" in (tmp_path / "run/doubtful_labels.html").read_text()
    tested = library.evaluate("run", test_only=True, progress=False)
    assert list(tested.doubtful_labels.by_split) == ["test"]
    assert [row["label"] for row in tested.doubtful_labels.rows()].count("green 1") == 1
