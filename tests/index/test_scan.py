"""Exact search over rows, against a plain product, in every way it goes about it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info
from torch.nn.functional import normalize

from nearkin.index import scan

NONE = np.empty(0, dtype=np.int64)


def unit(count: int, dimension: int, seed: int) -> torch.Tensor:
    return normalize(torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed)))


def plain(matrix, queries, k, allowed, blocked):
    """Similarities of a whole product, −inf where a row must not be found."""
    keep = torch.zeros(len(matrix), dtype=torch.bool)
    keep[torch.arange(len(matrix)) if allowed is None else torch.from_numpy(allowed)] = True
    keep[torch.from_numpy(blocked)] = False
    similarities = (queries @ matrix.T).masked_fill(~keep, -torch.inf)
    missing = similarities.new_full((len(queries), max(0, k - len(matrix))), -torch.inf)
    return torch.cat([similarities, missing], dim=1).topk(k).values


@settings(max_examples=60)
@given(
    rows=st.integers(0, 300),
    queries=st.sampled_from([1, 3, 9, 20]),
    k=st.integers(1, 12),
    share=st.sampled_from([None, 0.0, 0.1, 0.6, 1.0]),
    gone=st.sampled_from([0.0, 0.3, 1.0]),
    in_bf16=st.booleans(),
    seed=st.integers(0, 100),
)
def test_both_find_what_a_plain_product_finds(rows, queries, k, share, gone, in_bf16, seed):
    matrix, asked = unit(rows, 6, seed), unit(queries, 6, seed + 1)
    numbers = np.random.default_rng(seed)
    allowed = None if share is None else np.flatnonzero(numbers.random(rows) < share)
    blocked = np.flatnonzero(numbers.random(rows) < gone)
    expected = plain(matrix, asked, k, allowed, blocked)
    small = pytest.MonkeyPatch()
    with small.context() as patch:
        patch.setattr(scan, "ROWS_AT_A_TIME", 64)
        patch.setattr(scan, "ROWS_AT_A_TIME_IN_BF16", 64)
        patch.setattr(scan, "FIRST_ROWS", 16)
        patch.setattr(scan, "QUERIES_AT_A_TIME", 7)
        patch.setattr(scan, "SEEN", 2)
        patch.setattr(scan, "has_bf16", lambda: in_bf16)
        exact = scan.search_float32(matrix.numpy(), asked, k, allowed=allowed, blocked=blocked)
        codes = scan.to_codes(matrix.numpy()) if rows else np.empty((0, 6), dtype=np.int8)
        bytes_ = scan.search_int8(
            codes, scan.lengths_of(codes), matrix.numpy(), asked, k, allowed=allowed, blocked=blocked
        )
    for found in (exact, bytes_):
        torch.testing.assert_close(found.similarities, expected)
        there = found.rows >= 0
        assert torch.equal(there, ~expected.isneginf())
        for row in found.rows.tolist():
            real = [one for one in row if one >= 0]
            assert len({*real}) == len(real)
        own = (matrix[found.rows.clamp(min=0)] * asked[:, None]).sum(dim=2) if rows else expected
        torch.testing.assert_close(own[there], found.similarities[there])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("queries", [1, 12])
def test_threads_share_the_rows(threads, queries, monkeypatch):
    monkeypatch.setattr(scan, "_ROWS_AT_ONCE", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    matrix, asked = unit(1000, 16, 0), unit(queries, 16, 1)
    expected = plain(matrix, asked, 10, None, NONE)
    found = scan.search_float32(matrix.numpy(), asked, 10, allowed=None, blocked=NONE)
    torch.testing.assert_close(found.similarities, expected)
    codes = scan.to_codes(matrix.numpy())
    lengths = scan.lengths_of(codes)
    found = scan.search_int8(codes, lengths, matrix.numpy(), asked, 10, allowed=None, blocked=NONE)
    torch.testing.assert_close(found.similarities, expected)


def test_searches_at_once_leave_the_threads_of_blas_as_they_were():
    def threads_of_blas() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    matrix, asked = unit(5000, 16, 0), unit(40, 16, 1)
    expected = plain(matrix, asked, 10, None, NONE)
    before = threads_of_blas()
    with ThreadPoolExecutor(4) as pool:
        searches = [
            pool.submit(scan.search_float32, matrix.numpy(), asked, 10, allowed=None, blocked=NONE)
            for _ in range(20)
        ]
        for search in searches:
            torch.testing.assert_close(search.result().similarities, expected)
    assert threads_of_blas() == before


def test_bytes_keep_directions():
    vectors = unit(200, 128, 0)
    codes = torch.from_numpy(scan.to_codes(vectors.numpy())).float()
    assert codes.abs().amax(dim=1).eq(127).all()
    assert (normalize(codes) * vectors).sum(dim=1).min() > 0.9999
    assert scan.to_codes(np.zeros((1, 3), dtype=np.float32)).tolist() == [[0, 0, 0]]


def test_the_lengths_of_rows_of_bytes():
    codes = scan.to_codes(unit(300, 40, 3).numpy())
    expected = np.linalg.norm(codes.astype(np.float64), axis=1)
    np.testing.assert_allclose(scan.lengths_of(codes), expected, rtol=1e-6)
    assert scan.lengths_of(np.zeros((2, 4), dtype=np.int8)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("queries", [1, 20])
def test_rows_of_bytes_of_other_lengths_are_compared_by_angle(queries):
    """A row of one large number has a short row of bytes; its angle counts, not that."""
    matrix = unit(5000, 32, 0).numpy()
    matrix[::2] = np.eye(32, dtype=np.float32)[np.arange(2500) % 32]
    asked = unit(queries, 32, 1)
    codes = scan.to_codes(matrix)
    found = scan.search_int8(
        codes, scan.lengths_of(codes), matrix, asked, 5, allowed=None, blocked=NONE
    ).similarities
    torch.testing.assert_close(found, plain(torch.from_numpy(matrix), asked, 5, None, NONE))
