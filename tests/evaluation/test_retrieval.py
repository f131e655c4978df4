from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from retrieval_reference import lattice, naive_scores

from nearkin.evaluation import (
    RecallScores,
    RetrievalScores,
    recall_scores,
    retrieval,
    retrieval_scores,
    rows,
    tiles,
)

KS = (1, 2, 4, 8)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clustered(
    rows: int, dim: int, classes: int, seed: int, noise: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator(seed)
    labels = torch.randint(classes, (rows,), generator=g)
    return torch.randn(classes, dim, generator=g)[labels] + noise * torch.randn(
        rows, dim, generator=g
    ), labels


@pytest.fixture(params=["rows", "tiles", "both", "passes"], autouse=True, scope="module")
def path(request):
    """Every test runs on full rows, on tiles of a few entries in one pass or more, and on both."""
    with pytest.MonkeyPatch.context() as patch:
        crowded = {"rows": -1.0, "tiles": 2.0, "both": 0.15, "passes": 0.5}[request.param]
        patch.setattr(retrieval, "CROWDED", crowded)
        patch.setattr(retrieval, "FEWEST_QUERIES", 1)
        if request.param == "passes":
            patch.setattr(retrieval, "POSITIVE_PAIRS", 30)
        patch.setattr(tiles, "TILE_ON_CPU", 13)
        patch.setattr(tiles, "BAND", 5)
        patch.setattr(tiles, "SAMPLE", 3)
        patch.setattr(rows, "ROW_ENTRIES", 500)
        yield


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(2, 40),
    dim=st.integers(1, 5),
    classes=st.integers(2, 12),
    tied=st.booleans(),
    metric=st.sampled_from(["cosine", "euclidean"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equals_the_definitions(seed, rows, dim, classes, tied, metric, dtype):
    g = generator(seed)
    embeddings = lattice(rows, dim, g) if tied else torch.randn(rows, dim, generator=g)
    if not tied and dim == 1 and metric == "cosine":
        embeddings = embeddings.sign()
    labels = torch.randint(classes, (rows,), generator=g)
    expected = naive_scores(embeddings, labels, None, None, metric, KS)
    if expected is None or len(labels.unique()) == 1:
        with pytest.raises(ValueError, match="one class|positive"):
            retrieval_scores(embeddings.to(dtype), labels, metric=metric)
        return
    assert retrieval_scores(embeddings.to(dtype), labels, metric=metric).to_dict() == pytest.approx(expected)
    for name, value in recall_scores(embeddings.to(dtype), labels, metric=metric).to_dict().items():
        assert value == pytest.approx(expected[name])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 30)),
    tied=st.booleans(),
    metric=st.sampled_from(["cosine", "euclidean"]),
)
def test_query_and_gallery(seed, sizes, tied, metric):
    g = generator(seed)
    make = lattice if tied else lambda rows, dim, g: torch.randn(rows, dim, generator=g)
    queries, gallery = make(sizes[0], 4, g), make(sizes[1], 4, g)
    labels, gallery_labels = (
        torch.randint(6, sizes[:1], generator=g),
        torch.randint(6, sizes[1:], generator=g),
    )
    expected = naive_scores(queries, labels, gallery, gallery_labels, metric, KS)
    one_class = len(torch.cat([labels, gallery_labels]).unique()) == 1
    if expected is None or one_class:
        with pytest.raises(ValueError, match="one class|positive"):
            retrieval_scores(queries, labels, gallery=gallery, gallery_labels=gallery_labels, metric=metric)
        return
    scores = retrieval_scores(queries, labels, gallery=gallery, gallery_labels=gallery_labels, metric=metric)
    assert scores.to_dict() == pytest.approx(expected)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), rows=st.integers(2, 30), tied=st.booleans())
def test_multi_hot(seed, rows, tied):
    g = generator(seed)
    embeddings = lattice(rows, 3, g) if tied else torch.randn(rows, 3, generator=g)
    labels = torch.rand(rows, 5, generator=g) < 0.2
    expected = naive_scores(embeddings, labels, None, None, "cosine", KS)
    if expected is None or bool((labels == labels[0]).all()):
        with pytest.raises(ValueError, match="one class|positive"):
            retrieval_scores(embeddings, labels)
        return
    assert retrieval_scores(embeddings, labels).to_dict() == pytest.approx(expected)
    assert retrieval_scores(embeddings, labels.float()) == retrieval_scores(embeddings, labels.int())


def test_multi_hot_with_one_label_each_is_the_plain_form():
    embeddings, labels = clustered(300, 8, 20, seed=0)
    hot = torch.nn.functional.one_hot(labels)
    assert retrieval_scores(embeddings, hot) == retrieval_scores(embeddings, labels)


@pytest.mark.parametrize(("rows", "classes"), [(60, 4), (300, 40), (450, 150)])
def test_equals_pytorch_metric_learning(rows, classes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    names = ("mean_average_precision_at_r", "r_precision", "precision_at_1")
    embeddings, labels = clustered(rows, 16, classes, seed=rows)
    embeddings = torch.nn.functional.normalize(embeddings)
    calculator = theirs.AccuracyCalculator(include=names, k="max_bin_count")
    expected = calculator.get_accuracy(embeddings, labels)
    ours = retrieval_scores(embeddings, labels)
    assert ours.map_at_r == pytest.approx(expected["mean_average_precision_at_r"], abs=1e-9)
    assert ours.r_precision == pytest.approx(expected["r_precision"], abs=1e-9)
    assert ours.precision_at_1 == pytest.approx(expected["precision_at_1"], abs=1e-9)


def test_queries_choose_rows_and_keep_the_whole_gallery():
    embeddings, labels = clustered(200, 8, 15, seed=1)
    everyone = retrieval_scores(embeddings, labels, per_query=True).per_query
    rows = torch.tensor([7, 3, 150, 42])
    some = retrieval_scores(embeddings, labels, queries=rows, per_query=True).per_query
    assert some.indices.tolist() == rows.tolist()
    assert some.first_rank.tolist() == everyone.first_rank[rows].tolist()
    assert some.average_precision_at_r.tolist() == everyone.average_precision_at_r[rows].tolist()
    mask = torch.zeros(200, dtype=torch.bool)
    mask[rows] = True
    assert retrieval_scores(embeddings, labels, queries=mask).map_at_r == pytest.approx(
        float(some.average_precision_at_r.mean())
    )


def test_per_query_values_average_to_the_scores():
    embeddings, _ = clustered(150, 8, 30, seed=2)
    labels = torch.arange(150) % 30
    labels[0] = 99
    scores = retrieval_scores(embeddings, labels, per_query=True)
    values = scores.per_query
    assert 0 not in values.indices
    assert scores.queries_without_positive == 1
    assert scores.queries == len(values.indices) == 149
    assert scores.recall_at[4] == pytest.approx((values.first_rank <= 4).double().mean().item())
    assert scores.r_precision == pytest.approx(values.r_precision.mean().item())
    assert torch.equal(values.positives, torch.bincount(labels)[labels[values.indices]] - 1)


def test_a_duplicate_of_another_class_never_lifts_a_score():
    embeddings, labels = clustered(400, 32, 40, seed=3, noise=0.3)
    before = retrieval_scores(embeddings, labels, per_query=True).per_query
    assert (before.first_rank == 1).all()
    copies = torch.cat([embeddings, embeddings])
    other = torch.cat([labels, (labels + 1) % 40])
    after = retrieval_scores(copies, other, per_query=True).per_query
    # Every query finds its own copy, and a copy beside each positive, all under other labels.
    assert (after.first_rank >= 3).all()


@pytest.mark.parametrize("scale", [1.0, 3.7, 1e-12, 1e12])
def test_a_rescaled_duplicate_ties_too(scale):
    embeddings, labels = clustered(300, 512, 30, seed=4, noise=0.3)
    copies = torch.cat([embeddings, embeddings * scale])
    after = retrieval_scores(copies, torch.cat([labels, (labels + 1) % 30]), per_query=True).per_query
    assert (after.first_rank >= 3).all()


def test_a_collapsed_embedding_scores_nothing():
    scores = retrieval_scores(torch.ones(60, 16) / 3, torch.arange(60) % 6)
    assert scores.map_at_r == scores.r_precision == scores.precision_at_1 == 0.0
    assert set(scores.recall_at.values()) == {0.0}
    assert scores.mean_reciprocal_rank == pytest.approx(1 / 51)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_order_of_rows_does_not_matter(metric):
    embeddings, labels = clustered(333, 24, 30, seed=5)
    embeddings[100:150] = embeddings[:50]
    order = torch.randperm(333, generator=generator(6))
    assert retrieval_scores(embeddings[order], labels[order], metric=metric).to_dict() == pytest.approx(
        retrieval_scores(embeddings, labels, metric=metric).to_dict()
    )


def test_euclidean_far_from_the_origin():
    embeddings, labels = clustered(200, 8, 15, seed=7)
    near = retrieval_scores(embeddings.double(), labels, metric="euclidean")
    assert retrieval_scores(embeddings + 1000, labels, metric="euclidean").to_dict() == pytest.approx(
        near.to_dict(), abs=0.01
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    embeddings, labels = clustered(200, 32, 15, seed=8)
    half = embeddings.to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        scores = retrieval_scores(half, labels)
    assert scores == retrieval_scores(half.float(), labels)


def test_k_beyond_the_gallery_is_the_whole_gallery():
    embeddings, labels = clustered(20, 4, 3, seed=9)
    assert retrieval_scores(embeddings, labels, recall_at=(1000,)).recall_at == {1000: 1.0}


def test_to_dict_is_plain_json():
    embeddings, labels = clustered(20, 4, 3, seed=10)
    scores = retrieval_scores(embeddings, labels, recall_at=(1, 10), per_query=True)
    assert list(json.loads(json.dumps(scores.to_dict()))) == [
        "recall_at_1",
        "recall_at_10",
        "precision_at_1",
        "mean_reciprocal_rank",
        "queries",
        "queries_without_positive",
        "map_at_r",
        "r_precision",
    ]


def bad(change):
    embeddings, labels = clustered(12, 4, 3, seed=11)
    return change(embeddings, labels)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda e, y: retrieval_scores(e.index_fill(0, torch.tensor([5]), torch.nan), y),
            r"NaN or Inf in 1 of 12 rows \(5\)",
        ),
        (lambda e, y: retrieval_scores(e.index_fill(0, torch.tensor([5]), torch.inf), y), "NaN or Inf"),
        (
            lambda e, y: retrieval_scores(e.index_fill(0, torch.tensor([2, 3]), 0.0), y),
            r"all zero in 2 of 12 rows \(2, 3\)",
        ),
        (lambda e, y: retrieval_scores(e, y[:-1]), "12 embeddings but 11 labels"),
        (lambda e, y: retrieval_scores(e, y.float()), "labels must be integers, not torch.float32"),
        (lambda e, y: retrieval_scores(e, torch.zeros_like(y)), "one class"),
        (lambda e, y: retrieval_scores(e, torch.arange(12)), "none of the 12 queries has a positive"),
        (lambda e, y: retrieval_scores(e, y, recall_at=(0,)), r"recall_at=\(0,\)"),
        (lambda e, y: retrieval_scores(e, y, recall_at=(1.5,)), r"recall_at=\(1.5,\)"),
        (lambda e, y: retrieval_scores(e, y, recall_at=[10**26]), "whole numbers from 1 to 2,147,483,647"),
        (lambda e, y: retrieval_scores(e, y, recall_at=[2**31]), "whole numbers from 1 to 2,147,483,647"),
        (lambda e, y: retrieval_scores(e, y, recall_at=[float("inf")]), r"recall_at=\[inf\] must hold"),
        (lambda e, y: retrieval_scores(e, y, recall_at=[float("nan")]), r"recall_at=\[nan\] must hold"),
        (lambda e, y: retrieval_scores(e, y, recall_at=["one"]), r"recall_at=\['one'\] must hold"),
        (lambda e, y: retrieval_scores(e, y, recall_at=5), "recall_at=5 must hold"),
        (lambda e, y: recall_scores(e, y, recall_at=[-3]), r"recall_at=\[-3\] must hold"),
        (lambda e, y: retrieval_scores(e, y, metric="manhattan"), "metric='manhattan' is unknown"),
        (lambda e, y: retrieval_scores(e[:, 0], y), r"shape \(N, D\)"),
        (lambda e, y: retrieval_scores(e.long(), y), "floating point"),
        (lambda e, y: retrieval_scores(e.numpy(), y), "torch tensor, not ndarray"),
        (lambda e, y: retrieval_scores(e, y, queries=torch.tensor([12])), "row 12 but there are 12"),
        (lambda e, y: retrieval_scores(e, y, queries=torch.tensor([-1])), "row -1 but there are 12"),
        (lambda e, y: retrieval_scores(e, y, queries=torch.zeros(12, dtype=torch.bool)), "chooses no row"),
        (lambda e, y: retrieval_scores(e, y, queries=torch.ones(3, dtype=torch.bool)), "mask of 3 rows"),
        (lambda e, y: retrieval_scores(e, y, queries=torch.tensor([0.0])), "indices"),
        (lambda e, y: retrieval_scores(e, y, gallery=e), "give both or neither"),
        (
            lambda e, y: retrieval_scores(e, y, gallery=e[:, :2], gallery_labels=y),
            "4 columns but the gallery has 2",
        ),
        (lambda e, y: retrieval_scores(e, y, gallery=e, gallery_labels=y[:, None] == y), "of one kind"),
        (lambda e, y: retrieval_scores(e, y[:, None] * 3), "only 0 and 1"),
        (lambda e, y: retrieval_scores(e, y[:, None, None]), r"shape \(N,\)"),
    ],
)
def test_bad_input_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        bad(call)


def test_an_all_zero_row_has_a_distance():
    embeddings, labels = clustered(30, 4, 3, seed=12)
    embeddings[3] = 0
    assert retrieval_scores(embeddings, labels, metric="euclidean").queries == 30


def test_nothing_is_changed_and_no_gradient_is_kept():
    embeddings, labels = clustered(30, 4, 3, seed=13)
    embeddings.requires_grad_()
    kept, kept_labels = embeddings.detach().clone(), labels.clone()
    for metric in ("cosine", "euclidean"):
        retrieval_scores(embeddings, labels, metric=metric)
    assert torch.equal(embeddings, kept)
    assert torch.equal(labels, kept_labels)


def test_the_largest_k_is_the_whole_gallery_too():
    embeddings, labels = clustered(20, 4, 3, seed=9)
    assert retrieval_scores(embeddings, labels, recall_at=[2**31 - 1]).recall_at == {2**31 - 1: 1.0}


def test_an_error_does_not_repeat_a_long_list():
    embeddings, labels = clustered(12, 4, 3, seed=11)
    with pytest.raises(ValueError, match="whole numbers") as caught:
        retrieval_scores(embeddings, labels, recall_at=[0] * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("score", [retrieval_scores, recall_scores])
def test_from_dict_undoes_to_dict(score):
    embeddings, labels = clustered(60, 4, 12, seed=14, noise=2.0)
    labels[0] = 99
    scores = score(embeddings, labels, recall_at=(1, 10))
    again = type(scores).from_dict(json.loads(json.dumps(scores.to_dict())))
    assert again == scores
    assert type(again) is type(scores)


def test_from_dict_reads_what_older_versions_wrote():
    scores = RetrievalScores.from_dict({"recall_at_1": 0.5, "map_at_r": 0.25, "queries": 8, "loss": "x"})
    assert scores.recall_at == {1: 0.5}
    assert scores.precision_at_1 == 0.5
    assert scores.map_at_r == 0.25
    assert (scores.queries, scores.queries_without_positive) == (8, 0)
    assert math.isnan(scores.r_precision)
    assert math.isnan(scores.mean_reciprocal_rank)
    assert RecallScores.from_dict({"precision_at_1": 0.75}).recall_at == {1: 0.75}
    assert math.isnan(RecallScores.from_dict({}).precision_at_1)


def test_scores_print_what_people_ask_for():
    scores = RetrievalScores(
        recall_at={1: 0.5, 4: 0.75},
        precision_at_1=0.5,
        mean_reciprocal_rank=0.625,
        queries=1200,
        queries_without_positive=3,
        map_at_r=0.25,
        r_precision=0.375,
    )
    assert repr(scores) == (
        "RetrievalScores(Recall@1 50.00 %, Recall@4 75.00 %, MAP@R 25.00 %, R-precision 37.50 %, "
        "1,200 queries, 3 without a positive)"
    )
    rows = ElementTree.fromstring(scores._repr_html_())
    assert {row[0].text: row[1].text for row in rows} == {
        "Recall@1": "50.00 %",
        "Recall@4": "75.00 %",
        "mean reciprocal rank": "0.6250",
        "MAP@R": "25.00 %",
        "R-precision": "37.50 %",
        "queries": "1,200",
        "queries without a positive": "3",
    }
    first = RecallScores.from_dict({"recall_at_2": 0.5, "precision_at_1": 0.25, "queries": 4})
    assert repr(first) == "RecallScores(Recall@2 50.00 %, Precision@1 25.00 %, 4 queries)"


def test_to_pandas_is_one_row(monkeypatch):
    made = []
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: made.append(rows) or 7))
    embeddings, labels = clustered(20, 4, 3, seed=10)
    scores = retrieval_scores(embeddings, labels)
    assert scores.to_pandas() == 7
    assert made == [[scores.to_dict()]]


def test_to_pandas_without_pandas_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        RecallScores.from_dict({}).to_pandas()


def test_scores_cannot_be_changed_afterwards():
    embeddings, labels = clustered(20, 4, 3, seed=10)
    scores = retrieval_scores(embeddings, labels, per_query=True)
    for value in (scores, scores.per_query):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.queries = 3


def test_passes_hold_every_query_once_and_few_pairs_each(monkeypatch):
    monkeypatch.setattr(retrieval, "POSITIVE_PAIRS", 100)
    labels = torch.randint(20, (300,), generator=generator(0))
    sizes = labels.bincount()[labels]
    queries = (labels != 3).nonzero().squeeze(1)
    passes = retrieval._passes(labels, sizes, queries)
    assert torch.equal(torch.cat(passes).sort().values, queries)
    assert all(sizes[part].sum() < 100 + sizes.max() for part in passes)
    assert abs(len(passes) - sizes[queries].sum() / 100) <= 1
    assert len(retrieval._passes(labels, torch.zeros_like(sizes), queries)) == 1
