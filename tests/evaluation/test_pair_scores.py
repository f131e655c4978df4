"""Scores of known pairs, and a threshold that is chosen on others."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score

from nearkin.evaluation import (
    PairScores,
    Threshold,
    TooFewPairsError,
    choose_threshold_on_pairs,
    pair_intervals,
    pair_scores,
    pair_similarities,
)
from nearkin.evaluation.pair_scores import auc_gain, without_pairs
from nearkin.evaluation.thresholds import MOST_RIGHT, rates_at_threshold


def draw(groups=30, noise=0.6, seed=0):
    """Embeddings of groups of four, their true pairs, and five times as many false ones."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(groups).repeat_interleave(4)
    points = torch.randn(groups, 8, generator=generator)[labels]
    points = points + noise * torch.randn(len(labels), 8, generator=generator)
    pairs = torch.combinations(torch.arange(len(labels)))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    false = (~same).nonzero().flatten()
    chosen = false[torch.randperm(len(false), generator=generator)[: 5 * int(same.sum())]]
    kept = torch.cat([same.nonzero().flatten(), chosen])
    return points, pairs[kept], same[kept], labels[pairs[kept]]


def test_similarities_are_cosines():
    points, pairs, _, _ = draw()
    naive = [torch.cosine_similarity(points[i], points[j], dim=0) for i, j in pairs[:50].tolist()]
    assert torch.allclose(pair_similarities(points, pairs)[:50], torch.stack(naive).double(), atol=1e-6)


def test_scores_are_those_of_scikit_learn_and_of_counting():
    points, pairs, same, groups = draw()
    similarity = pair_similarities(points, pairs)
    threshold = choose_threshold_on_pairs(similarity, same, groups, false_accept_rate=0.05)
    found = pair_scores(similarity, same, threshold)
    assert found.verification.roc_auc == pytest.approx(roc_auc_score(same, similarity))
    right = sum(
        (s >= threshold.similarity) == t for s, t in zip(similarity.tolist(), same.tolist(), strict=True)
    )
    assert found.accuracy_at_threshold == pytest.approx(right / len(same))
    accepted = [s >= threshold.similarity for s in similarity[~same].tolist()]
    assert found.false_accept_rate == pytest.approx(sum(accepted) / len(accepted))
    assert PairScores.from_dict(found.to_dict()) == found
    without = pair_scores(similarity, same)
    assert without.accuracy_at_threshold is None
    assert PairScores.from_dict(without.to_dict()) == without


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
def test_the_threshold_is_the_lowest_that_keeps_the_rate(rate):
    points, pairs, same, groups = draw()
    similarity = pair_similarities(points, pairs)
    found = choose_threshold_on_pairs(similarity, same, groups, false_accept_rate=rate)
    false = similarity[~same]
    allowed = int(rate * len(false))
    naive = min(t for t in similarity.tolist() if (false >= t).sum() <= allowed)
    below = max((t for t in similarity.tolist() if t < naive), default=-1.0)
    assert below < found.similarity <= naive + 1e-5
    assert found.false_accept_rate.value <= rate
    assert found.false_accept_rate.low <= found.false_accept_rate.value <= found.false_accept_rate.high
    assert Threshold.from_dict(found.to_dict()) == found
    assert "validation classes" in str(found)


def test_of_few_pairs_the_threshold_gives_the_most_right_answers():
    points, pairs, same, groups = draw(6)
    kept = torch.cat([same.nonzero().flatten()[::3], (~same).nonzero().flatten()[:30]])
    similarity, same, groups = pair_similarities(points, pairs)[kept], same[kept], groups[kept]
    found = choose_threshold_on_pairs(similarity, same, groups, false_accept_rate=0.01)
    assert found.rule == MOST_RIGHT
    best = max(((similarity >= t) == same).sum() for t in [*similarity.tolist(), 2.0])
    assert ((similarity >= found.similarity) == same).sum() == best
    assert str(found).endswith("validation pairs, for the most right answers")
    assert Threshold.from_dict(found.to_dict()) == found


def test_new_groups_show_rates_inside_the_intervals():
    inside = 0
    for seed in range(10):
        points, pairs, same, groups = draw(seed=seed)
        found = choose_threshold_on_pairs(
            pair_similarities(points, pairs), same, groups, false_accept_rate=0.1
        )
        points, pairs, same, groups = draw(seed=100 + seed)
        rate = pair_scores(pair_similarities(points, pairs), same, found).false_accept_rate
        inside += found.false_accept_rate.low <= rate <= found.false_accept_rate.high
    assert inside >= 8


def test_too_few_are_told():
    similarity, same = torch.tensor([0.9, 0.1]).double(), torch.tensor([True, False])
    with pytest.raises(TooFewPairsError, match="of 2 groups, are too few to choose a threshold"):
        choose_threshold_on_pairs(similarity, same, torch.tensor([[0, 0], [0, 1]]))
    with pytest.raises(ValueError, match="false_accept_rate=1"):
        choose_threshold_on_pairs(similarity, same, torch.tensor([[0, 0], [0, 1]]), false_accept_rate=1)


def test_intervals_hold_the_scores_they_are_of():
    points, pairs, same, groups = draw()
    similarity = pair_similarities(points, pairs)
    threshold = choose_threshold_on_pairs(similarity, same, groups)
    scores = pair_scores(similarity, same, threshold, per_pair=True)
    intervals = pair_intervals(scores, groups, threshold)
    assert intervals["roc_auc"].value == pytest.approx(scores.verification.roc_auc)
    assert intervals["accuracy_at_threshold"].value == pytest.approx(scores.accuracy_at_threshold)
    assert "accuracy_at_threshold" not in pair_intervals(scores, groups)


def test_intervals_at_a_threshold_draw_the_groups_of_both_sides():
    points, pairs, same, groups = draw()
    similarity = pair_similarities(points, pairs)
    threshold = choose_threshold_on_pairs(similarity, same, groups)
    scores = pair_scores(similarity, same, threshold, per_pair=True)
    expected = rates_at_threshold(
        scores.verification, groups[:, 0], groups[:, 1], threshold.similarity, seed=5
    )
    found = pair_intervals(scores, groups, threshold, seed=5)
    assert {name: found[name] for name in expected} == expected
    assert found["false_accept_rate"].value == pytest.approx(scores.false_accept_rate)


def test_scores_without_their_pairs_are_otherwise_the_same():
    points, pairs, same, _ = draw()
    scores = pair_scores(pair_similarities(points, pairs), same, per_pair=True)
    alone = without_pairs(scores)
    assert scores.verification.per_pair is not None
    assert alone == pair_scores(pair_similarities(points, pairs), same)
    assert alone.verification.per_pair is None


def test_what_was_added_is_the_difference_of_two_areas():
    points, pairs, same, groups = draw(noise=0.3)
    worse, *_ = draw(noise=3.0)
    before, after = pair_similarities(worse, pairs), pair_similarities(points, pairs)
    gain = auc_gain(before, [after], same, groups)
    assert gain.value == pytest.approx(roc_auc_score(same, after) - roc_auc_score(same, before))
    assert 0 < gain.low < gain.value < gain.high
    nothing = auc_gain(after, [after, after], same, groups)
    assert (nothing.low, nothing.value, nothing.high) == (0, 0, 0)
    few = same & (groups[:, 0] < 2)
    assert auc_gain(before[few], [after[few]], same[few], groups[few]) is None
