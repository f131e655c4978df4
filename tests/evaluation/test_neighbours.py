from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from retrieval_reference import lattice, naive_similarities

from nearkin.evaluation import nearest_neighbours, similarity


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(2, 30),
    apart=st.booleans(),
    tied=st.booleans(),
    metric=st.sampled_from(["cosine", "euclidean"]),
    data=st.data(),
)
def test_equals_a_full_sort(seed, rows, apart, tied, metric, data):
    g = torch.Generator().manual_seed(seed)
    points = lattice(rows, 3, g) if tied else torch.randn(rows, 3, generator=g)
    gallery = torch.randn(17, 3, generator=g) if apart else None
    k = data.draw(st.integers(1, 17 if apart else rows - 1))
    values, indices = nearest_neighbours(points, k, gallery=gallery, metric=metric)
    expected = torch.tensor(naive_similarities(points, points if gallery is None else gallery, metric))
    if gallery is None:
        expected.fill_diagonal_(-torch.inf)
        assert not (indices == torch.arange(rows)[:, None]).any()
    assert all(len(set(row)) == k for row in indices.tolist())
    torch.testing.assert_close(
        values, expected.sort(dim=1, descending=True).values[:, :k], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(values, expected.gather(1, indices), atol=1e-5, rtol=1e-5)


def test_a_duplicate_is_a_neighbour_but_the_row_itself_is_not():
    points = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    points[10] = points[20]
    _, indices = nearest_neighbours(points, 1)
    assert indices[10].item() == 20
    assert indices[20].item() == 10


def test_chunks_do_not_show(monkeypatch):
    points = torch.randn(101, 8, generator=torch.Generator().manual_seed(1))
    whole = nearest_neighbours(points, 5)
    monkeypatch.setattr(similarity.row_chunks, "__defaults__", (700,))
    parts = nearest_neighbours(points, 5)
    assert torch.equal(whole[1], parts[1])
    torch.testing.assert_close(whole[0], parts[0])


@pytest.mark.parametrize("k", [0, 10, 11])
def test_k_that_does_not_fit(k):
    with pytest.raises(ValueError, match=f"k={k} but each query can choose among 9 rows"):
        nearest_neighbours(torch.randn(10, 4), k)
