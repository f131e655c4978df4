"""What evaluation holds in memory, at the real sizes of its chunks and tiles."""

from __future__ import annotations

import pytest
import torch
from live_memory import peak_bytes

from nearkin.evaluation import recall_scores, retrieval, retrieval_scores, rows, tiles

MIB = 2**20


@pytest.mark.parametrize("score", [retrieval_scores, recall_scores])
def test_a_class_of_forty_thousand_rows_takes_less_than_the_bound(score):
    """Few queries, so that it takes seconds; each of them has 39,999 positives."""
    labels = torch.cat([torch.zeros(40_000, dtype=torch.long), 1 + torch.arange(2000) // 2])
    embeddings = torch.randn(len(labels), 8, generator=torch.Generator().manual_seed(0))
    queries = torch.arange(0, len(labels), 700)
    peak = peak_bytes(lambda: score(embeddings, labels, queries=queries))
    assert peak < 4 * embeddings.nbytes + 200 * len(labels) + 256 * MIB


@pytest.mark.parametrize(("count", "size"), [(10_000, 200), (20_000, 400)])
def test_many_middling_classes_take_less_than_the_bound(count, size):
    """Just below two million positive pairs, which tiles hold at once, and eight million in four passes."""
    labels = torch.arange(count) // size
    embeddings = torch.randn(len(labels), 8, generator=torch.Generator().manual_seed(0))
    peak = peak_bytes(lambda: retrieval_scores(embeddings, labels))
    assert 50 * MIB < peak < 4 * embeddings.nbytes + 200 * len(labels) + 256 * MIB


def test_memory_stays_below_the_bound_however_large_a_class(monkeypatch):
    monkeypatch.setattr(retrieval, "POSITIVE_PAIRS", 2**13)
    monkeypatch.setattr(retrieval, "FEWEST_QUERIES", 16)
    monkeypatch.setattr(rows, "ROW_ENTRIES", 2**12)
    monkeypatch.setattr(tiles, "TILE_ON_CPU", 100)
    monkeypatch.setattr(tiles, "SAMPLE", 64)
    for large in (100, 700):
        labels = (torch.arange(800) - large).clamp(min=-1) // 2
        embeddings = torch.randn(800, 8, generator=torch.Generator().manual_seed(large))
        peak = peak_bytes(lambda e=embeddings, y=labels: retrieval_scores(e, y))
        # As documented, in proportion: 256 MiB for rows of 2 ** 20 entries at a time.
        assert peak < 4 * embeddings.nbytes + 200 * 800 + 256 * 2**12
