"""Hits say whether they are the same where the model has a threshold, and clusters hang together by it."""

from __future__ import annotations

import pytest
from indexed import picture_model

from nearkin.evaluation import Interval, Threshold
from nearkin.index import Index


def threshold(similarity: float) -> Threshold:
    rate = Interval(0.1, 0.0, 0.2, 0.95, 3)
    return Threshold(similarity, 0.01, rate, rate, 3, 10, 10)


@pytest.fixture
def model():
    made = picture_model()
    made.threshold = threshold(0.9)
    return made


def test_hits_are_the_same_from_the_threshold_on(model, photos, tmp_path):
    with Index.build(model, photos, tmp_path / "i") as index:
        hits = index.search(photos / "class0" / "0.png", 20)
        assert [hit.same for hit in hits] == [hit.similarity >= 0.9 for hit in hits]
        linked = index.clusters(least=1)
        assert linked == index.clusters(threshold=0.9, least=1)
        assert sum(map(len, linked)) == 20
    with Index.open(tmp_path / "i") as again:  # the copy in the folder has it, too
        assert again.model.threshold == model.threshold
