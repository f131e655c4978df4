"""Scores by several processes are those of one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from process_groups import found_together

from nearkin.evaluation import processes as module
from nearkin.evaluation import retrieval_scores, retrieval_scores_by_processes, tiles


def points(seed: int = 0, count: int = 500, classes: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=numbers)
    centres = torch.randn(classes, 16, generator=numbers)
    return centres[labels] + torch.randn(count, 16, generator=numbers), labels


def assert_equal(found, expected) -> None:
    assert found.to_dict() == pytest.approx(expected.to_dict(), abs=1e-12)
    for one in fields(expected.per_query):
        assert torch.equal(getattr(found.per_query, one.name), getattr(expected.per_query, one.name))


def test_started_processes_find_the_scores_of_one():
    embeddings, labels = points()
    expected = retrieval_scores(embeddings, labels, per_query=True)
    assert_equal(retrieval_scores_by_processes(embeddings, labels, processes=2, per_query=True), expected)


def test_a_number_of_processes_is_refused_where_torchrun_has_started_them(tmp_path):
    embeddings, labels = points()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="processes=2: torchrun has started the processes, leave it out"):
            retrieval_scores_by_processes(embeddings, labels, processes=2)
        found = retrieval_scores_by_processes(embeddings, labels)
    finally:
        torch.distributed.destroy_process_group()
    assert found == retrieval_scores(embeddings, labels)
    assert found.per_query is None  # unless they are asked for


def small(count: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes so small that every pair of rows is compared once."""
    embeddings, labels = points(count=count, classes=150)
    labels[:7] = torch.arange(1000, 1007)  # without a positive
    return embeddings, labels


def test_started_processes_compare_every_pair_of_rows_once(monkeypatch):
    embeddings, labels = small()
    monkeypatch.setattr(module, "_shares", None)  # of the queries: nobody asks for them
    for rows in (embeddings, embeddings.half()):
        expected = retrieval_scores(rows, labels, per_query=True)
        found = retrieval_scores_by_processes(rows, labels, processes=2, per_query=True)
        assert_equal(found, expected)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("tile", [17, 64, 1000])
def test_shares_of_the_tiles_add_up(metric, tile, monkeypatch):
    """Without processes, which take seconds to start: the tiles are counted here, share after share."""
    monkeypatch.setattr(tiles, "TILE_ON_CPU", tile)
    embeddings, labels = small()
    embeddings[20:30] = embeddings[10:20]  # ties count against the model
    expected = retrieval_scores(embeddings, labels, metric=metric, per_query=True)
    asked = []

    def counting(files, count, metric):
        asked.append(count)
        return [module.counted(files, number, count, metric) for number in range(count)]

    monkeypatch.setattr(module, "_in_processes", counting)
    for count in (2, 3, 9):
        found = retrieval_scores_by_processes(
            embeddings, labels, processes=count, metric=metric, per_query=True
        )
        assert_equal(found, expected)
    assert asked == [2, 3, 9]


def test_counts_that_are_missing_are_no_zeros(monkeypatch):
    monkeypatch.setattr(module, "_in_processes", lambda files, count, metric: [None] * count)
    with pytest.raises(KeyError, match="first_before"):
        retrieval_scores_by_processes(*small(), processes=2)


def test_nonsense_is_refused_before_any_process_starts(monkeypatch):
    monkeypatch.setattr(module, "_in_processes", None)
    embeddings, labels = small()
    embeddings[3, 2] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        retrieval_scores_by_processes(embeddings, labels, processes=2)


CASES = {
    "some queries, in any order": lambda e, y: {"queries": torch.tensor([400, 3, 77, 3, 9])},
    "a mask": lambda e, y: {"queries": torch.arange(len(y)) % 3 == 0},
    "a gallery": lambda e, y: {"gallery": points(seed=1)[0], "gallery_labels": points(seed=1)[1]},
    "distances": lambda e, y: {"metric": "euclidean"},
}


@pytest.mark.parametrize("case", CASES)
def test_shares_together_are_the_whole(case, monkeypatch):
    """Without processes, which take seconds to start: the shares are ranked here, one after the other."""
    embeddings, labels = points()
    labels[:7] = torch.arange(1000, 1007)  # without a positive
    options = CASES[case](embeddings, labels)
    monkeypatch.setattr(
        module,
        "_started",
        lambda given, shares, metric: [module.ranked(given, one, metric) for one in shares],
    )
    expected = retrieval_scores(embeddings, labels, per_query=True, **options)
    for count in (1, 3, 700):
        found = retrieval_scores_by_processes(embeddings, labels, processes=count, per_query=True, **options)
        assert_equal(found, expected)


def test_multi_hot_labels_are_shared_as_well(monkeypatch):
    embeddings, labels = points(count=120)
    many = torch.nn.functional.one_hot(labels, 61)
    many[:, 60] = torch.arange(len(labels)) % 20 == 0
    monkeypatch.setattr(
        module,
        "_started",
        lambda given, shares, metric: [module.ranked(given, one, metric) for one in shares],
    )
    expected = retrieval_scores(embeddings, many, per_query=True)
    assert_equal(retrieval_scores_by_processes(embeddings, many, processes=3, per_query=True), expected)


def test_what_is_wrong_is_told_as_by_one_process():
    embeddings, labels = points(count=20)
    with pytest.raises(ValueError, match="processes=0 must be at least 1"):
        retrieval_scores_by_processes(embeddings, labels, processes=0)
    embeddings[3] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        retrieval_scores_by_processes(embeddings, labels, processes=1)


def test_a_lost_process_is_told(monkeypatch):
    monkeypatch.setattr(
        module, "_start", lambda *_: subprocess.Popen([sys.executable, "-c", "import os; os.abort()"])
    )
    with pytest.raises(RuntimeError, match="was lost: it ended with code -6"):
        retrieval_scores_by_processes(*points(count=20), processes=1)


def test_processes_that_were_started_together_find_the_scores_of_one(tmp_path):
    """As ``torchrun`` starts them."""
    for found in found_together(lambda _: retrieval_scores_by_processes(*points()).to_dict(), 2, tmp_path):
        assert found == pytest.approx(retrieval_scores(*points()).to_dict(), abs=1e-12)
