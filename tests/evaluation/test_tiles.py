from __future__ import annotations

import pytest
import torch

from nearkin.evaluation import tiles
from nearkin.evaluation.ranking import Search
from nearkin.evaluation.rows import rank_by_rows
from nearkin.evaluation.similarity import sides
from nearkin.evaluation.tiles import rank_by_tiles


def search(metric: str, noise: float, duplicates: bool, queries: int | None = None) -> Search:
    """More rows than two tiles of the real size, sizes that no tile divides, classes from 1 to 40."""
    g = torch.Generator().manual_seed(7)
    labels = (torch.rand(2309, generator=g) ** 2 * 300).long()
    points = torch.randn(300, 48, generator=g)[labels] + noise * torch.randn(2309, 48, generator=g)
    if duplicates:
        points[1500:] = points[: 2309 - 1500] * 1.7
    both = Search(sides(points, None, metric), labels, labels, torch.arange(2309))
    return both if queries is None else both.choose(torch.randperm(2309, generator=g)[:queries])


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("noise", [0.5, 2.0, 50.0])
@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("queries", [None, 1100])
def test_tiles_of_the_real_size_equal_full_rows(metric, noise, duplicates, queries):
    asked = search(metric, noise, duplicates, queries)
    by_tiles, by_rows = rank_by_tiles(asked, only_first=False), rank_by_rows(asked, only_first=False)
    assert torch.equal(by_tiles.positives, by_rows.positives)
    found = by_rows.positives > 0
    assert torch.equal(by_tiles.first_rank[found], by_rows.first_rank[found])
    torch.testing.assert_close(by_tiles.r_precision, by_rows.r_precision)
    torch.testing.assert_close(by_tiles.average_precision_at_r, by_rows.average_precision_at_r)
    first = rank_by_tiles(asked, only_first=True)
    assert torch.equal(first.first_rank, by_tiles.first_rank)


def test_half_of_the_product_is_enough(monkeypatch):
    filled = []
    fill = tiles._Tile.fill
    monkeypatch.setattr(
        tiles._Tile, "fill", lambda self, q, g: (filled.append(len(q) * len(g)), fill(self, q, g))
    )
    monkeypatch.setattr(tiles, "TILE_ON_CPU", 100)
    rank_by_tiles(search("cosine", 1.0, duplicates=False), only_first=True)
    assert sum(filled) < 0.53 * 2309**2


def test_the_bound_counts_no_negative_twice(monkeypatch):
    monkeypatch.setattr(tiles, "SAMPLE", 10**6)
    asked = search("cosine", 2.0, duplicates=False)
    exact = rank_by_tiles(asked, only_first=False)
    assert torch.equal(
        exact.average_precision_at_r, rank_by_rows(asked, only_first=False).average_precision_at_r
    )


def test_what_equals_a_cut_reaches_it():
    tile = tiles._Tile(2, torch.zeros(1))
    tile.fill(torch.eye(2), torch.tensor([[0.5, 0.25], [0.75, 0.125]]))  # [[0.5, 0.75], [0.25, 0.125]]
    by_row, by_column = tile.reaching(torch.tensor([0.75, 1.0]), torch.tensor([0.25, 1.0]), 10, 20)
    assert by_row[0].tolist() == [10]
    assert by_row[1].tolist() == [0.75]
    assert by_column[0].tolist() == [20, 20]
    assert by_column[1].tolist() == [0.5, 0.25]
    [(row, similarity)] = tile.reaching(torch.tensor([1.0, 0.125]), None, 0, 0)
    assert row.tolist() == [1, 1]
    assert similarity.tolist() == [0.25, 0.125]


@pytest.mark.parametrize("columns", [16, 100])
def test_the_tolerance_is_the_documented_one(columns):
    points = torch.randn(3, columns, generator=torch.Generator().manual_seed(0))
    cosine, euclidean = (sides(points, None, metric) for metric in ("cosine", "euclidean"))
    pair = torch.tensor([0]), torch.tensor([2])
    eps = torch.finfo(torch.float32).eps
    assert float(cosine.tolerance(*pair)) == pytest.approx((8 + columns**0.5 / 2) * eps)
    squares = (points - points.mean(dim=0)).square().sum(dim=1)
    expected = (8 + (columns + 2) ** 0.5 / 2) * eps * float(squares[0] + squares[2]) / 2
    assert float(euclidean.tolerance(*pair)) == pytest.approx(expected)
