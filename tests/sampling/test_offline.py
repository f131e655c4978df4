from __future__ import annotations

import sys

import pytest
import torch

from nearkin.sampling import hard_negatives, offline


def clusters(images, classes, dim=8, spread=0.6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (images,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[labels] + spread * torch.randn(images, dim, generator=generator), labels


def naive(embeddings, labels, count, mining, depth):
    """The rule as it is written, with loops."""
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    lists = []
    for i in range(len(unit)):
        cosines = {j: float(unit[i] @ unit[j]) for j in range(len(unit)) if j != i}
        near = sorted(cosines, key=lambda j: -cosines[j])[:depth]
        negatives = [j for j in near if labels[j] != labels[i]]
        if mining == "semi_hard":
            positives = [cosines[j] for j in cosines if labels[j] == labels[i]]
            mean = sum(positives) / len(positives) if positives else float("inf")
            fair = [j for j in negatives if cosines[j] < mean]
            negatives = fair + [j for j in reversed(negatives) if j not in fair]
        lists.append((negatives + [-1] * count)[:count])
    return torch.tensor(lists)


@pytest.mark.parametrize("mining", ["hard", "semi_hard"])
@pytest.mark.parametrize("seed", range(4))
def test_the_lists_are_those_of_a_naive_loop(mining, seed):
    embeddings, labels = clusters(60, 9, seed=seed)
    count = 6
    depth = count + min(count, int(labels.bincount().max()) - 1)
    expected = naive(embeddings, labels, count, mining, depth)
    assert torch.equal(hard_negatives(embeddings, labels, count, mining=mining), expected)
    assert (expected == -1).any()
    assert torch.equal(expected, naive(embeddings, labels, count, "hard", depth)) == (mining == "hard")


def test_no_negative_among_the_neighbours():
    embeddings, labels = clusters(30, 1)
    assert (hard_negatives(embeddings, labels, 5) == -1).all()
    assert hard_negatives(embeddings[:1], labels[:1], 3).tolist() == [[-1, -1, -1]]
    two = hard_negatives(embeddings[:2], torch.tensor([0, 1]), 3)
    assert two.tolist() == [[1, -1, -1], [0, -1, -1]]


def test_half_precision_and_duplicates():
    embeddings = torch.ones(6, 4, dtype=torch.bfloat16)
    found = hard_negatives(embeddings, torch.tensor([0, 0, 0, 1, 1, 1]), 3)
    assert all(set(row) <= {3, 4, 5, -1} for row in found[:3].tolist())
    assert not (found == torch.arange(6).unsqueeze(1)).any()


def test_faiss_finds_nearly_the_exact_lists():
    pytest.importorskip("faiss")
    embeddings, labels = clusters(4000, 400, dim=16, spread=0.4)
    exact = hard_negatives(embeddings, labels, 10, mining="hard")
    approximate = hard_negatives(embeddings, labels, 10, mining="hard", exact_up_to=3999)
    assert exact.shape == approximate.shape
    assert not (approximate == torch.arange(4000).unsqueeze(1)).any()
    shared = (exact.unsqueeze(2) == approximate.unsqueeze(1)).any(2).float().mean()
    assert shared > 0.9


def test_faiss_pads_lists_it_cannot_fill(monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(offline, "_PROBED_CELLS", 1)
    embeddings, labels = clusters(400, 200, dim=4)
    found = hard_negatives(embeddings, labels, 30, mining="hard", exact_up_to=10)
    assert (found == -1).any()
    listed = found >= 0
    assert (labels[found.clamp_min(0)] != labels.unsqueeze(1))[listed].all()


def test_a_missing_faiss_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    embeddings, labels = clusters(20, 4)
    with pytest.raises(
        ImportError, match="neighbours among 20 images .* install faiss-cpu, or raise exact_up_to"
    ):
        hard_negatives(embeddings, labels, 3, exact_up_to=10)


def test_wrong_arguments_are_named():
    embeddings, labels = clusters(20, 4)
    with pytest.raises(ValueError, match="mining='semihard' must be one of: hard, semi_hard"):
        hard_negatives(embeddings, labels, 3, mining="semihard")
    with pytest.raises(ValueError, match="count=0"):
        hard_negatives(embeddings, labels, 0)
