"""Clusters of the present embeddings in place of classes, for methods that learn without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from nearkin.evaluation import nearest_neighbours
from nearkin.evaluation.kmeans import kmeans
from nearkin.sampling.base import PlannedSampler, registry, sizes_of_pieces

FORMS = ("kmeans", "mutual")


@registry.register("clusters")
class ClustersSampler(PlannedSampler):
    """Groups of images of one cluster, where the clusters are those of the network's present embeddings.

    Every ``refresh_every`` epochs the training loop embeds all images with the current network and calls
    ``refresh``, which clusters them; :attr:`clusters` then says the cluster of every image, which a loss can
    take for its label. The images of a cluster, in random order, are cut into groups of ``images_per_class``
    (its last may be smaller), and the groups of all clusters, in random order, into batches: every image
    comes once per epoch. Labels play no part.

    Clusters are those of k-means on unit embeddings, which begins with the clusters of the last time, so that
    a number goes on to mean the same images as far as it can; or the connected parts of the graph that joins
    images which are among each other's nearest neighbours, as many as there are.

    Caron, Bojanowski, Joulin, Douze. Deep Clustering for Unsupervised Learning of Visual Features. ECCV 2018.
    arXiv:1807.05520.

    Args:
        labels: One integer per image, ``(N,)``; only their number counts.
        batch_size: Images per batch over all ranks.
        images_per_class: The images of one cluster that come together.
        form: "kmeans", or "mutual" for neighbours of each other.
        count: Clusters of k-means; at most as many as images.
        neighbours: How many nearest neighbours of an image are looked at, for "mutual".
        refresh_every: Every how many epochs ``needs_embeddings`` asks for new embeddings.
        seed, rank, world_size, drop_last, sampler: As in :class:`~nearkin.sampling.base.PlannedSampler`.

    >>> sampler = ClustersSampler([0] * 4, batch_size=2, images_per_class=2, count=2)
    >>> sampler.refresh(torch.tensor([[1.0, 0], [0, 1], [1, 0.1], [0.1, 1]]))
    >>> sorted(sorted(batch) for batch in sampler)
    [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        images_per_class: int = 5,
        form: str = "kmeans",
        count: int = 100,
        neighbours: int = 5,
        refresh_every: int = 1,
        seed: int = 0,
        rank: int | None = 0,
        world_size: int | None = 1,
        drop_last: bool = False,
        sampler: Sampler[Any] | None = None,
    ) -> None:
        super().__init__(
            labels,
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            sampler=sampler,
        )
        if form not in FORMS:
            raise ValueError(f"form={form!r} must be one of: {', '.join(FORMS)}")
        numbers = {
            "images_per_class": images_per_class,
            "count": count,
            "neighbours": neighbours,
            "refresh_every": refresh_every,
        }
        for name, value in numbers.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.images_per_class = images_per_class
        self.form = form
        self.count = count
        self.neighbours = neighbours
        self.refresh_every = refresh_every
        self._clusters: Tensor | None = None

    @property
    def clusters(self) -> Tensor | None:
        """The cluster of every image, ``(N,)``, where they were looked for."""
        return self._clusters

    def needs_embeddings(self, epoch: int) -> bool:
        """Whether ``refresh`` should be called before this epoch."""
        return epoch % self.refresh_every == 0

    def refresh(self, embeddings: Tensor) -> None:
        """Cluster all images by their present embeddings, ``(N, D)``."""
        units = self._checked_embeddings(embeddings).cpu()
        if self.form == "mutual":
            self._clusters = mutual_clusters(units, min(self.neighbours, len(units) - 1))
            return
        count = min(self.count, len(units))
        start = None if self._clusters is None else _means(units, self._clusters, count)
        self._clusters = kmeans(units, count, seed=self.seed, start=start).assignment

    def tensors(self) -> dict[str, Tensor]:
        """The cluster of every image, ``(N,)``, where they were looked for."""
        return {} if self._clusters is None else {"clusters": self._clusters}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back the clusters that ``tensors`` gave."""
        clusters = tensors.get("clusters")
        if clusters is not None and clusters.shape != self.labels.shape:
            raise ValueError(f"clusters must have shape ({len(self.labels)},), not {tuple(clusters.shape)}")
        self._clusters = clusters

    def _planned_sizes(self) -> list[int]:
        return sizes_of_pieces(len(self.labels), self.batch_size)

    def _planned(self, generator: torch.Generator) -> Tensor:
        order = torch.randperm(len(self.labels), generator=generator)
        if self._clusters is None:
            return order
        order = order[self._clusters[order].argsort(stable=True)]
        sizes = self._clusters.bincount().tolist()
        groups = [
            group for members in order.split(sizes) for group in members.split(self.images_per_class)
        ]  # an empty cluster is one empty group
        shuffled = torch.randperm(len(groups), generator=generator).tolist()
        return torch.cat([groups[number] for number in shuffled])


def mutual_clusters(units: Tensor, neighbours: int) -> Tensor:
    """The connected parts of the graph of images that are among each other's nearest, numbered, ``(N,)``.

    Args:
        units: Unit embeddings, ``(N, D)``.
        neighbours: How many of the nearest of each image are looked at.

    >>> mutual_clusters(torch.tensor([[1.0, 0], [0, 1], [1, 0.1], [0.1, 1]]), 1)
    tensor([0, 1, 0, 1])
    """
    images = len(units)
    if not neighbours:
        return torch.arange(images)
    _, nearest = nearest_neighbours(units, neighbours)
    rows, others = torch.arange(images).repeat_interleave(neighbours), nearest.flatten()
    mutual = torch.isin(rows * images + others, others * images + rows)
    rows, others = rows[mutual], others[mutual]
    # Each image takes the smallest number in reach, and then the number that one has, until nothing changes.
    parts = torch.arange(images)
    before: Tensor | None = None
    while before is None or not torch.equal(parts, before):
        before = parts
        parts = parts.scatter_reduce(0, rows, parts[others], "amin")
        parts = parts[parts]
    numbered: Tensor = parts.unique(return_inverse=True)[1]
    return numbered


def _means(units: Tensor, clusters: Tensor, count: int) -> Tensor:
    """The mean of every cluster of the last time, ``(K, D)``; of an empty one that of all."""
    sums = units.new_zeros(count, units.shape[1]).index_add_(0, clusters, units)
    sizes = clusters.bincount(minlength=count)[:, None]
    return torch.where(sizes > 0, sums / sizes.clamp(min=1), units.mean(dim=0))
