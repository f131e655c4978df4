"""Clusters of the present embeddings as labels of any loss."""

from __future__ import annotations

import torch

from nearkin.losses import Loss
from nearkin.losses.modifiers import OfClusters
from nearkin.sampling import ClustersSampler, PlannedSampler
from nearkin.unlabelled.base import Method, Setting, register


@register("pseudo_labels")
class PseudoLabels(Method):
    """The recipe's loss on clusters of the network's own embeddings, which are made anew every few epochs.

    Clusters number their classes for themselves: where some samples have labels, a loss with proxies has
    those of the classes, and others of the clusters. A cluster of k-means begins where it was the last time,
    so that its proxy goes on to mean about the same images. Mutual neighbours form as many clusters as there
    are, which losses with proxies cannot take. Modifiers of the loss are not applied to clusters.

    Caron, Bojanowski, Joulin, Douze. Deep Clustering for Unsupervised Learning of Visual Features. ECCV 2018.
    arXiv:1807.05520.

    Args:
        clusters: How many, for k-means.
        form: "kmeans", or "mutual" for the connected parts of the graph of mutual nearest neighbours.
        neighbours: How many nearest neighbours of an image are looked at, for "mutual".
        images_per_class: Images of a cluster that come together in a batch.
        refresh_every: Every how many epochs clusters are made anew.
    """

    def __init__(
        self,
        clusters: int = 100,
        form: str = "kmeans",
        neighbours: int = 5,
        images_per_class: int = 5,
        refresh_every: int = 1,
    ) -> None:
        self.clusters, self.form, self.neighbours = clusters, form, neighbours
        self.images_per_class, self.refresh_every = images_per_class, refresh_every
        if clusters < 2:
            raise ValueError(f"clusters={clusters} must be at least 2")
        self.sampler(2, batch_size=1, seed=0)  # wrong values are told now

    def term(self, setting: Setting) -> Loss:
        """The recipe's loss, for as many classes as there are clusters."""
        loss = setting.loss(self.clusters)
        if self.form == "mutual" and next(loss.parameters(), None) is not None:
            raise ValueError(
                f"unlabelled.form=mutual finds as many clusters as there are, but {loss.name} has parameters "
                "for each class: choose unlabelled.form=kmeans, or a loss without them"
            )
        return OfClusters(loss)

    def sampler(self, samples: int, *, batch_size: int, seed: int) -> PlannedSampler:
        """Groups of images of one cluster."""
        return ClustersSampler(
            torch.zeros(samples, dtype=torch.long),
            batch_size=batch_size,
            images_per_class=self.images_per_class,
            form=self.form,
            count=self.clusters,
            neighbours=self.neighbours,
            refresh_every=self.refresh_every,
            seed=seed,
            drop_last=True,
        )
