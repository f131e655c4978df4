"""Re-ranked searches: the order of the evaluation's functions over everything, cosines as they are."""

from __future__ import annotations

import pytest
import torch
from indexed import picture_model
from torch.nn.functional import normalize

from nearkin.evaluation.reranking import k_reciprocal, query_expansion
from nearkin.index import Index, NewItem


@pytest.fixture
def points(tmp_path):
    vectors = normalize(torch.randn(60, 8, generator=torch.Generator().manual_seed(0)))
    with Index.create(picture_model(), tmp_path / "i") as index:
        index.store.add(
            [NewItem(str(n), str(n), "even" if n % 2 == 0 else "odd") for n in range(60)], vectors
        )
        yield index, vectors


QUERIES = normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(1)))


def test_k_reciprocal_is_that_of_all_items_where_all_are_candidates(points):
    index, vectors = points
    expected = torch.stack([k_reciprocal(query[None], vectors)[0] for query in QUERIES])
    found = index.search_vectors(QUERIES, 5, rerank="k_reciprocal")
    orders = [[int(hit.item.name) for hit in hits] for hits in found]
    assert orders == expected.argsort(dim=1, descending=True, stable=True)[:, :5].tolist()
    for hits, query in zip(found, QUERIES, strict=True):
        own = vectors[[int(hit.item.name) for hit in hits]] @ query
        assert [hit.similarity for hit in hits] == pytest.approx(own.tolist(), abs=1e-5)


def test_query_expansion_searches_with_the_expanded_query(points):
    index, vectors = points
    expanded = query_expansion(QUERIES, vectors, k=4)
    found = index.search_vectors(QUERIES, 4, rerank="query_expansion")
    orders = [[int(hit.item.name) for hit in hits] for hits in found]
    assert orders == (expanded @ vectors.T).topk(4).indices.tolist()


@pytest.mark.parametrize("rerank", ["k_reciprocal", "query_expansion"])
def test_filters_hold_and_few_or_no_items_are_enough(points, rerank):
    index, _ = points
    found = index.search_vectors(QUERIES, 50, {"label": "odd"}, rerank=rerank)
    assert [len(hits) for hits in found] == [30] * 3
    assert index.search_vectors(QUERIES, 5, {"label": "none"}, rerank=rerank) == [[]] * 3
    assert len(index.search_vectors(QUERIES, 5, {"name": "7"}, rerank=rerank)[0]) == 1
    assert len(index.search_vectors(QUERIES, 5, approximate=True, rerank=rerank)[0]) == 5


def test_an_unknown_way_is_told(points):
    with pytest.raises(ValueError, match="rerank='k_reciprocals': did you mean k_reciprocal?"):
        points[0].search_vectors(QUERIES, 5, rerank="k_reciprocals")
