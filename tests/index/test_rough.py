"""Products in bf16 tell which rows may be better, and leave none of them out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from nearkin.index import rough, scan

NONE = np.empty(0, dtype=np.int64)


def unit(count: int, dimension: int, seed: int) -> torch.Tensor:
    return normalize(torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed)))


def crowded(count: int, dimension: int, spread: float, seed: int) -> torch.Tensor:
    """Rows so near each other that rounding to bf16 changes their order."""
    return normalize(unit(1, dimension, 7) + spread * unit(count, dimension, seed))


@settings(max_examples=40)
@given(
    dimension=st.sampled_from([1, 3, 33, 512]),
    sparse=st.booleans(),
    spread=st.sampled_from([0.0, 0.01, 1.0]),
    seed=st.integers(0, 100),
)
def test_no_product_is_off_by_more_than_the_bound(dimension, sparse, spread, seed):
    rows, queries = crowded(60, dimension, spread, seed), crowded(20, dimension, spread, seed + 1)
    if sparse:
        rows = normalize(rows * (torch.rand(rows.shape) < 0.1))
    bounds = rough.error_bounds(queries, queries.bfloat16())
    exact = rows.double() @ queries.double().T
    # What the product would be if the processor rounded nothing after the numbers themselves.
    found = rows.bfloat16().double() @ queries.bfloat16().double().T
    assert ((found - exact).abs() <= bounds).all()
    of_torch = (rows.bfloat16() @ queries.bfloat16().T).double()
    assert ((of_torch - exact).abs() <= bounds + 2.0**-8 * exact.abs() + 1e-4).all()


@pytest.mark.parametrize("spread", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("blocked", [NONE, np.arange(0, 3000, 7)])
def test_what_is_better_is_exactly_what_float32_finds(spread, blocked, monkeypatch):
    monkeypatch.setattr(rough, "MOST", 1.0)  # never given up
    rows, queries = crowded(3000, 64, spread, 0), crowded(30, 64, spread, 1)
    products = rows @ queries.T
    products[torch.from_numpy(blocked)] = -torch.inf
    worst = products.quantile(0.99, dim=0).numpy()
    tiles = rough.RoughTiles(rows.numpy(), queries.numpy(), 1000)
    found = set()
    for start in range(0, 3000, 1000):
        here = blocked[(blocked >= start) & (blocked < start + 1000)] - start
        better = tiles.better(slice(start, start + 1000), worst, here)
        found |= {*zip(better.rows.tolist(), better.asking.tolist(), strict=True)}
        own = products[better.rows, better.asking]
        np.testing.assert_allclose(better.similarities, own, atol=1e-6)
    near = 5e-7  # sums in another order
    sure = {(row, query) for row, query in (products > torch.from_numpy(worst) + near).nonzero().tolist()}
    may = {(row, query) for row, query in (products > torch.from_numpy(worst) - near).nonzero().tolist()}
    assert sure
    assert sure <= found <= may


def test_it_rests_where_too_much_would_be_multiplied_again():
    rows, queries = crowded(1000, 16, 1e-4, 0).numpy(), crowded(20, 16, 1e-4, 1).numpy()
    tiles = rough.RoughTiles(rows, queries, 100)
    worst = np.full(20, 0.5, dtype=np.float32)
    products_made = []
    once = torch.mm

    def noting(*given, **keywords):
        products_made.append(turn)
        return once(*given, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "mm", noting)
        for turn in range(10):
            assert tiles.better(slice(100 * turn, 100 * turn + 100), worst, NONE) is None
    assert products_made == [0, 2, 5]
    impossible = np.full(20, 2.0, dtype=np.float32)
    found = [tiles.better(slice(0, 100), impossible, NONE) for _ in range(10)]
    assert found[-1] is not None, "and tries again afterwards"
    assert len(found[-1].rows) == 0


@pytest.mark.parametrize("spread", [1e-3, 0.05, 1.0])
@pytest.mark.parametrize("k", [1, 10])
def test_a_search_finds_the_same_with_bf16_and_without(spread, k, monkeypatch):
    monkeypatch.setattr(scan, "SEEN", 8)
    monkeypatch.setattr(scan, "ROWS_AT_A_TIME", 256)
    monkeypatch.setattr(scan, "ROWS_AT_A_TIME_IN_BF16", 256)
    monkeypatch.setattr(scan, "FIRST_ROWS", 64)
    rows, queries = crowded(4000, 48, spread, 0), crowded(50, 48, spread, 1)
    blocked, allowed = np.arange(0, 4000, 11), np.arange(500, 4000)
    asked = []
    once = rough.RoughTiles.better

    def counting(*given):
        asked.append(once(*given))
        return asked[-1]

    monkeypatch.setattr(rough.RoughTiles, "better", counting)
    found = {}
    for fast in (False, True):
        monkeypatch.setattr(scan, "has_bf16", lambda fast=fast: fast)
        found[fast] = scan.search_float32(rows.numpy(), queries, k, allowed=allowed, blocked=blocked)
        assert bool(asked) is fast
    if spread == 1.0:
        assert any(one is not None for one in asked)
    torch.testing.assert_close(found[True].similarities, found[False].similarities, atol=1e-6, rtol=0)
    own = (rows[found[True].rows] * queries[:, None]).sum(dim=2)
    torch.testing.assert_close(own, found[True].similarities, atol=1e-6, rtol=0)


def test_threads_of_a_search_leave_torchs_threads_as_they_were(monkeypatch):
    monkeypatch.setattr(scan, "has_bf16", lambda: True)
    before = torch.get_num_threads()
    rows, queries = unit(20_000, 16, 0), unit(20, 16, 1)
    scan.search_float32(rows.numpy(), queries, 3, allowed=None, blocked=NONE)
    inside = list(scan._threads(before).map(lambda _: torch.get_num_threads(), range(8)))
    assert inside == [1] * 8
    assert torch.get_num_threads() == before
    with scan.ThreadPoolExecutor(1) as other:
        assert other.submit(torch.get_num_threads).result() == before
