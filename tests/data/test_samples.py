from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin import data
from nearkin.data import ImageArray, SampleSet
from nearkin.data.joining import join

THREE = data.Texts(["a", "b", "c"])


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ([0, 1], "3 samples but 2 labels"),
        (
            [0, "x", 1],
            r"labels must be of one kind: that of sample 0 is a number \(0\), that of sample 1 a str",
        ),
        (["x", None, "y"], "sample 1 has no label: it is None"),
        (["x", "y", ""], "sample 2 has no label: it is ''"),
        ([0.0, float("nan"), 1.0], "sample 1 has no label: it is nan"),
    ],
)
def test_wrong_labels_are_refused(labels, complaint):
    with pytest.raises(ValueError, match=complaint):
        data.SampleSet(THREE, labels)


@pytest.mark.parametrize("labels", [[10, 9, 10], np.array([10, 9, 10]), torch.tensor([10, 9, 10])])
def test_numbers_are_sorted_as_numbers(labels):
    found = data.SampleSet(THREE, labels)
    assert found.labels.tolist() == [1, 0, 1]
    assert found.class_names == ("9", "10")


def test_a_share_of_classes_is_called_what_the_caller_calls_it():
    with pytest.raises(
        ValueError, match=r"data\.share=0.1 of 3 classes holds out 0, which leaves one side empty"
    ):
        data.split_classes(data.SampleSet(THREE, "xyz"), 0.1, 0, what="data.share")
    with pytest.raises(ValueError, match="all 3 samples are of one class, x: at least two classes"):
        data.split_classes(data.SampleSet(THREE, "xxx"), 0.5, 0)
    for wrong in (float("nan"), 0, 1, -0.5):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            data.split_classes(data.SampleSet(THREE, "xyz"), wrong, 0)
    for seed in (-1, 2**63, 2**64):
        with pytest.raises(ValueError, match=f"seed={seed} must be at least 0 and less than"):
            data.split_classes(data.SampleSet(THREE, "xyz"), 0.5, seed)


def test_a_data_set_without_a_test_split_says_so():
    with pytest.raises(ValueError, match="toy has no test split"):
        data.DataSet("toy", data.SampleSet(THREE, "xyz")).require_test()


def test_unknown_labels_stay_unknown_whatever_becomes_of_a_set():
    pixels = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 1, 8, 8)
    birds = SampleSet(ImageArray(pixels), list("abcabc"))
    some = birds.without_labels([1, 3, 4])
    assert (some.labels.tolist(), some.class_names) == ([0, -1, 1, -1, -1, 1], ("a", "c"))
    assert (some.num_classes, some.is_labelled.tolist()) == (2, [True, False, True, False, False, True])
    assert repr(some) == "SampleSet(6 samples, 2 classes, 3 without a label)"
    assert birds.labels.tolist() == [0, 1, 2, 0, 1, 2]
    chosen = some.select([5, 1, 2])
    assert (chosen.labels.tolist(), chosen.class_names) == ([0, -1, 0], ("c",))
    part = some.labelled_part()
    assert (part.labels.tolist(), part.class_names) == ([0, 1, 1], ("a", "c"))
    assert [int(part.samples[row][0, 0, 0]) for row in range(3)] == [0, 2, 5]
    assert birds.labelled_part() is birds
    none = birds.without_labels(range(6))
    assert (none.num_classes, none.labels.unique().tolist(), len(none.labelled_part())) == (0, [-1], 0)
    both = join(some, SampleSet(ImageArray(pixels[:2]), ["x", "y"]).without_labels([1]))
    assert (both.labels.tolist(), both.class_names) == ([0, -1, 1, -1, -1, 1, 2, -1], ("a", "c", "x"))
    assert len({birds.fingerprint(), some.fingerprint(), none.fingerprint()}) == 3
