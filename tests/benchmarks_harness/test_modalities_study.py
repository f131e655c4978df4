"""The study of images and texts: sentences of names, runs that go on, and a table of what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from measured import BENCHMARKS  # noqa: F401  (puts the benchmarks on the path)

import modalities as study
from nearkin.data import DataSet


def test_names_become_sentences():
    assert study.sentences("Black footed Albatross")[-1] == "an albatross with black feet"
    assert study.sentences("Yellow throated Vireo")[-1] == "a vireo with a yellow throat"
    assert study.sentences("Laysan Albatross")[-1] == "an albatross, and more exactly a laysan one"
    assert study.sentences("Ovenbird") == ["a photo of a ovenbird", "the ovenbird, a species of bird"]


def test_what_is_true_of_two_species_is_not_said():
    texts, classes = study.texts_of(["Red eyed Vireo", "Red eyed Small Vireo", "Gull"])
    assert "a vireo with red eyes" not in texts
    assert sorted(set(classes)) == [0, 1, 2]
    assert len(texts) == len(set(texts)) == len(classes)


def made(classes: int, seed: int):
    draw = np.random.default_rng(seed)
    mixed = np.random.default_rng(9)
    truth = draw.normal(size=(classes, 4))
    images = (truth @ mixed.normal(size=(4, 12))).repeat(6, axis=0).astype(np.float32)
    texts = torch.from_numpy((truth @ mixed.normal(size=(4, 8))).repeat(2, axis=0)).float()
    labels = torch.arange(classes).repeat_interleave(6)
    names = [f"{seed} {number}" for number in range(classes)]
    return study.paired(images, labels, texts, [number // 2 for number in range(2 * classes)], names)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    given = DataSet("made", made(30, 0), made(20, 1))
    runs = study.carry_out(given, folder, ["info_nce", "triplet"], [0, 1], epochs=2)
    again = study.carry_out(given, folder, ["info_nce", "triplet"], [0, 1], epochs=2)
    assert study.summary(runs) == study.summary(again)
    return folder


def test_every_text_of_a_class_has_an_image():
    pairs = made(5, 0).samples.pairs
    assert sorted(pairs[:, 1].unique().tolist()) == list(range(10))
    assert torch.equal(pairs[:, 1] // 2, pairs[:, 0] // 6)


def test_the_page_says_what_the_runs_say(folder, capsys):
    study.main(
        ["--folder", str(folder), "--losses", "info_nce", "triplet", "--page", str(folder / "page.md")]
    )
    text = (folder / "page.md").read_text()
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert {"info_nce", "triplet", "ridge regression between frozen features", "chance, R@1"} <= set(lines)
    runs = [study.Run.existing(folder / "runs" / f"info_nce-{seed}").result for seed in (0, 1)]
    mean = 100 * sum(one.directions["text_to_image"].recall_at[1] for one in runs) / 2
    assert f"{mean:.2f} ±" in lines["info_nce"].split(" | ")[1]
    assert lines["chance, R@1"].startswith("| chance, R@1 | 5.00 |")
    assert "info_nce" in capsys.readouterr().out
