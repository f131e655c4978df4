"""Made-up identities, and data sets with a million classes whose names are no strings."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import torch

from nearkin import data
from nearkin.data import DataSet, NumberedNames, SampleSet, Vectors, split_classes
from nearkin.data.identities import identities, normal_numbers


def test_the_same_seed_gives_the_same_samples_one_by_one_or_in_batches():
    one, again, other = (identities(num_classes=50, test_classes=5, seed=seed) for seed in (3, 3, 4))
    rows = one.train.samples.batch(range(100))
    assert rows.shape == (100, 64)
    assert torch.equal(rows, again.train.samples.batch(range(100)))
    torch.testing.assert_close(rows[41], one.train.samples[41])
    assert one.train.fingerprint() == again.train.fingerprint() != other.train.fingerprint()
    assert not torch.equal(rows, other.train.samples.batch(range(100)))
    copied = pickle.loads(pickle.dumps(one.train.samples))
    assert torch.equal(copied.batch([7, 3]), rows[[7, 3]])


def test_splits_share_no_identity():
    made = data.build("identities", num_classes=50, test_classes=5, images_per_class=3)
    assert (len(made.train), len(made.test), made.test.num_classes) == (150, 15, 5)
    assert made.test.class_names[0] == "identity 50"
    assert made.test.samples.name(4) == "identity 51, sample 1"


def test_samples_lie_near_their_identity():
    made = identities(num_classes=200, test_classes=5, images_per_class=4, noise=0.3)
    rows = torch.nn.functional.normalize(made.train.samples.batch(range(800)))
    nearest = (rows @ rows.T).fill_diagonal_(-1).argmax(dim=1)
    assert (made.train.labels[nearest] == made.train.labels).float().mean() > 0.9


def test_chosen_samples_are_those():
    made = identities(num_classes=50, test_classes=5)
    chosen = made.train.of_classes([40, 7])
    assert list(chosen.class_names) == ["identity 7", "identity 40"]
    assert torch.equal(chosen.samples[0], made.train.samples[14])
    assert chosen.labels.tolist() == [0, 0, 1, 1]


def test_normal_numbers_are_normal():
    numbers = normal_numbers(1, 0, np.arange(2000), 16)
    assert numbers.mean() == pytest.approx(0, abs=0.02)
    assert numbers.std() == pytest.approx(1, abs=0.02)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(16)).max() < 0.1
    assert not np.array_equal(numbers, normal_numbers(1, 1, np.arange(2000), 16))


@pytest.mark.parametrize(
    "wrong",
    [{"num_classes": 1}, {"images_per_class": 1}, {"features": 0}, {"noise": -1.0}, {"test_classes": 0}],
)
def test_wrong_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"{key}={wrong[key]}"):
        identities(**{"num_classes": 4, "test_classes": 2, **wrong})


def test_names_are_a_sequence():
    names = NumberedNames(5, "person {}")
    assert list(names) == [f"person {number}" for number in range(5)]
    assert names[-1] == "person 4"
    assert list(names[1:3]) == ["person 1", "person 2"]
    assert names == tuple(names)
    assert names != NumberedNames(6, "person {}")
    assert names == NumberedNames(torch.arange(5), "person {}")
    assert "person 3" in names
    assert repr(names) == "NumberedNames(5 × 'person {}')"
    assert hash(names) == hash(NumberedNames(5, "person {}"))


def vectors(count: int) -> Vectors:
    return Vectors(np.zeros((count, 1), dtype=np.float32))


def test_numbers_as_labels_are_what_they_were():
    plain = SampleSet(vectors(4), [7, 3, 7, 10])
    numbers = SampleSet(vectors(4), torch.tensor([7, 3, 7, 10], dtype=torch.int32))
    assert plain.class_names == numbers.class_names == ("3", "7", "10")
    assert torch.equal(plain.labels, numbers.labels)
    assert plain.fingerprint() == numbers.fingerprint()


@pytest.mark.parametrize("labels", [[0, 2], [0, -1], [0, 0]])
def test_wrong_numbers_are_refused(labels):
    with pytest.raises(ValueError, match="labels must use every number from 0 to 1, and no other"):
        SampleSet(vectors(2), torch.tensor(labels), ["a", "b"])
    with pytest.raises(ValueError, match="2 samples but 3 labels"):
        SampleSet(vectors(2), torch.tensor([0, 1, 1]))


def test_a_numbered_class_in_two_splits_is_refused():
    one = SampleSet(vectors(2), torch.arange(2), NumberedNames(torch.tensor([4, 9])))
    other = SampleSet(vectors(2), torch.arange(2), NumberedNames(torch.tensor([9, 5])))
    with pytest.raises(ValueError, match="class '9' is in train and in test"):
        DataSet("both", one, other)
    with pytest.raises(ValueError, match="class '9' is in train and in test"):
        DataSet("both", one, SampleSet(vectors(2), ["9", "8"]))


def test_a_million_classes_are_split_without_a_string_each():
    tracemalloc.start()
    made = identities(num_classes=1_000_000)
    kept, held_out = split_classes(made.train, 0.1, seed=0)
    assert (kept.num_classes, held_out.num_classes) == (900_000, 100_000)
    assert isinstance(kept.class_names, NumberedNames)
    DataSet("split", kept, held_out)
    kept.fingerprint()
    _, peak = tracemalloc.get_traced_memory()  # of Python's objects and numpy's arrays, not torch's tensors
    tracemalloc.stop()
    assert peak < 200e6
