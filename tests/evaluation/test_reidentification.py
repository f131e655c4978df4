from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from retrieval_reference import lattice, naive_list, naive_similarities

from nearkin.evaluation import bootstrap_intervals, mean_intervals, reidentification_scores


def draw(seed: int, queries: int, items: int, tied: bool) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    make = lattice if tied else lambda rows, dim, g: torch.randn(rows, dim, generator=g)
    return {
        "embeddings": make(queries, 3, g),
        "labels": torch.randint(4, (queries,), generator=g),
        "cameras": torch.randint(3, (queries,), generator=g),
        "gallery": make(items, 3, g),
        "gallery_labels": torch.randint(-1, 4, (items,), generator=g),
        "gallery_cameras": torch.randint(3, (items,), generator=g),
    }


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 25), st.booleans())
def test_equals_the_definition(seed, queries, items, tied):
    data = draw(seed, queries, items, tied)
    firsts, averages = [], []
    for q, similarities in enumerate(naive_similarities(data["embeddings"], data["gallery"], "cosine")):
        kinds = []
        for label, camera in zip(data["gallery_labels"], data["gallery_cameras"], strict=True):
            same = bool(label == data["labels"][q])
            junk = int(label) < 0 or (same and bool(camera == data["cameras"][q]))
            kinds.append(None if junk else same)
        ordered = naive_list(similarities, kinds)
        if any(ordered):
            ranks = [n + 1 for n, is_positive in enumerate(ordered) if is_positive]
            firsts.append(ranks[0])
            averages.append(sum((n + 1) / rank for n, rank in enumerate(ranks)) / len(ranks))
    if not firsts:
        with pytest.raises(ValueError, match="another camera"):
            reidentification_scores(**data)
        return
    scores = reidentification_scores(**data, ranks=(1, 3), per_query=True)
    assert scores.cmc == pytest.approx({k: sum(f <= k for f in firsts) / len(firsts) for k in (1, 3)})
    assert scores.mean_average_precision == pytest.approx(sum(averages) / len(averages))
    assert scores.per_query.first_rank.tolist() == firsts
    assert scores.queries == len(firsts)
    assert scores.queries_without_positive == queries - len(firsts)
    json.dumps(scores.to_dict())


def test_the_same_camera_does_not_help():
    point = torch.eye(3)
    scores = reidentification_scores(
        point[:1],
        torch.tensor([5]),
        torch.tensor([1]),
        gallery=torch.cat([point[:1], point]),
        gallery_labels=torch.tensor([5, 5, 6, 5]),
        gallery_cameras=torch.tensor([1, 1, 2, 2]),
    )
    # Both exact copies are from the query's camera; what is left are a stranger and the match, tied.
    assert scores.cmc[1] == 0.0
    assert scores.mean_average_precision == pytest.approx(0.5)


def test_values_per_query_give_intervals_over_identities():
    data = draw(3, 80, 200, tied=False)
    assert reidentification_scores(**data).per_query is None
    scores = reidentification_scores(**data, ranks=(1, 3), per_query=True)
    intervals = bootstrap_intervals(scores, data["labels"])
    plain = scores.to_dict()
    assert set(intervals) == {"cmc_at_1", "cmc_at_3", "mean_average_precision"}
    identities = data["labels"][scores.per_query.indices]
    assert intervals == mean_intervals(scores.per_query.scores((1, 3)), identities)
    for name, interval in intervals.items():
        assert interval.low <= interval.value <= interval.high
        assert interval.value == pytest.approx(plain[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cameras": torch.zeros(3, dtype=torch.long)}, "5 embeddings but 3 cameras"),
        ({"gallery_cameras": torch.zeros(9)}, "gallery_cameras must be integers"),
        ({"labels": torch.ones(5, 2).long()}, "one integer per row"),
        ({"ranks": (0,)}, "ranks="),
    ],
)
def test_bad_input_is_an_error(change, message):
    with pytest.raises(ValueError, match=message):
        reidentification_scores(**(draw(0, 5, 9, tied=False) | change))
