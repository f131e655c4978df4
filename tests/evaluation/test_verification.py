from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from nearkin.evaluation import verification_scores
from nearkin.evaluation.verification import PerPair, fold_accuracies


def scored_pairs(similarity: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs on a line whose similarity (minus the distance) is given, up to a constant."""
    second = -torch.tensor(similarity, dtype=torch.float64)[:, None]
    return torch.full_like(second, float(second.min()) - 1), second


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=4, max_size=50), st.integers(2, 4))
def test_equals_definitions(pairs, folds):
    similarity, same = [float(s) for s, _ in pairs], [is_positive for _, is_positive in pairs]
    positives, negatives = sum(same), len(same) - sum(same)
    first, second = scored_pairs(similarity)
    if min(positives, negatives) < folds:
        with pytest.raises(ValueError, match="folds"):
            verification_scores(first, second, torch.tensor(same), folds=folds, metric="euclidean")
        return
    scores = verification_scores(
        first, second, torch.tensor(same), folds=folds, metric="euclidean", far=(0.1, 0.5, 1.0)
    )
    assert scores.roc_auc == pytest.approx(roc_auc_score(same, similarity))
    cuts = [*sorted(set(similarity)), 7.0]
    shares = [
        (
            sum(s >= cut and not is_positive for s, is_positive in zip(similarity, same, strict=True))
            / negatives,
            sum(s >= cut and is_positive for s, is_positive in zip(similarity, same, strict=True))
            / positives,
        )
        for cut in cuts
    ]
    for rate, found in scores.tar_at_far.items():
        expected = max(true for false, true in shares if false <= rate)
        assert found == (pytest.approx(expected) if rate * negatives >= 1 else None)
    # The equal error rate lies between the errors at the two thresholds where their order changes.
    assert min(max(f, 1 - t) for f, t in shares) + 1e-9 >= scores.equal_error_rate
    assert max(min(f, 1 - t) for f, t in shares) - 1e-9 <= scores.equal_error_rate
    assert (scores.positive_pairs, scores.negative_pairs) == (positives, negatives)


def naive_lfw(similarity, same, folds):
    true = [i for i, is_positive in enumerate(same) if is_positive]
    false = [i for i, is_positive in enumerate(same) if not is_positive]
    accuracies = []
    for fold in range(folds):
        inside = [ids[n] for ids in (true, false) for n in range(len(ids)) if n * folds // len(ids) == fold]
        outside = [i for i in range(len(same)) if i not in inside]
        values = sorted({similarity[i] for i in outside})
        cuts = [values[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(values)), values[-1] + 1]
        best = max(cuts, key=lambda cut: sum((similarity[i] >= cut) == same[i] for i in outside))
        accuracies.append(sum((similarity[i] >= best) == same[i] for i in inside) / len(inside))
    return sum(accuracies) / folds


def test_accuracy_the_lfw_way():
    g = torch.Generator().manual_seed(0)
    same = torch.rand(400, generator=g) < 0.4
    similarity = (torch.randn(400, generator=g) + 1.5 * same).double()
    scores = verification_scores(*scored_pairs(similarity.tolist()), same, metric="euclidean")
    assert scores.accuracy == pytest.approx(naive_lfw(similarity.tolist(), same.tolist(), 10))
    assert 0.7 < scores.accuracy < 0.9
    assert 0 < scores.accuracy_std < 0.1


def test_normal_similarities_have_the_known_equal_error_rate():
    g = torch.Generator().manual_seed(1)
    same = torch.arange(40000) % 2 == 0
    similarity = torch.randn(40000, generator=g).double() + 2 * same
    scores = verification_scores(*scored_pairs(similarity.tolist()), same, metric="euclidean")
    expected = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(-1.0)).item()
    assert scores.equal_error_rate == pytest.approx(expected, abs=0.005)
    assert scores.accuracy == pytest.approx(1 - expected, abs=0.01)
    assert scores.tar_at_far[1e-5] is None
    assert scores.tar_at_far[1e-2] == pytest.approx(0.372, abs=0.03)


def test_pairs_are_kept_on_request_alone():
    same = torch.arange(40) % 2 == 0
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    assert verification_scores(points, points, same).per_pair is None
    assert len(verification_scores(points, points, same, per_pair=True).per_pair.same) == 40


def test_a_collapsed_embedding_knows_nothing():
    same = torch.arange(40) % 2 == 0
    scores = verification_scores(torch.ones(40, 3), torch.ones(40, 3), same)
    assert scores.roc_auc == pytest.approx(0.5)
    assert scores.equal_error_rate == pytest.approx(0.5)
    assert scores.accuracy == pytest.approx(0.5)
    assert scores.tar_at_far[1e-2] is None
    json.dumps(scores.to_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"same": torch.arange(40) % 2}, "booleans"),
        ({"same": torch.ones(39, dtype=torch.bool)}, "40 booleans"),
        ({"same": torch.ones(40, dtype=torch.bool)}, "40 and 0"),
        ({"second": torch.ones(39, 3)}, "first has 40 rows, second has 39"),
        ({"second": torch.ones(40, 2)}, "3 columns"),
        ({"second": torch.full((40, 3), torch.nan)}, "NaN"),
        ({"far": (0.0,)}, "far="),
        ({"far": (0.5, 1.5)}, r"far=\(0.5, 1.5\) must hold rates above 0 and up to 1"),
        ({"folds": 1}, "folds=1"),
    ],
)
def test_bad_input_is_an_error(change, message):
    arguments = {"first": torch.ones(40, 3), "second": torch.ones(40, 3), "same": torch.arange(40) % 2 == 0}
    with pytest.raises(ValueError, match=message):
        verification_scores(**(arguments | change))


def test_a_similarity_on_the_threshold_is_accepted():
    similarity = torch.tensor([0.5, 0.5, 0.25, 0.75], dtype=torch.float64)
    same = torch.tensor([True, False, False, True])
    pairs = PerPair(similarity, same, torch.tensor([0, 0, 1, 1]))
    accuracies, chosen = fold_accuracies(pairs, torch.ones(1, 4, dtype=torch.float64))
    assert chosen[0, 0] == 0.5  # half-way between 0.25 and 0.75
    assert accuracies[0, 0] == 0.5  # the true pair is right, the other one is not
    same[1] = True
    accuracies, _ = fold_accuracies(pairs, torch.ones(1, 4, dtype=torch.float64))
    assert accuracies[0, 0] == 1
