"""A threshold against naive counts, and its intervals against classes that it has not seen."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live_memory import peak_bytes
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.evaluation import (
    Threshold,
    TooFewPairsError,
    choose_threshold,
    thresholds,
    verification_scores,
)
from nearkin.evaluation.thresholds import rates_at_threshold


def classes_of_points(
    classes: int, samples: int, draw: torch.Generator, kinds: Tensor | None = None, size: int = 16
) -> tuple[Tensor, Tensor]:
    """Gaussian classes of different spread, each near one of ``kinds`` if there are any."""
    centres = torch.randn(classes, size, generator=draw)
    if kinds is not None:
        centres = centres + kinds[torch.randint(len(kinds), (classes,), generator=draw)]
    spread = 0.6 + 0.6 * torch.rand(classes, 1, generator=draw)
    labels = torch.arange(classes).repeat_interleave(samples)
    points = centres[labels] + spread[labels] * torch.randn(len(labels), size, generator=draw)
    return points, labels


def naive_rates(points: Tensor, labels: Tensor, similarity: float) -> tuple[float, float]:
    """False accepts and false rejects, by looking at every pair."""
    units = normalize(points.double(), dim=1)
    accepted = {True: [], False: []}
    for one in range(len(units)):
        for other in range(one):
            same = bool(labels[one] == labels[other])
            accepted[same].append(float(units[one] @ units[other]) >= similarity)
    return sum(accepted[False]) / len(accepted[False]), 1 - sum(accepted[True]) / len(accepted[True])


def fast_rates(points: Tensor, labels: Tensor, similarity: float) -> tuple[float, float]:
    units = normalize(points, dim=1)
    accepted, same = units @ units.T >= similarity, labels[:, None] == labels
    upper = torch.ones_like(same).triu(1)
    return tuple(float(a[p & upper].double().mean()) for a, p in ((accepted, ~same), (~accepted, same)))


@pytest.mark.parametrize("tile", [7, 1024])
@pytest.mark.parametrize("rate", [0.003, 0.01, 0.1, 0.5])
def test_a_threshold_is_what_counting_every_pair_says(tile, rate, monkeypatch):
    monkeypatch.setattr(thresholds, "_TILE", tile)
    points, labels = classes_of_points(12, 5, torch.Generator().manual_seed(1))
    found = choose_threshold(points, labels, false_accept_rate=rate, resamples=100)
    accepts, rejects = naive_rates(points, labels, found.similarity)
    assert found.false_accept_rate.value == pytest.approx(accepts)
    assert found.false_reject_rate.value == pytest.approx(rejects)
    assert accepts <= rate
    assert found.negative_pairs == 12 * 11 // 2 * 25
    assert found.positive_pairs == 12 * 10
    # A lower one would accept too many: it lies half-way to the next negative.
    units = normalize(points.double(), dim=1)
    negatives = (units @ units.T)[(labels[:, None] != labels).triu(1)]
    below = negatives[negatives < found.similarity].max()
    assert naive_rates(points, labels, float(below) - 1e-12)[0] > rate
    above = negatives[negatives >= found.similarity].min()
    assert found.similarity == pytest.approx(float(below + above) / 2, abs=2e-5)


@given(st.integers(0, 10_000), st.integers(3, 8), st.integers(2, 6), st.sampled_from([0.05, 0.2, 0.7]))
@settings(deadline=None, max_examples=20)
def test_any_points_with_ties_and_copies(seed, classes, samples, rate):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (classes * samples + 30,), generator=draw)
    points = torch.randint(-1, 2, (len(labels), 3), generator=draw).double()
    points[points.abs().sum(dim=1) == 0] = 1.0
    try:
        found = choose_threshold(points, labels, false_accept_rate=rate, resamples=100)
    except TooFewPairsError:
        return
    accepts, rejects = fast_rates(points, labels, found.similarity)
    assert found.false_accept_rate.value == pytest.approx(accepts)
    assert found.false_reject_rate.value == pytest.approx(rejects)
    assert accepts <= rate + 1e-12
    for interval in (found.false_accept_rate, found.false_reject_rate):
        assert 0 <= interval.low <= interval.value <= interval.high <= 1


def test_a_network_that_tells_nothing_apart_accepts_nothing():
    labels = torch.arange(10).repeat_interleave(5)
    found = choose_threshold(torch.ones(50, 4), labels)
    assert (found.false_accept_rate.value, found.false_reject_rate.value) == (0, 1)


def test_neither_the_order_nor_the_length_of_rows_matters():
    points, labels = classes_of_points(12, 5, torch.Generator().manual_seed(1))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2))
    first = choose_threshold(points, labels, resamples=200)
    other = choose_threshold(points[order] * 7, labels[order] * 10 - 3, resamples=200)
    assert other.similarity == pytest.approx(first.similarity, abs=1e-6)
    assert other.false_accept_rate.high == pytest.approx(first.false_accept_rate.high)


def covered(seed: int, *, chosen_on: int, tested_on: int, kinds: bool) -> tuple[bool, bool]:
    """Whether the rates on new classes lie in the intervals of a threshold."""
    draw = torch.Generator().manual_seed(seed)
    genera = torch.randn(20, 16, generator=draw) if kinds else None
    found = choose_threshold(*classes_of_points(chosen_on, 10, draw, genera), resamples=500, seed=seed)
    points, labels = classes_of_points(tested_on, 10, draw, genera)
    rates = fast_rates(points, labels, found.similarity)
    intervals = (found.false_accept_rate, found.false_reject_rate)
    return tuple(one.low <= rate <= one.high for one, rate in zip(intervals, rates, strict=True))


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize(
    ("chosen_on", "tested_on"),
    [(15, 60), (30, 30), pytest.param(100, 100, marks=pytest.mark.slow)],
)
def test_the_rates_on_unseen_classes_lie_inside_the_intervals(chosen_on, tested_on, kinds):
    found = [covered(seed, chosen_on=chosen_on, tested_on=tested_on, kinds=kinds) for seed in range(20)]
    accepts, rejects = (sum(column) for column in zip(*found, strict=True))
    assert accepts >= 18
    assert rejects >= 17  # 95 % of 20 draws, and the chance that some more are outside


def test_an_interval_of_the_mean_alone_would_be_too_narrow():
    """More classes give narrower intervals, and never one that leaves the choice out of account."""
    draw = torch.Generator().manual_seed(0)
    widths = []
    for count in (10, 40, 160):  # the last in groups of classes
        found = choose_threshold(*classes_of_points(count, 5, draw), resamples=500)
        widths.append(found.false_accept_rate.high - found.false_accept_rate.low)
    assert widths[0] > 2 * widths[1] > 3 * widths[2]


def test_the_same_seed_gives_the_same_threshold():
    points, labels = classes_of_points(12, 5, torch.Generator().manual_seed(1))
    assert choose_threshold(points, labels, seed=3) == choose_threshold(points, labels, seed=3)


def test_a_threshold_survives_json():
    points, labels = classes_of_points(12, 5, torch.Generator().manual_seed(1))
    found = choose_threshold(points, labels, class_names=[f"class {i}" for i in range(12)])
    again = Threshold.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    assert again.class_names[3] == "class 3"
    assert "12 validation classes" in str(again)
    assert "probab" not in str(again)
    for damaged in ({}, {"similarity": 1}, {**found.to_dict(), "false_accept_rate": 3}):
        with pytest.raises(ValueError, match="no threshold"):
            Threshold.from_dict(damaged)


@pytest.mark.parametrize(
    ("labels", "keywords", "message"),
    [
        ([0] * 6 + [1] * 6, {}, "2 classes are too few"),
        (list(range(12)), {"false_accept_rate": 0.5}, "no class has two samples"),
        ([0, 0, 1, 1, 2, 2] * 2, {}, "48 negative pairs are too few to tell a false-accept rate of 0.01"),
        ([0, 0, 1, 1, 2, 2] * 2, {"false_accept_rate": 0}, "false_accept_rate=0 must lie between"),
        ([0, 0, 1, 1, 2, 2] * 2, {"false_accept_rate": 1.5}, "must lie between 0 and 1"),
        ([0, 0, 1, 1, 2, 2] * 2, {"confidence": 2}, "confidence=2 must lie"),
        ([0, 0, 1], {}, "12 embeddings but 3 labels"),
    ],
)
def test_what_makes_no_threshold_is_refused(labels, keywords, message):
    with pytest.raises(ValueError, match=message):
        choose_threshold(torch.randn(12, 4), torch.tensor(labels), **keywords)


def test_memory_does_not_grow_with_the_pairs(monkeypatch):
    monkeypatch.setattr(thresholds, "_TILE", 64)
    monkeypatch.setattr(thresholds, "_BINS", 256)
    peaks = []
    for samples in (20, 80):
        points, labels = classes_of_points(12, samples, torch.Generator().manual_seed(0))
        peaks.append(peak_bytes(lambda x=points, y=labels: choose_threshold(x, y, resamples=100)))
    assert peaks[1] < 1.5 * peaks[0]  # for 16 times the pairs


def test_a_threshold_has_five_digits_and_is_rounded_up():
    points, labels = classes_of_points(8, 6, torch.Generator().manual_seed(3))
    similarity = choose_threshold(points, labels, false_accept_rate=0.05).similarity
    assert similarity * 1e5 == pytest.approx(round(similarity * 1e5), abs=1e-6)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.3, [0.55, 0.3]),  # half-way between the second and the third similarity
        (0.5, [0.7, 0.2]),  # as much as may be: not more than the second accepts
        (0.2, [0.475, 0.35]),
        (2.0, [0.9, 0.1]),  # all similarities accept less: the lowest
        (0.0, [0.0, 1.0]),  # none accepts less: the highest
    ],
)
def test_rates_are_read_where_the_other_draw_chooses(rate, expected):
    choosing = torch.tensor([[1.0, 0.5, 0.1, 0.0], [1.0, torch.nan, 0.1, 0.0]], dtype=torch.float64)
    accepts = torch.tensor([0.9, 0.7, 0.4, 0.0], dtype=torch.float64).expand(2, -1)
    rejects = torch.tensor([0.1, 0.2, 0.4, 1.0], dtype=torch.float64).expand(2, -1)
    found = thresholds._at_the_chosen(choosing, (accepts, rejects), rate)
    assert found[0].tolist() == pytest.approx(expected)
    assert found[1].isnan().all()


class Draws:
    """Rates of draws of which only a share has both kinds of pairs; all draws are alike."""

    def __init__(self, kept: float) -> None:
        self.positives = torch.ones(5)
        self.kept = kept

    def rates(self, times: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.linspace(1, 0, 4, dtype=torch.float64).repeat(len(times), 1)
        found[int(self.kept * len(times)) :] = torch.nan
        return found, 1 - found


def test_most_draws_without_pairs_are_no_interval():
    (low, high), _ = thresholds._intervals(Draws(0.6), 0.5, 0.95, 1000, seed=0)
    assert [low, high] == pytest.approx([0.5, 0.5])
    with pytest.raises(TooFewPairsError, match="of 1000 draws hold no positive or no negative pair"):
        thresholds._intervals(Draws(0.4), 0.5, 0.95, 1000, seed=0)


def test_rates_of_a_given_threshold_on_pairs():
    similarity = [0.9, 0.5, 0.2, 0.8, 0.5, 0.1, 0.7, 0.3]
    first = torch.tensor([[s, (1 - s * s) ** 0.5] for s in similarity], dtype=torch.float64)
    second = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(8, 1)
    same = torch.tensor([True, True, True, False, False, False, True, False])
    scores = verification_scores(first, second, same, folds=2, per_pair=True)
    ones = torch.tensor([0, 1, 2, 0, 1, 2, 3, 3])
    others = torch.tensor([0, 1, 2, 1, 2, 3, 3, 0])
    found = rates_at_threshold(scores, ones, others, 0.5 - 1e-9, resamples=200)
    assert found["false_reject_rate"].value == pytest.approx(1 / 4)
    assert found["false_accept_rate"].value == pytest.approx(2 / 4)
    assert found["accuracy_at_threshold"].value == pytest.approx(5 / 8)
    for interval in found.values():
        assert interval.low <= interval.value <= interval.high
        assert interval.classes == 4
    with pytest.raises(TooFewPairsError, match="2 classes are too few for an interval"):
        rates_at_threshold(scores, ones % 2, others % 2, 0.5, resamples=200)
