from __future__ import annotations

import json

import pytest
import torch

from nearkin.evaluation import bootstrap_intervals, mean_intervals, paired_differences, retrieval_scores


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
        (lambda: bootstrap_intervals(first, labels, resamples=10), "resamples=10"),
        (lambda: mean_intervals({"x": torch.ones(4)}, torch.zeros(4)), "at least two classes"),
        (lambda: mean_intervals({"x": torch.ones(4)}, torch.zeros(5)), "4 values but 5 classes"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
