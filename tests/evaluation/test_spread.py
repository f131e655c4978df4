from __future__ import annotations

import json

import pytest
import torch

from nearkin.evaluation import (
    ClusteringScores,
    Interval,
    bootstrap_intervals,
    clustering_intervals,
    clustering_scores,
    mean_intervals,
    paired_differences,
    retrieval_scores,
    verification_intervals,
    verification_scores,
)
from nearkin.evaluation.clustering import agreement, agreement_without_each_class
from nearkin.evaluation.spread import pair_times
from nearkin.evaluation.verification import (
    PerPair,
    area,
    equal_error_rate,
    fold_accuracies,
    roc,
    true_accept_rate,
)


def class_world(classes: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries that succeed with the probability of their class, drawn around one half; sizes differ."""
    sizes = torch.randint(3, 15, (classes,), generator=g)
    chance = torch.rand(classes, generator=g)
    labels = torch.arange(classes).repeat_interleave(sizes)
    return (torch.rand(len(labels), generator=g) < chance[labels]).double(), labels


@pytest.mark.parametrize(("classes", "confidence"), [(12, 0.95), (40, 0.95), (40, 0.8)])
def test_intervals_cover_the_truth_at_the_stated_rate(classes, confidence):
    g = torch.Generator().manual_seed(classes)
    worlds, covered = 600, 0
    for world in range(worlds):
        values, labels = class_world(classes, g)
        found = mean_intervals({"x": values}, labels, confidence=confidence, resamples=400, seed=world)["x"]
        covered += found.low <= 0.5 <= found.high
    # Three standard errors of a share over 600 worlds, and one point for the interval's own roughness.
    slack = 3 * (confidence * (1 - confidence) / worlds) ** 0.5 + 0.01
    assert abs(covered / worlds - confidence) < slack


def test_intervals_over_images_would_be_too_narrow():
    g = torch.Generator().manual_seed(1)
    labels = torch.arange(20).repeat_interleave(50)
    values = torch.rand(20, generator=g)[labels].double()
    by_class = mean_intervals({"x": values}, labels)["x"]
    by_image = mean_intervals({"x": values}, torch.arange(1000))["x"]
    assert by_class.high - by_class.low > 4 * (by_image.high - by_image.low)


def two_models(gain: float, seed: int, classes: int = 40):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * 8) % classes
    centres = torch.randn(classes, 8, generator=g)[labels]
    worse = centres + torch.randn(len(labels), 8, generator=g)
    better = centres + (1 - gain) * torch.randn(len(labels), 8, generator=g)
    return *(retrieval_scores(e, labels, per_query=True) for e in (worse, better)), labels


def test_every_score_has_an_interval_around_it():
    scores, _, labels = two_models(0.0, seed=2)
    intervals = bootstrap_intervals(scores, labels)
    plain = scores.to_dict()
    assert set(intervals) == set(plain) - {"queries", "queries_without_positive"}
    for name, interval in intervals.items():
        assert interval.value == pytest.approx(plain[name])
        assert interval.low < interval.value < interval.high
        assert interval.classes == 40
    json.dumps({name: interval.to_dict() for name, interval in intervals.items()})
    assert bootstrap_intervals(scores, labels) == intervals
    assert bootstrap_intervals(scores, labels, seed=1) != intervals


def test_a_better_model_is_told_from_an_equal_one():
    first, second, labels = two_models(0.3, seed=3)
    better = paired_differences(first, second, labels)["map_at_r"]
    assert better.difference == pytest.approx(second.map_at_r - first.map_at_r)
    assert better.low > 0
    assert better.p_value < 0.01
    json.dumps(better.to_dict())
    same = paired_differences(first, first, labels)["map_at_r"]
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_equal_models_rarely_differ():
    p_values = []
    for seed in range(150):
        first, second, labels = two_models(0.0, seed=100 + seed, classes=12)
        p_values.append(paired_differences(first, second, labels, resamples=300)["map_at_r"].p_value)
    assert sum(p < 0.1 for p in p_values) / 150 == pytest.approx(0.1, abs=0.08)


def test_multi_hot_labels_are_classes_by_their_rows():
    g = torch.Generator().manual_seed(4)
    labels = torch.rand(60, 4, generator=g) < 0.4
    scores = retrieval_scores(torch.randn(60, 5, generator=g), labels, per_query=True)
    assert bootstrap_intervals(scores, labels)["map_at_r"].classes == len(
        labels[scores.per_query.indices].unique(dim=0)
    )


def test_bad_input_is_an_error():
    first, _, labels = two_models(0.0, seed=5, classes=5)
    bare = retrieval_scores(torch.randn(40, 3), labels)
    fewer = retrieval_scores(torch.randn(40, 3), labels, queries=torch.arange(9), per_query=True)
    for call, message in [
        (lambda: bootstrap_intervals(bare, labels), "per_query=True"),
        (lambda: paired_differences(first, fewer, labels), "different queries"),
        (lambda: bootstrap_intervals(first, labels[:10]), "row 39 but there are 10 labels"),
        (lambda: bootstrap_intervals(first, labels, confidence=95), "confidence=95"),
        (lambda: bootstrap_intervals(first, labels, confidence=1.0), "confidence=1.0"),
        (lambda: bootstrap_intervals(first, labels, confidence=1.5), "confidence=1.5"),
        (lambda: bootstrap_intervals(first, labels, confidence=0.0), "confidence=0.0"),
        (lambda: bootstrap_intervals(first, labels, resamples=10), "resamples=10"),
        (lambda: mean_intervals({"x": torch.ones(4)}, torch.zeros(4)), "at least two classes"),
        (lambda: mean_intervals({"x": torch.ones(4)}, torch.zeros(5)), "4 values but 5 classes"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def clustered_world(classes: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points that stay in the cluster of their class with its own probability, or go anywhere."""
    sizes = torch.randint(4, 12, (classes,), generator=g)
    labels = torch.arange(classes).repeat_interleave(sizes)
    stays = torch.rand(len(labels), generator=g) < torch.rand(classes, generator=g)[labels]
    return labels, torch.where(stays, labels, torch.randint(classes, labels.shape, generator=g))


@pytest.mark.parametrize("average", ["arithmetic", "geometric"])
def test_taking_out_a_class_equals_dropping_its_points(average):
    labels, assignment = clustered_world(9, torch.Generator().manual_seed(6))
    labels = 3 * labels + 5
    # A cluster of one class alone, which vanishes with it.
    assignment[labels == 5] = 77
    expected = [
        agreement(labels[labels != c], assignment[labels != c], average=average) for c in labels.unique()
    ]
    found = agreement_without_each_class(labels, assignment, average)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12)


def test_clustering_intervals_lie_around_the_scores():
    g = torch.Generator().manual_seed(7)
    labels = torch.arange(240) % 30
    points = torch.randn(30, 4, generator=g)[labels] + 0.5 * torch.randn(240, 4, generator=g)
    scores = clustering_scores(points, labels, keep_assignment=True)
    intervals = clustering_intervals(scores, labels)
    assert set(intervals) == {"nmi", "ami", "f1"}
    for name, interval in intervals.items():
        assert interval.value == pytest.approx(getattr(scores, name), abs=1e-12)
        assert interval.low < interval.value < interval.high
        assert interval.classes == 30
    assert clustering_intervals(scores, labels) == intervals
    assert clustering_intervals(scores, labels, seed=1) != intervals


def test_a_class_counts_by_what_is_lost_without_it():
    """The jackknife's influences by hand: a class without which the score falls lifts it."""
    labels, assignment = clustered_world(12, torch.Generator().manual_seed(11))
    assignment[labels < 9] = labels[labels < 9]  # three classes pull the score down: far from symmetric
    scores = ClusteringScores(*agreement(labels, assignment), 12, "arithmetic", assignment)
    without = [agreement(labels[labels != c], assignment[labels != c])[0] for c in range(12)]
    mean = sum(without) / 12
    influences = torch.tensor([scores.nmi + 11 * (mean - one) for one in without], dtype=torch.float64)
    expected = mean_intervals({"nmi": influences}, torch.arange(12), seed=3)["nmi"]
    found = clustering_intervals(scores, labels, seed=3)["nmi"]
    assert (found.low, found.high) == pytest.approx((expected.low, min(expected.high, 1.0)), abs=1e-9)
    # Mirrored, which is what a wrong sign makes of them, the ends are elsewhere.
    assert abs((expected.high - scores.nmi) - (scores.nmi - expected.low)) > 1e-3


def test_no_clustering_interval_passes_the_perfect_score():
    labels = torch.arange(10).repeat_interleave(4)
    assignment = labels.clone()
    assignment[0] = 1
    scores = ClusteringScores(*agreement(labels, assignment), 10, "arithmetic", assignment)
    for interval in clustering_intervals(scores, labels, confidence=0.99).values():
        assert interval.low < interval.value < interval.high == 1.0


def assert_covered(worlds: list[dict[str, Interval]]) -> None:
    """The intervals hold the mean score of all worlds about as often as stated, without being too wide."""
    for name in worlds[0]:
        value, low, high = torch.tensor([(w[name].value, w[name].low, w[name].high) for w in worlds]).T
        truth = value.mean()
        share = float(((low <= truth) & (truth <= high)).double().mean())
        assert share > 0.9, f"{name} covered in {share:.0%} of the worlds"
        # A normal 95 % interval is about four standard deviations wide.
        assert (high - low).mean() < 1.6 * 4 * value.std(), f"{name} intervals are too wide"


def test_clustering_intervals_cover_the_truth():
    g = torch.Generator().manual_seed(8)
    worlds = []
    for seed in range(100):
        labels, assignment = clustered_world(15, g)
        scores = ClusteringScores(*agreement(labels, assignment), 15, "arithmetic", assignment)
        worlds.append(clustering_intervals(scores, labels, resamples=400, seed=seed))
    assert_covered(worlds)


def labelled_pairs(classes: int, pairs: int, g: torch.Generator, tied: bool = False):
    """Scored pairs of classes that are more or less easy to tell apart."""
    first, second = torch.randint(classes, (2, pairs), generator=g)
    second[::2] = first[::2]
    centres = torch.randn(classes, 6, generator=g)
    noise = 0.3 + torch.rand(classes, generator=g)
    sides = [centres[c] + noise[c, None] * torch.randn(pairs, 6, generator=g) for c in (first, second)]
    if tied:
        sides = [side.round() + 0.5 for side in sides]
    return *sides, first, second


def repeated(pairs: PerPair, times: list[int]) -> PerPair:
    rows = [p for p, count in enumerate(times) for _ in range(count)]
    return PerPair(pairs.similarity[rows], pairs.same[rows], pairs.fold[rows])


@pytest.mark.parametrize("tied", [False, True])
def test_pairs_count_as_often_as_their_classes_were_drawn(tied):
    g = torch.Generator().manual_seed(9)
    left, right, first, second = labelled_pairs(8, 120, g, tied)
    pairs = verification_scores(left, right, first == second, folds=3, per_pair=True).per_pair
    draws = torch.randint(8, (12, 8), generator=g)
    counts = torch.stack([draw.bincount(minlength=8) for draw in draws]).double()
    times = pair_times(counts, torch.stack([first, second]), pairs.same)
    curve = roc(pairs, times)
    accuracies, thresholds = fold_accuracies(pairs, times)
    for r, drawn in enumerate(draws.tolist()):
        expected = [
            drawn.count(a) if a == b else drawn.count(a) * drawn.count(b)
            for a, b in zip(first.tolist(), second.tolist(), strict=True)
        ]
        assert times[r].tolist() == expected
        naive = repeated(pairs, expected)
        once = torch.ones(1, len(naive.same), dtype=torch.float64)
        plain = roc(naive, once)
        assert float(area(curve)[r]) == pytest.approx(float(area(plain)))
        assert float(equal_error_rate(curve)[r]) == pytest.approx(float(equal_error_rate(plain)))
        for rate in (0.01, 0.1, 0.5):
            assert float(true_accept_rate(curve, rate)[r]) == pytest.approx(
                float(true_accept_rate(plain, rate))
            )
        naive_accuracies, naive_thresholds = fold_accuracies(naive, once)
        torch.testing.assert_close(accuracies[r], naive_accuracies[0])
        torch.testing.assert_close(thresholds[r], naive_thresholds[0])


def test_every_verification_score_has_an_interval_around_it(monkeypatch):
    left, right, first, second = labelled_pairs(30, 600, torch.Generator().manual_seed(10))
    scores = verification_scores(left, right, first == second, per_pair=True)
    assert scores == verification_scores(left, right, first == second)
    intervals = verification_intervals(scores, first, second, resamples=500)
    plain = scores.to_dict()
    json.dumps(plain)
    assert set(intervals) == {"roc_auc", "equal_error_rate", "tar_at_far_1e-02", "accuracy"}
    for name, interval in intervals.items():
        assert interval.value == plain[name]
        assert interval.low < interval.value < interval.high
        assert interval.classes == 30
    assert verification_intervals(scores, first, second, resamples=500, seed=1) != intervals
    monkeypatch.setattr("nearkin.evaluation.spread._PAIR_ENTRIES", 1800)
    assert verification_intervals(scores, first, second, resamples=500) == intervals


def test_verification_intervals_cover_the_truth():
    g = torch.Generator().manual_seed(11)
    worlds = []
    for seed in range(100):
        left, right, first, second = labelled_pairs(25, 300, g)
        scores = verification_scores(left, right, first == second, far=(0.1,), folds=3, per_pair=True)
        worlds.append(verification_intervals(scores, first, second, resamples=200, seed=seed))
    assert_covered(worlds)


def test_bad_input_of_clustering_and_verification_is_an_error():
    left, right, first, second = labelled_pairs(3, 60, torch.Generator().manual_seed(12))
    same = first == second
    bare, kept = (verification_scores(left, right, same, folds=2, per_pair=keep) for keep in (False, True))
    clusters, assigned = (clustering_scores(left, first, keep_assignment=keep) for keep in (False, True))
    two = clustering_scores(left, first % 2, keep_assignment=True)
    for call, message in [
        (lambda: verification_intervals(bare, first, second), "per_pair=True"),
        (lambda: verification_intervals(kept, first[1:], second), "first_labels"),
        (lambda: verification_intervals(kept, first, first), "contradict same"),
        (lambda: verification_intervals(kept, first, second), "3 classes are too few"),
        (lambda: verification_intervals(kept, first, second, resamples=9), "resamples=9"),
        (lambda: clustering_intervals(clusters, first), "keep_assignment=True"),
        (lambda: clustering_intervals(assigned, first[:9]), "9 labels"),
        (lambda: clustering_intervals(assigned, first.float()), "integers"),
        (lambda: clustering_intervals(two, first % 2), "at least two others"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
