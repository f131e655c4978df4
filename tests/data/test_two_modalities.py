"""Pairs of two modalities: items once each, classes that follow from pairs, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin import data
from nearkin.data import AsIs, EachModality, SampleSet, Texts, TwoModalities, join
from nearkin.data.two_modalities import modality


def test_items_that_share_a_pair_are_of_one_class():
    images = np.arange(12, dtype=np.float32).reshape(6, 2)
    captions = [f"caption {n}" for n in range(7)]
    pairs = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 5), (5, 6)]
    found = data.modalities(images, captions, pairs=pairs, test_fraction=0.4)
    whole = join(found.train, found.test)
    assert len(whole) == 8
    assert whole.num_classes == 5
    by_pair = {
        tuple(pair): int(label)
        for pair, label in zip(whole.samples.pairs.tolist(), whole.labels, strict=True)
    }
    assert by_pair[0, 0] == by_pair[0, 1]
    assert by_pair[4, 5] == by_pair[5, 5] == by_pair[5, 6]
    assert len({by_pair[pair] for pair in ((0, 0), (1, 2), (2, 3), (3, 4), (4, 5))}) == 5
    assert found.notes == ("8 pairs in 5 classes (image: 6, text: 7)",)


def test_texts_that_occur_twice_are_one_item():
    found = data.modalities(
        np.eye(6, dtype=np.float32), ["a", "b", "c"] * 2, ["x", "y", "z"] * 2, test_fraction=0.3
    )
    rows = torch.cat([torch.arange(len(found.train))[:, None]] * 4, dim=1).float()
    texts, own = modality(found.train, rows, 1)
    assert len(texts) == 2
    assert sorted(texts.samples.texts) == sorted({found.train.samples[row][1] for row in range(4)})
    assert own.shape == (2, 2)
    images, _ = modality(found.train, rows, 0)
    assert len(images) == 4


def test_each_modality_keeps_its_half_and_the_label_of_its_pair():
    pairs = TwoModalities(Texts(["a", "b"]), Texts(["x", "y", "z"]), torch.tensor([[0, 0], [0, 1], [1, 2]]))
    embeddings = torch.arange(12.0).reshape(3, 4)
    first, one = modality(SampleSet(pairs, [5, 5, 7]), embeddings, 0)
    second, other = modality(SampleSet(pairs, [5, 5, 7]), embeddings, 1)
    assert (first.samples.texts, first.labels.tolist()) == (("a", "b"), [0, 1])
    assert torch.equal(one, embeddings[[0, 2], :2])
    assert (second.samples.texts, second.labels.tolist()) == (("x", "y", "z"), [0, 0, 1])
    assert torch.equal(other, embeddings[:, 2:])


def test_a_batch_is_one_input_for_each():
    pairs = TwoModalities(data.Vectors(np.eye(3, dtype=np.float32)), Texts(["a", "b", "c"]))
    vectors, texts = AsIs()(pairs, [2, 0], [0, 0])
    assert torch.equal(vectors, torch.eye(3)[[2, 0]])
    assert texts == ["c", "a"]
    upper = EachModality(second=data.PerSample(str.upper))
    assert upper(pairs, [1], [0])[1] == ["B"]
    with pytest.raises(TypeError, match="EachModality is for pairs of two modalities, not for Texts"):
        upper(Texts(["a"]), [0], [0])


def test_fingerprints_change_with_items_and_with_pairs():
    first, second = Texts(["a", "b"]), Texts(["x", "y"])
    known = TwoModalities(first, second).fingerprint()
    assert (
        TwoModalities(Texts(["a", "b", "unused"]), second, torch.tensor([[0, 0], [1, 1]])).fingerprint()
        == known
    )
    assert TwoModalities(first, second, torch.tensor([[0, 1], [1, 0]])).fingerprint() != known
    assert TwoModalities(first, Texts(["x", "z"])).fingerprint() != known


def test_sets_of_other_items_can_be_joined():
    one = TwoModalities(Texts(["a"]), Texts(["x"]))
    both = one.joined(TwoModalities(Texts(["b"]), Texts(["y"])))
    assert [both[row] for row in range(2)] == [("a", "x"), ("b", "y")]
    assert both.name(1) == "b ~ y"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first": ["a"], "second": ["x", "y"]}, "1 samples of one modality and 2 of the other"),
        (
            {"first": ["a", "b"], "second": ["x", "y"], "pairs": [(0, 2)]},
            "position 2 is not one of 2 samples",
        ),
        ({"first": ["a", "b"], "second": ["x", "y"], "pairs": [0]}, r"rows of two positions, not \(1,\)"),
        (
            {"first": ["a", "b"], "second": ["x", "x"], "labels": [0, 1]},
            "x belongs to the classes '0' and '1'",
        ),
        ({"first": ["a", "b"], "second": ["x", "y"], "labels": [0]}, "2 samples but 1 labels"),
        ({"first": ["a", "b"], "second": ["x", "x"]}, "are of one class"),
    ],
)
def test_what_does_not_fit_is_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.modalities(**arguments)
