from __future__ import annotations

import json

import pytest
import torch

from nearkin.evaluation import diagnostics, nearest_neighbours, retrieval_scores


def blobs(
    rows: int, classes: int, spread: float, seed: int, dim: int = 8
) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    return torch.randn(classes, dim, generator=g)[labels] + spread * torch.randn(
        rows, dim, generator=g
    ), labels


def test_classes_are_the_scores_of_their_queries_the_worst_first():
    points, labels = blobs(120, 10, spread=0.8, seed=0)
    labels[0] = 77
    found = diagnostics(points, labels)
    assert [one.recall_at_1 for one in found.classes] == sorted(one.recall_at_1 for one in found.classes)
    assert {one.label for one in found.classes} == set(range(10))
    for one in found.classes:
        alone = retrieval_scores(points, labels, queries=labels == one.label)
        assert one.images == alone.queries
        assert one.recall_at_1 == pytest.approx(alone.recall_at[1])
        assert one.map_at_r == pytest.approx(alone.map_at_r)
    assert found.retrieval == retrieval_scores(points, labels)


def test_confusions_count_wrong_nearest_neighbours():
    points, labels = blobs(200, 5, spread=1.5, seed=1)
    nearest = nearest_neighbours(points, 1)[1].squeeze(1)
    found = diagnostics(points, labels, most=100).confusions
    expected = {
        (a, b): sum(1 for i in range(200) if labels[i] == a and labels[nearest[i]] == b)
        for a in range(5)
        for b in range(5)
        if a != b
    }
    assert {(one.label, one.taken_for): one.images for one in found} == {
        p: n for p, n in expected.items() if n
    }
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    assert found[0].share == found[0].images / 40


def test_swapped_labels_are_doubted_first():
    points, labels = blobs(300, 10, spread=0.05, seed=2)
    wrong = {4: 9, 77: 2, 123: 0}
    for index, label in wrong.items():
        labels[index] = label
    found = diagnostics(points, labels)
    assert {one.index: one.label for one in found.label_doubts} == wrong
    assert found.label_doubts_found == 3
    assert all(one.suggested == one.index % 10 for one in found.label_doubts)
    assert all(one.agreement > 0.8 for one in found.label_doubts)


def test_the_only_image_of_a_class_is_not_doubted():
    points, labels = blobs(100, 5, spread=0.05, seed=3)
    labels[0] = 99
    assert diagnostics(points, labels).label_doubts == []


def test_a_hub_is_found():
    g = torch.Generator().manual_seed(4)
    points = torch.randn(200, 64, generator=g)
    points[17] = 0
    hubness = diagnostics(points, torch.arange(200) % 20, neighbours=5, metric="euclidean").hubness
    lists = torch.bincount(nearest_neighbours(points, 5, metric="euclidean")[1].flatten(), minlength=200)
    assert hubness.hubs[0] == 17
    assert hubness.largest == lists.max() == 199
    assert hubness.never_found == pytest.approx((lists == 0).float().mean().item())
    centred = lists.double() - 5
    assert hubness.skewness == pytest.approx((centred.pow(3).mean() / centred.square().mean() ** 1.5).item())
    assert hubness.skewness > 2


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_distances_equal_all_pairs(metric):
    points, labels = blobs(90, 7, spread=0.7, seed=5)
    labels[:20] = 50
    space = diagnostics(points, labels, metric=metric).space
    points = points.double()
    if metric == "cosine":
        points = torch.nn.functional.normalize(points)
    intra = [
        (points[i] - points[j]).norm()
        for i in range(90)
        for j in range(90)
        if i != j and labels[i] == labels[j]
    ]
    means = torch.stack([points[labels == one].mean(dim=0) for one in labels.unique()])
    inter = [(a - b).norm() for i, a in enumerate(means) for j, b in enumerate(means) if i != j]
    assert space.intra_class_distance == pytest.approx(torch.stack(intra).mean().item(), rel=1e-4)
    assert space.inter_class_distance == pytest.approx(torch.stack(inter).mean().item(), rel=1e-4)
    assert space.density == pytest.approx(space.intra_class_distance / space.inter_class_distance)


def test_effective_dimension_is_the_participation_ratio():
    g = torch.Generator().manual_seed(6)
    points = torch.randn(500, 12, generator=g) * torch.linspace(3, 0.1, 12)
    variances = torch.linalg.eigvalsh(points.double().T.cov())
    expected = (variances.sum() ** 2 / variances.square().sum()).item()
    labels = torch.arange(500) % 5
    assert diagnostics(points, labels, metric="euclidean").space.effective_dimension == pytest.approx(
        expected, rel=1e-4
    )
    line = torch.linspace(-1, 1, 500)[:, None] * points[:1]
    assert diagnostics(line + 5, labels, metric="euclidean").space.effective_dimension == pytest.approx(
        1.0, rel=1e-3
    )


def test_to_dict_is_plain_json_even_where_everything_coincides():
    found = diagnostics(torch.ones(20, 4), torch.arange(20) % 4)
    assert found.space.density is None
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert set(written) == {
        "retrieval",
        "space",
        "hubness",
        "classes",
        "confusions",
        "label_doubts",
        "label_doubts_found",
    }
    assert written["retrieval"]["recall_at_1"] == 0.0


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"labels": torch.ones(20, 3).long()}, "not multi-hot"),
        ({"labels": torch.zeros(20).long()}, "one class"),
        ({"neighbours": 0}, "neighbours=0"),
    ],
)
def test_bad_input_is_an_error(keywords, message):
    points, labels = blobs(20, 4, spread=1.0, seed=7)
    labels = keywords.pop("labels", labels)
    with pytest.raises(ValueError, match=message):
        diagnostics(points, labels, **keywords)


def test_printing_shows_the_scores_and_not_the_lists():
    points, labels = blobs(60, 5, spread=0.8, seed=2)
    told = repr(diagnostics(points, labels))
    assert "hubness=" in told
    assert not any(f"{name}=" in told for name in ("classes", "confusions", "label_doubts"))


def test_points_that_coincide_have_no_dimension():
    labels = torch.arange(6) % 3
    assert diagnostics(torch.ones(6, 4), labels).space.effective_dimension == 0


def test_where_all_are_found_as_often_there_is_no_skewness():
    points = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.01, 1.0]])
    found = diagnostics(points, torch.tensor([0, 0, 1, 1]), recall_at=(1,), neighbours=1).hubness
    assert found.skewness == 0
    assert found.largest == 1
