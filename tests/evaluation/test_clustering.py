from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from nearkin.evaluation import clustering_scores
from nearkin.evaluation.clustering import agreement
from nearkin.evaluation.kmeans import _draw, kmeans


def blobs(rows: int, dim: int, classes: int, spread: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (rows,), generator=g)
    return 5 * torch.randn(classes, dim, generator=g)[labels] + spread * torch.randn(
        rows, dim, generator=g
    ), labels


def naive_f1(labels, assignment):
    pairs = list(itertools.combinations(range(len(labels)), 2))
    true = {p for p in pairs if labels[p[0]] == labels[p[1]]}
    predicted = {p for p in pairs if assignment[p[0]] == assignment[p[1]]}
    if not true and not predicted:
        return 1.0
    return 2 * len(true & predicted) / (len(true) + len(predicted))


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=60))
def test_agreement_equals_scikit_learn_and_the_pairs(pairs):
    labels, assignment = (list(column) for column in zip(*pairs, strict=True))
    for average in ("arithmetic", "geometric"):
        nmi, ami, f1 = agreement(torch.tensor(labels), torch.tensor(assignment), average=average)
        assert nmi == pytest.approx(
            normalized_mutual_info_score(labels, assignment, average_method=average), abs=1e-9
        )
        assert ami == pytest.approx(
            adjusted_mutual_info_score(labels, assignment, average_method=average), abs=1e-7
        )
        assert f1 == pytest.approx(naive_f1(labels, assignment))


def test_agreement_on_many_classes():
    g = torch.Generator().manual_seed(0)
    labels, assignment = torch.randint(300, (2, 3000), generator=g)
    assignment[:2000] = labels[:2000]
    nmi, ami, _ = agreement(labels, assignment)
    assert nmi == pytest.approx(normalized_mutual_info_score(labels, assignment))
    assert ami == pytest.approx(adjusted_mutual_info_score(labels, assignment))


def test_kmeans_is_as_tight_as_scikit_learn():
    points, _ = blobs(800, 16, 25, spread=2.0, seed=1)
    theirs = KMeans(25, n_init=5, random_state=0).fit(points.numpy()).inertia_
    ours = kmeans(points, 25, restarts=5)
    assert ours.inertia <= 1.03 * theirs
    distances = torch.cdist(points, ours.centres)
    assert torch.equal(distances.argmin(dim=1), ours.assignment)
    assert ours.inertia == pytest.approx(distances.min(dim=1).values.square().sum().item(), rel=1e-4)
    for cluster in range(25):
        torch.testing.assert_close(
            points[ours.assignment == cluster].mean(dim=0), ours.centres[cluster], atol=1e-3, rtol=1e-3
        )


def test_many_clusters_start_several_at_a_time(monkeypatch):
    points, _ = blobs(800, 16, 25, spread=2.0, seed=1)
    one_by_one = kmeans(points, 100).inertia
    monkeypatch.setattr("nearkin.evaluation.kmeans.ROUNDS", 10)
    together = kmeans(points, 100)
    assert len(together.centres) == 100
    assert together.inertia <= 1.1 * one_by_one


def test_one_cluster_is_the_mean_of_all_points():
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    found = kmeans(points, 1)
    torch.testing.assert_close(found.centres[0], points.mean(dim=0))
    assert found.assignment.tolist() == [0] * 20


def test_kmeans_depends_on_the_seed_alone():
    points, _ = blobs(300, 8, 10, spread=3.0, seed=2)
    first = kmeans(points, 10, seed=5, restarts=1)
    torch.randn(7)
    again = kmeans(points, 10, seed=5, restarts=1)
    other = kmeans(points, 10, seed=6, restarts=1)
    assert torch.equal(first.assignment, again.assignment)
    assert not torch.equal(first.centres, other.centres)


def test_more_restarts_are_never_worse():
    points, _ = blobs(300, 4, 12, spread=2.0, seed=3)
    inertias = [kmeans(points, 12, restarts=restarts).inertia for restarts in (1, 3, 9)]
    assert inertias == sorted(inertias, reverse=True)


def test_kmeans_with_duplicates_and_as_many_clusters_as_points():
    points = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    assert kmeans(points, 3).inertia == pytest.approx(0.0, abs=1e-6)
    assert kmeans(torch.ones(10, 3), 4).inertia == pytest.approx(0.0, abs=1e-6)


def test_separate_classes_are_found():
    points, labels = blobs(600, 16, 20, spread=0.1, seed=4)
    scores = clustering_scores(points, labels, restarts=5)
    assert (scores.nmi, scores.ami, scores.f1) == pytest.approx((1.0, 1.0, 1.0))


def test_noise_has_no_adjusted_information():
    g = torch.Generator().manual_seed(5)
    scores = clustering_scores(torch.randn(500, 8, generator=g), torch.arange(500) % 50)
    assert abs(scores.ami) < 0.1
    assert scores.nmi > 0.4


def test_to_dict_is_plain_json():
    points, labels = blobs(60, 4, 5, spread=1.0, seed=6)
    scores = clustering_scores(points, labels, keep_assignment=True)
    assert scores == clustering_scores(points, labels)
    assert set(json.loads(json.dumps(scores.to_dict()))) == {
        "nmi",
        "ami",
        "f1",
        "clusters",
        "average",
    }


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"labels": torch.zeros(20, dtype=torch.long)}, "one class"),
        ({"labels": torch.ones(20, 3).long()}, "not multi-hot"),
        ({"labels": torch.arange(20).float()}, "must be integers"),
        ({"clusters": 21}, "clusters=21 but there are 20 points"),
        ({"average": "harmonic"}, "average='harmonic' is unknown"),
        ({"restarts": 0}, "restarts=0"),
    ],
)
def test_bad_input_is_an_error(keywords, message):
    points, labels = blobs(20, 4, 3, spread=1.0, seed=7)
    labels = keywords.pop("labels", labels)
    with pytest.raises(ValueError, match=message):
        clustering_scores(points, labels, **keywords)


@pytest.mark.parametrize(
    ("weights", "drawn"), [([0, 0, 1], 2), ([1, 0, 0], 0), ([0, 1, 0], 1), ([0, 0, 0], 2)]
)
def test_centres_are_drawn_among_points_with_a_weight(weights, drawn):
    draws = _draw(torch.tensor(weights, dtype=torch.float32), 40, torch.Generator().manual_seed(0))
    assert draws.tolist() == [drawn] * 40


def test_the_default_seed_is_0():
    points = torch.randn(60, 3, generator=torch.Generator().manual_seed(4))
    by_default, first, second = kmeans(points, 6), kmeans(points, 6, seed=0), kmeans(points, 6, seed=1)
    assert torch.equal(by_default.assignment, first.assignment)
    assert not torch.equal(first.assignment, second.assignment)
