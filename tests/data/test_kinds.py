"""Every kind of samples keeps the contract, and each its own promises."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from other_peoples_data import Columns, Pairs
from PIL import Image
from torch.utils.data import Subset

from nearkin import data
from nearkin.data.dataset_samples import dataset_labels

TEXTS = ["wren", "gull", "a tern  and\na puffin"]


def npy(tmp_path):
    path = tmp_path / "vectors.npy"
    np.save(path, np.arange(6, dtype=np.float64).reshape(3, 2))
    return path


KINDS = {
    "texts": lambda _: (data.Texts(TEXTS), TEXTS),
    "vectors": lambda _: (data.Vectors(np.eye(3)), list(torch.eye(3))),
    "mapped vectors": lambda tmp: (
        data.Vectors(npy(tmp)),
        [torch.tensor([0.0, 1]), torch.tensor([2.0, 3]), torch.tensor([4.0, 5])],
    ),
    "pictures": lambda _: (
        data.Pictures([Image.new("RGB", (4, 2), (i, 0, 0)) for i in range(3)]),
        [torch.tensor([i, 0, 0], dtype=torch.uint8).view(3, 1, 1).expand(3, 2, 4) for i in range(3)],
    ),
    "dataset": lambda _: (data.DatasetSamples(Pairs([(t, 0) for t in TEXTS])), TEXTS),
    "hugging face": lambda _: (
        data.HuggingFaceSamples(Columns([{"text": t, "label": 0} for t in TEXTS]), "text"),
        TEXTS,
    ),
}


def same(one, other):
    return one.equal(other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_the_contract(kind, tmp_path):
    samples, expected = KINDS[kind](tmp_path)
    assert len(samples) == 3
    assert all(same(samples[i], expected[i]) for i in range(3))
    chosen = samples.select([2, 0, 2]).select([0, 1])
    assert len(chosen) == 2
    assert same(chosen[0], expected[2])
    assert same(chosen[1], expected[0])
    assert chosen.name(0) == samples.name(2) != samples.name(0)
    again = pickle.loads(pickle.dumps(chosen))
    assert same(again[0], expected[2])
    assert data.fingerprint(samples) == data.fingerprint(samples.select([0, 1, 2]))
    assert data.fingerprint(samples) != data.fingerprint(samples.select([0, 2, 1]))
    wholly = data.SampleSet(samples, [1, 0, 1])
    assert len(wholly.of_classes([1])) == 2


def test_mapped_vectors_are_pickled_without_their_bytes(tmp_path):
    path = tmp_path / "large.npy"
    np.save(path, np.zeros((1000, 100), dtype=np.float32))
    assert len(pickle.dumps(data.Vectors(path).select(range(10)))) < 2000
    assert len(pickle.dumps(data.Vectors(np.zeros((1000, 100), dtype=np.float32)))) > 400_000


def test_wrong_vectors_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"vectors must be floating-point numbers \(N, F\), not int64 \(2, 2\)"
    ):
        data.Vectors(np.eye(2, dtype=np.int64))
    broken = torch.zeros(5, 2)
    broken[3, 1] = float("nan")
    with pytest.raises(ValueError, match="vector 3 holds a number that is not finite"):
        data.Vectors(broken)
    (tmp_path / "a.npy").write_text("no array")
    with pytest.raises(ValueError, match=r"a\.npy is not a \.npy file of numbers"):
        data.Vectors(tmp_path / "a.npy")


def test_wrong_texts_and_pictures_are_refused():
    with pytest.raises(TypeError, match="text 1 is a int, not a str"):
        data.Texts(["a", 1])
    with pytest.raises(TypeError, match="a list of str, not one str"):
        data.Texts("abc")
    with pytest.raises(TypeError, match="picture 0 is a str, not a PIL image"):
        data.Pictures(["a.jpg"])


def test_names_of_texts_are_short_lines():
    texts = data.Texts(["a  b\nc", "x" * 200])
    assert texts.name(0) == "a b c"
    assert len(texts.name(1)) == 60


def test_pictures_of_any_mode_become_pixels():
    pictures = data.Pictures([Image.new("L", (3, 2), 9), Image.new("RGBA", (3, 2), (0, 0, 0, 0))])
    assert pictures[0].tolist() == [[[9] * 3] * 2]
    assert pictures[1].tolist() == [[[255] * 3] * 2] * 3  # transparency onto white


def test_labels_are_taken_from_targets_only_where_they_fit():
    pairs = [("x", i % 2) for i in range(10)]
    listed = Pairs(pairs, targets=torch.tensor([i % 2 for i in range(10)]))
    assert dataset_labels(listed) == [i % 2 for i in range(10)]
    assert listed.fetched == 3
    for wrong in ([1 - i % 2 for i in range(10)], [0] * 9, torch.zeros(10, 2), {"a": 1}):
        assert dataset_labels(Pairs(pairs, targets=wrong)) == [i % 2 for i in range(10)]
    seen = []
    dataset_labels(Pairs(pairs), progress=lambda *step: seen.append(step))
    assert seen == [(i + 1, 10) for i in range(10)]


def test_labels_of_subsets_and_of_tensors():
    whole = Pairs([("x", torch.tensor(i)) for i in range(6)])
    assert dataset_labels(Subset(Subset(whole, [5, 3, 1]), [0, 2])) == [5, 1]
    with pytest.raises(TypeError, match=r"the label of item 0 has the shape \(2,\)"):
        dataset_labels(Pairs([("x", torch.zeros(2))]))


def test_reading_labels_leaves_the_random_generators_alone():
    class Random(Pairs):
        def __getitem__(self, index):
            return torch.rand(2), index

    before = torch.get_rng_state()
    dataset_labels(Random([0] * 5))
    assert torch.get_rng_state().equal(before)


def test_items_that_are_mappings():
    items = Pairs([{"ids": [1, 2], "mask": [1, 1], "y": 7}])
    assert data.DatasetSamples(items, label="y")[0] == {"ids": [1, 2], "mask": [1, 1]}
    assert data.DatasetSamples(items, label="y", sample="ids")[0] == [1, 2]
    assert dataset_labels(items, label="y") == [7]
    with pytest.raises(
        ValueError, match=r"item 0 is a mapping with the keys ids, mask, y: say which is the lab"
    ):
        dataset_labels(items)
    with pytest.raises(ValueError, match="item 0 has no 'z': its keys are ids, mask, y"):
        dataset_labels(items, label="z")


@pytest.mark.parametrize(
    ("item", "complaint"),
    [(("x", 1, 2), "item 0 is 3 values, not a pair"), (torch.zeros(2), "item 0 is a Tensor, not a pair")],
)
def test_items_that_are_no_pairs(item, complaint):
    with pytest.raises(ValueError, match=complaint):
        dataset_labels(Pairs([item]))


def test_what_is_shown():
    pixels = torch.arange(24, dtype=torch.uint8).view(1, 3, 2, 4)
    assert data.shown(data.ImageArray(pixels), 0).equal(pixels[0])
    assert data.shown(data.Texts(TEXTS), 1) == "gull"
    assert data.shown(data.Vectors(np.eye(3)), 2) == "row 2"
    assert data.shown(data.DatasetSamples(Pairs([(Image.new("L", (2, 2)), 0)])), 0).shape == (1, 2, 2)

    class Stands:
        samples = data.Texts(TEXTS)

    assert data.shown(Stands(), 0) == "wren"
