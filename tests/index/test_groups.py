"""Duplicates, clusters, outliers, wrong labels, representatives and the map, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from indexed import picture_model
from PIL import Image
from torch.nn.functional import normalize

from nearkin.index import Index, NewItem, groups
from nearkin.index.layout import layout


def naive_components(vectors: torch.Tensor, threshold: float) -> list[set[int]]:
    left, found = set(range(len(vectors))), []
    near = vectors @ vectors.T >= threshold
    while left:
        members, new = set(), {min(left)}
        while new:
            members |= new
            new = {n for m in new for n in near[m].nonzero().flatten().tolist()} - members
        found.append(members)
        left -= members
    return found


def as_sets(numbers) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(numbers == n).tolist()) for n in np.unique(numbers)}


@pytest.mark.parametrize("threshold", [0.2, 0.6, 0.9])
def test_what_is_linked_is_what_a_walk_reaches(threshold, monkeypatch):
    monkeypatch.setattr(groups, "_TILE", 400)  # several tiles
    vectors = normalize(torch.randn(80, 4, generator=torch.Generator().manual_seed(0)))
    expected = {frozenset(members) for members in naive_components(vectors, threshold)}
    seen = []
    assert as_sets(groups.linked(vectors, threshold, lambda *now: seen.append(now))) == expected
    assert seen[-1] == (80, 80)


def test_mutual_links_need_both_sides():
    angles = torch.tensor([0.0, 0.02, 0.05, 0.5, 2.0, 2.01])
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    numbers = groups.mutually_linked(vectors, threshold=0.8, neighbours=1)
    # 2's nearest is 1, whose nearest is 0; 3's is 2: only 0–1 and 4–5 choose each other.
    assert as_sets(numbers) == {frozenset({0, 1}), frozenset({2}), frozenset({3}), frozenset({4, 5})}


@pytest.fixture
def points(tmp_path):
    """Three tight groups of ten with labels, one item that is mislabelled, and one far from all."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.eye(8)[:3].repeat_interleave(10, dim=0)
    vectors = normalize(centres + 0.05 * torch.randn(30, 8, generator=generator))
    vectors = torch.cat([vectors, torch.eye(8)[7:]])
    labels = ["a"] * 10 + ["b"] * 10 + ["c"] * 10 + [None]
    labels[4] = "b"
    index = Index.create(picture_model(), tmp_path / "points.index")
    index.store.add([NewItem(f"{n}", f"{n}", labels[n]) for n in range(31)], vectors)
    yield index
    index.close()


def names(group) -> set[str]:
    return {item.name for item in group}


def test_clusters_by_number_and_by_threshold(points):
    tens = [{str(n) for n in range(start, start + 10)} for start in (0, 10, 20)]
    for found in (points.clusters(threshold=0.9), points.clusters(4)):
        assert sorted(map(names, found[:3]), key=min) == tens
        assert all(group.similarity > 0.95 for group in found[:3])
    own = next(group for group in points.clusters(threshold=0.9) if "4" in names(group))
    assert own.labels == {"a": 9, "b": 1}
    assert len(points.clusters(threshold=0.9, least=1)) == 4
    assert points.clusters(where={"label": "nothing"}) == []
    assert len(points.clusters()) <= 3  # as many as labels; those of one item are left out


def test_the_most_typical_item_comes_first(points):
    group = points.clusters(threshold=0.9)[0]
    vectors = points.vectors([item.id for item in group])
    centre = normalize(vectors.mean(dim=0), dim=0)
    assert (vectors @ centre).argmax() == 0


def test_outliers_and_label_errors(points):
    assert points.outliers(1)[0].item.name == "30"
    (error,) = points.label_errors(neighbours=5)
    assert (error.item.name, error.suggested, error.agreement) == ("4", "a", 1)
    assert points.label_errors(where={"label": "c"}) == []


def test_representatives_are_one_of_each(points):
    chosen = points.representatives(3, where={"label": ["a", "b", "c"]})
    assert len({int(item.name) // 10 for item in chosen}) == 3
    assert len(points.representatives(100)) == 31
    with pytest.raises(ValueError, match="k=0"):
        points.representatives(0)


def test_copies_are_duplicates(index, photos):
    picture = Image.open(photos / "class2" / "0.png")
    picture.resize((48, 40)).save(photos / "class2" / "larger.png")
    picture.save(photos / "class3" / "copy.bmp")
    index.add(photos)
    found = next(g for g in index.duplicates(0.9999) if "class2/0.png" in names(g))
    assert {"class2/0.png", "class3/copy.bmp"} <= names(found)
    assert index.duplicates(1.0 - 1e-9, where={"label": "class0"}) == []
    with pytest.raises(ValueError, match="threshold=2 must be a cosine"):
        index.duplicates(2)


def test_the_map_is_kept_until_items_change(points, monkeypatch):
    made = points.layout()
    assert made.shape == (31, 2)
    assert made.abs().max() == pytest.approx(1)
    apart = torch.cdist(made, made)
    assert apart[0, 1:10].max() < apart[0, 10:30].min()  # a group stays together
    with monkeypatch.context() as patch:
        patch.setattr("nearkin.index.index.layout", lambda _: 1 / 0)
        assert torch.equal(points.layout(), made)
    points.remove("30")
    assert points.layout().shape == (30, 2)


def test_a_large_map_places_the_rest_between_their_neighbours(monkeypatch):
    monkeypatch.setattr("nearkin.index.layout.MOST_LAID_OUT", 20)
    centres = torch.eye(6)[:2].repeat_interleave(30, dim=0)
    vectors = normalize(centres + 0.1 * torch.randn(60, 6, generator=torch.Generator().manual_seed(0)))
    made = layout(vectors)
    assert made.shape == (60, 2)
    assert (made[:30].mean(0) - made[30:].mean(0)).norm() > made[:30].std(0).norm()


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_few_items_have_a_map_groups_and_no_outliers_alone(count, tmp_path):
    with Index.create(picture_model(), tmp_path / "i") as index:
        vectors = normalize(torch.randn(count, 8, generator=torch.Generator().manual_seed(0)))
        index.store.add([NewItem(str(n), str(n)) for n in range(count)], vectors)
        assert index.layout().shape == (count, 2)
        assert len(index.outliers()) == (count if count > 1 else 0)
        assert index.label_errors() == []
        assert len(index.representatives(3)) == min(count, 3)
        index.duplicates()
        index.clusters()
        index.clusters(threshold=0.5)
