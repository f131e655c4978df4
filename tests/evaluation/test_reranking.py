"""Re-ranking against loops that are written from the papers' equations."""

from __future__ import annotations

from math import exp

import pytest
import torch
from live_memory import peak_bytes
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.evaluation import (
    Whitening,
    k_reciprocal,
    query_expansion,
    reranked_scores,
    reranking,
    retrieval_scores,
)


def points(count: int, seed: int = 0, size: int = 5, classes: int = 6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centres = torch.randn(classes, size, generator=draw, dtype=torch.float64)
    return centres[labels] + torch.randn(count, size, generator=draw, dtype=torch.float64), labels


def naive_expansion(queries: Tensor, gallery: Tensor, own: bool, k: int, alpha: float) -> Tensor:
    rows = []
    for i, query in enumerate(normalize(queries, dim=1)):
        near = sorted(
            (
                (float(query @ item), j)
                for j, item in enumerate(normalize(gallery, dim=1))
                if not (own and i == j)
            ),
            reverse=True,
        )[:k]
        total = query.clone()
        for cosine, j in near:
            total += max(cosine, 0) ** alpha * normalize(gallery[j], dim=0)
        rows.append(total / total.norm())
    return torch.stack(rows)


@pytest.mark.parametrize(("k", "alpha"), [(1, 0.0), (3, 3.0), (10, 1.5), (500, 2.0)])
def test_query_expansion_is_what_its_equation_says(k, alpha):
    everything, _ = points(25)
    queries, gallery = everything[:7] * 3, everything[7:]
    expected = naive_expansion(queries, gallery, False, k, alpha)
    torch.testing.assert_close(query_expansion(queries, gallery, k=k, alpha=alpha), expected)
    among = naive_expansion(everything, everything, True, k, alpha)
    torch.testing.assert_close(query_expansion(everything, k=k, alpha=alpha), among)


def naive_k_reciprocal(everything: Tensor, k1: int, k2: int, weight: float) -> Tensor:
    """The distances ``(N, N)`` of Zhong et al. among all rows, by sets."""
    units = normalize(everything, dim=1)
    count = len(units)
    distance = [[float(2 - 2 * units[i] @ units[j]) for j in range(count)] for i in range(count)]

    def near(p: int, k: int) -> list[int]:
        others = sorted((j for j in range(count) if j != p), key=lambda j: distance[p][j])
        return [p, *others[:k]]

    def reciprocal(p: int, k: int) -> set[int]:
        return {g for g in near(p, k) if p in near(g, k)}

    codes = []
    for p in range(count):
        members = reciprocal(p, k1)
        joined = set(members)
        for q in members:
            half = reciprocal(q, round(k1 / 2))
            if len(members & half) >= 2 / 3 * len(half) - 1e-12:
                joined |= half
        code = {g: exp(-distance[p][g]) for g in joined}
        total = sum(code.values())
        codes.append({g: value / total for g, value in code.items()})
    averaged = []
    for p in range(count):
        rows = [codes[n] for n in near(p, k2 - 1)]
        averaged.append({g: sum(row.get(g, 0) for row in rows) / len(rows) for row in rows for g in row})
    final = torch.empty(count, count, dtype=torch.float64)
    for p in range(count):
        for g in range(count):
            either = {*averaged[p], *averaged[g]}
            pairs = [(averaged[p].get(j, 0), averaged[g].get(j, 0)) for j in either]
            jaccard = 1 - sum(map(min, pairs)) / sum(map(max, pairs))
            final[p, g] = (1 - weight) * jaccard + weight * distance[p][g]
    return final


@pytest.mark.parametrize(
    ("k1", "k2", "weight"), [(4, 1, 0.3), (6, 3, 0.0), (7, 2, 0.5), (20, 6, 0.3), (3, 8, 1)]
)
def test_k_reciprocal_is_what_its_sets_say(k1, k2, weight):
    everything, _ = points(26, seed=k1)
    expected = -naive_k_reciprocal(everything, k1, k2, weight)
    found = k_reciprocal(everything, k1=k1, k2=k2, weight=weight)
    torch.testing.assert_close(found, expected)
    against = k_reciprocal(everything[:5], everything[5:], k1=k1, k2=k2, weight=weight)
    torch.testing.assert_close(against, expected[:5, 5:])


def test_the_rows_do_not_depend_on_the_chunks(monkeypatch):
    everything, _ = points(40)
    whole = k_reciprocal(everything)
    monkeypatch.setattr(reranking, "row_chunks", lambda rows, columns: (slice(i, i + 1) for i in range(rows)))
    torch.testing.assert_close(k_reciprocal(everything), whole)


def test_few_rows_have_few_neighbours():
    everything, _ = points(3)
    assert k_reciprocal(everything[:1], everything[1:]).shape == (1, 2)
    assert k_reciprocal(everything[:1]).shape == (1, 1)
    assert query_expansion(everything[:1], everything[1:2], k=9).shape == (1, 5)


def test_whitened_embeddings_have_equal_variance_in_all_directions():
    everything, _ = points(400)
    whitening = Whitening.fit(everything)
    units = normalize(everything, dim=1)
    covariance = ((units - whitening.mean) @ whitening.projection).T.cov()
    torch.testing.assert_close(covariance, torch.eye(5, dtype=torch.float64))
    expected = normalize((units - units.mean(dim=0)) @ whitening.projection, dim=1)
    torch.testing.assert_close(whitening(everything * 2), expected)
    small = Whitening.fit(everything, size=2)
    torch.testing.assert_close(small.projection, whitening.projection[:, :2])
    flat = torch.cat([everything, torch.zeros(400, 3)], dim=1)
    assert Whitening.fit(flat).projection.shape == (8, 5)  # directions without variance are left out


def test_whitening_agrees_with_scikit_learn():
    from sklearn.decomposition import PCA  # noqa: PLC0415

    units = normalize(points(100)[0], dim=1)
    expected = torch.from_numpy(PCA(whiten=True, svd_solver="full").fit_transform(units.numpy())).abs()
    whitening = Whitening.fit(units)
    torch.testing.assert_close(((units - whitening.mean) @ whitening.projection).abs(), expected)


def list_scores(similarity: Tensor, labels: Tensor, found: Tensor, own: bool) -> tuple[float, float]:
    """Recall@1 and MAP@R of similarities without ties, by sorted lists."""
    recalls, precisions = [], []
    for i, row in enumerate(similarity):
        order = [j for j in row.argsort(descending=True).tolist() if not (own and i == j)]
        right = [bool(labels[i] == found[j]) for j in order]
        positives = sum(right)
        recalls.append(right[0])
        precisions.append(
            sum(sum(right[: n + 1]) / (n + 1) for n in range(positives) if right[n]) / positives
        )
    return sum(recalls) / len(recalls), sum(precisions) / len(precisions)


@pytest.mark.parametrize("method", ["k_reciprocal", "query_expansion", "whitening"])
@pytest.mark.parametrize("apart", [False, True])
def test_scores_after_reranking_are_those_of_the_new_lists(method, apart):
    everything, labels = points(48, seed=3)
    other, _ = points(200, seed=4)
    whitening = Whitening.fit(other)
    queries, gallery = (everything[:12], everything[12:]) if apart else (everything, everything)
    own, found = (labels[:12], labels[12:]) if apart else (labels, labels)
    given = {"gallery": gallery, "gallery_labels": found} if apart else {}
    similarity = {
        "k_reciprocal": lambda: k_reciprocal(queries, gallery if apart else None),
        "query_expansion": lambda: (
            query_expansion(queries, gallery if apart else None) @ normalize(gallery, dim=1).T
        ),
        "whitening": lambda: whitening(queries) @ whitening(gallery).T,
    }[method]()
    scores = reranked_scores(method, queries, own, whitening=whitening, **given)
    recall, precision = list_scores(similarity, own, found, not apart)
    assert scores.recall_at[1] == pytest.approx(recall)
    assert scores.map_at_r == pytest.approx(precision)
    assert scores.queries == len(queries)
    kept = reranked_scores(method, queries, own, whitening=whitening, per_query=True, **given)
    assert kept == scores
    assert len(kept.per_query.indices) == len(queries)


def test_reranking_helps_where_classes_are_groups_of_neighbours():
    everything, labels = points(300, seed=1, size=8, classes=10)
    before = retrieval_scores(everything, labels)
    assert reranked_scores("k_reciprocal", everything, labels).map_at_r > before.map_at_r
    assert reranked_scores("query_expansion", everything, labels).map_at_r > before.map_at_r


def test_memory_holds_codes_and_a_chunk(monkeypatch):
    from nearkin.evaluation import similarity  # noqa: PLC0415

    monkeypatch.setattr(similarity, "CHUNK_ENTRIES", 2**12)
    chunks = similarity.row_chunks
    monkeypatch.setattr(reranking, "row_chunks", lambda rows, columns: chunks(rows, columns, 2**12))
    everything, labels = points(600, size=4, classes=30)
    peak = peak_bytes(lambda: reranked_scores("k_reciprocal", everything.float(), labels))
    assert peak < 64 * 2**20


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: query_expansion(x, k=0), "k=0 must be at least 1"),
        (lambda x, y: query_expansion(x, alpha=-1), "alpha=-1 must be at least 0"),
        (lambda x, y: query_expansion(x, x[:, :2]), "5 columns but the gallery has 2"),
        (lambda x, y: k_reciprocal(x, k1=0), "k1=0 must be"),
        (lambda x, y: k_reciprocal(x, k2=0), "k2=0 must be"),
        (lambda x, y: k_reciprocal(x, weight=2), "weight=2 must lie"),
        (lambda x, y: Whitening.fit(x[:1]), "at least two embeddings"),
        (lambda x, y: Whitening.fit(x[:1].repeat(3, 1)), "embeddings that differ"),
        (lambda x, y: Whitening.fit(x, size=9), "vary in 5 directions"),
        (lambda x, y: Whitening.fit(x)(x[:, :3]), "3 columns but whitening knows 5"),
        (lambda x, y: reranked_scores("best", x, y), "rerank='best' is unknown: choose k_reciprocal"),
        (lambda x, y: reranked_scores("whitening", x, y), "fitted on other classes first"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(*points(20))


@pytest.mark.parametrize(("count", "shown"), [(5, r"0, 1, 2, 3, 4\)"), (6, r"0, 1, 2, 3, 4, …\)")])
def test_five_rows_without_a_direction_are_named(count, shown):
    rows = torch.ones(9, 3)
    rows[:count] = 0
    with pytest.raises(ValueError, match=rf"all zero in {count} of 9 rows \({shown}"):
        query_expansion(rows)


def test_two_embeddings_differ_in_one_direction():
    whitening = Whitening.fit(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert whitening.projection.shape == (2, 1)
    with pytest.raises(ValueError, match="size=2: the embeddings vary in 1 directions"):
        Whitening.fit(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), size=2)


def test_two_rows_are_neighbours_of_each_other():
    """Both have both among their neighbours, so their sets are the same but for the distance in them."""
    points = normalize(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    own, other = 1.0, exp(-(2 - 2 * 0.6))
    overlap = 2 * other / (own + other)  # of rows that add up to one: the smaller of each pair of entries
    expected = -(0.7 * (1 - overlap / (2 - overlap)) + 0.3 * (2 - 2 * 0.6))
    found = k_reciprocal(points, k1=1, k2=1, weight=0.3)
    assert float(found[0, 1]) == pytest.approx(expected, abs=1e-6)
