"""Samplers for samples without labels: neighbours, clusters, and both kinds of samples in one batch."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.sampling import (
    ClustersSampler,
    LabelledBesideUnlabelled,
    NeighboursSampler,
    RandomSampler,
    build,
)
from nearkin.sampling.clusters import mutual_clusters


def points(count, seed=0, size=4):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def nearest(rows, image):
    units = torch.nn.functional.normalize(rows)
    return [int(other) for other in (units @ units[image]).argsort(descending=True) if other != image]


@given(st.integers(7, 60), st.integers(1, 12), st.integers(1, 4), st.integers(0, 3))
def test_every_random_image_brings_its_nearest_neighbours(images, batch_size, neighbours, epoch):
    sampler = NeighboursSampler([0] * images, batch_size=batch_size, neighbours=neighbours)
    rows = points(images)
    sampler.refresh(rows)
    for batch in sampler.plan(epoch):
        chosen, place = batch.tolist(), 0
        assert len(set(chosen)) == len(chosen) == min(batch_size, images)
        while place < len(chosen):
            before = chosen[:place]
            listed = nearest(rows, chosen[place])[: 4 * neighbours]
            own = [image for image in listed if image not in before][:neighbours]
            found = chosen[place + 1 : place + 1 + len(own)]
            assert found == own[: len(found)]
            place += 1 + len(own)


def test_neighbours_go_on_from_their_tensors():
    first, second = (NeighboursSampler([0] * 30, batch_size=6, neighbours=2) for _ in range(2))
    first.refresh(points(30))
    assert [b.tolist() for b in first.plan(1)] != [b.tolist() for b in second.plan(1)]
    second.load_tensors(first.tensors())
    assert [b.tolist() for b in first.plan(1)] == [b.tolist() for b in second.plan(1)]
    with pytest.raises(ValueError, match=r"nearest must have shape \(30, 8\)"):
        second.load_tensors({"nearest": torch.zeros(30, 7)})


def separate(clusters, each, seed=0):
    """Clusters far apart, in no order: rows and the cluster of each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(clusters).repeat(each)[torch.randperm(clusters * each, generator=generator)]
    return torch.eye(clusters)[labels] + 0.05 * torch.randn(
        len(labels), clusters, generator=generator
    ), labels


@pytest.mark.parametrize("form", ["kmeans", "mutual"])
def test_clusters_are_found_and_batches_made_of_them(form):
    rows, labels = separate(6, 8)
    sampler = ClustersSampler(
        [0] * 48, batch_size=8, images_per_class=4, form=form, count=6, neighbours=7, seed=3
    )
    assert sampler.clusters is None
    sampler.refresh(rows)
    together = sampler.clusters[:, None] == sampler.clusters
    assert torch.equal(together, labels[:, None] == labels)
    for epoch in range(3):
        batches = sampler.plan(epoch)
        assert sorted(torch.cat(batches).tolist()) == list(range(48))
        for batch in batches:
            groups = batch.split(4)
            assert all(len(labels[group].unique()) == 1 for group in groups)


def test_a_cluster_keeps_its_number_while_its_images_stay():
    rows, _ = separate(6, 8)
    sampler = ClustersSampler([0] * 48, batch_size=8, count=6)
    sampler.refresh(rows)
    before = sampler.clusters.clone()
    sampler.refresh(rows + 0.02 * points(48, 5, 6))
    assert torch.equal(sampler.clusters, before)
    other = ClustersSampler([0] * 48, batch_size=8, count=6)
    other.load_tensors(sampler.tensors())
    assert [b.tolist() for b in other.plan(2)] == [b.tolist() for b in sampler.plan(2)]


@given(st.integers(2, 25), st.integers(1, 5), st.integers(0, 9))
def test_mutual_clusters_are_the_connected_parts(images, neighbours, seed):
    rows = torch.nn.functional.normalize(points(images, seed))
    neighbours = min(neighbours, images - 1)
    near = {image: set(nearest(rows, image)[:neighbours]) for image in range(images)}
    parts = {image: {image} for image in range(images)}
    for first, second in itertools.combinations(range(images), 2):
        if second in near[first] and first in near[second]:
            joined = parts[first] | parts[second]
            for image in joined:
                parts[image] = joined
    found = mutual_clusters(rows, neighbours)
    for first, second in itertools.combinations(range(images), 2):
        assert (found[first] == found[second]) == (second in parts[first])


LABELS = torch.tensor([3, -1, 3, 5, -1, 5, -1, 3, 5, -1, -1, 3])


def both(rank=0, world_size=1):
    known = LABELS >= 0
    return LabelledBesideUnlabelled(
        LABELS,
        build("balanced", LABELS[known], batch_size=4, images_per_class=2, seed=1),
        RandomSampler([0] * int((~known).sum()), batch_size=2, seed=1, drop_last=True),
        seed=1,
        rank=rank,
        world_size=world_size,
    )


def test_labelled_batches_are_what_they_would_be_alone_and_the_others_follow_on():
    sampler, known = both(), LABELS >= 0
    alone = build("balanced", LABELS[known], batch_size=4, images_per_class=2, seed=1)
    places, beside = known.nonzero().flatten(), []
    for epoch in range(4):
        batches = sampler.plan(epoch)
        assert [len(batch) for batch in batches] == sampler.batch_sizes
        for batch, own in zip(batches, alone.plan(epoch), strict=True):
            assert torch.equal(batch[: len(own)], places[own])
            beside.append(batch[len(own) :])
            assert (LABELS[beside[-1]] == -1).all()
    unlabelled = RandomSampler([0] * 5, batch_size=2, seed=1, drop_last=True)
    own = [batch for epoch in range(6) for batch in unlabelled.plan(epoch)][: len(beside)]
    rows = (~known).nonzero().flatten()
    assert [rows[batch].tolist() for batch in own] == [batch.tolist() for batch in beside]


def test_ranks_share_batches_of_two_parts():
    whole = [batch.tolist() for batch in both().plan(2)]
    parts = []
    for rank in range(2):
        sampler = both(rank, 2)
        sampler.set_epoch(2)
        parts.append(list(sampler))
    assert [first + second for first, second in zip(*parts, strict=True)] == whole


def test_both_parts_are_refreshed_with_their_own_rows_and_go_on_from_tensors():
    labels = torch.tensor([0, 0, 1, 1, -1, -1, -1, -1, -1, -1])

    def made():
        labelled = build("hard_classes", labels[:4], batch_size=4, images_per_class=2)
        unlabelled = ClustersSampler([0] * 6, batch_size=3, count=2, images_per_class=3, drop_last=True)
        return LabelledBesideUnlabelled(labels, labelled, unlabelled)

    sampler = made()
    assert (sampler.needs_embeddings(0), sampler.clusters) == (True, None)
    rows = torch.eye(4)[[0, 0, 1, 1, 2, 3, 2, 3, 2, 3]]
    sampler.refresh(rows)
    clusters = sampler.clusters
    assert clusters[:4].tolist() == [-1] * 4
    assert torch.equal(clusters[4:, None] == clusters[4:], rows[4:] @ rows[4:].T == 1)
    other = made()
    other.load_tensors(sampler.tensors())
    assert torch.equal(other.clusters, clusters)
    assert [b.tolist() for b in other.plan(3)] == [b.tolist() for b in sampler.plan(3)]


def test_one_kind_of_samples_alone():
    unlabelled = RandomSampler([0] * 5, batch_size=2, drop_last=True)
    alone = LabelledBesideUnlabelled([-1] * 5, None, unlabelled)
    assert [b.tolist() for b in alone.plan(3)] == [b.tolist() for b in unlabelled.plan(3)]
    with pytest.raises(ValueError, match="a sampler of 0 samples, but 5 are without a label"):
        LabelledBesideUnlabelled([-1] * 5 + [0], RandomSampler([0], batch_size=1), None)
    with pytest.raises(ValueError, match="must all have the same size"):
        LabelledBesideUnlabelled([-1] * 5, None, RandomSampler([0] * 5, batch_size=2))


@pytest.mark.parametrize(
    ("maker", "keywords", "message"),
    [
        (NeighboursSampler, {"neighbours": 0}, "neighbours=0 must be at least 1"),
        (NeighboursSampler, {"refresh_every": 0}, "refresh_every=0 must be at least 1"),
        (ClustersSampler, {"form": "dbscan"}, "form='dbscan' must be one of: kmeans, mutual"),
        (ClustersSampler, {"count": 0}, "count=0 must be at least 1"),
    ],
)
def test_wrong_values_are_named(maker, keywords, message):
    with pytest.raises(ValueError, match=message):
        maker([0] * 9, batch_size=3, **keywords)
