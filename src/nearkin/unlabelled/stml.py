"""Self-Taught Metric Learning: a moving average of the network says which images are alike."""

from __future__ import annotations

from typing import ClassVar

import torch

from nearkin.losses import Loss, SelfTaught
from nearkin.sampling import NeighboursSampler, PlannedSampler
from nearkin.unlabelled.base import Method, Setting, register


@register("stml")
class STML(Method):
    """:class:`~nearkin.losses.SelfTaught` on batches of random images with their nearest neighbours.

    Kim, Kim, Cho, Kwak. Self-Taught Metric Learning without Labels. CVPR 2022. arXiv:2205.01903.

    Args:
        neighbours: Nearest neighbours that join each random image in a batch.
        refresh_every: Every how many epochs neighbours are looked for anew.
        context: k of the contextual similarity, in images.
        sigma: σ of the pairwise similarity.
        margin: δ of the relaxed contrastive loss.
        decay: Of the teacher's moving average.
        wide: Size of the wide head.
    """

    views: ClassVar[int] = 2

    def __init__(
        self,
        *,
        neighbours: int = 5,
        refresh_every: int = 1,
        context: int = 10,
        sigma: float = 3.0,
        margin: float = 1.0,
        decay: float = 0.999,
        wide: int = 1024,
    ) -> None:
        self.neighbours, self.refresh_every = neighbours, refresh_every
        self.context, self.sigma, self.margin, self.decay, self.wide = context, sigma, margin, decay, wide
        self.sampler(2, batch_size=1, seed=0)  # wrong values are told now
        self._loss(1, None)

    def _loss(self, num_features: int, generator: torch.Generator | None) -> Loss:
        return SelfTaught(
            num_features,
            wide=self.wide,
            sigma=self.sigma,
            margin=self.margin,
            neighbours=self.context,
            decay=self.decay,
            generator=generator,
        )

    def term(self, setting: Setting) -> Loss:
        """Two heads and what the teacher finds alike."""
        return self._loss(setting.num_features, setting.generator)

    def sampler(self, samples: int, *, batch_size: int, seed: int) -> PlannedSampler:
        """Random images with their nearest neighbours."""
        return NeighboursSampler(
            torch.zeros(samples, dtype=torch.long),
            batch_size=batch_size,
            neighbours=self.neighbours,
            refresh_every=self.refresh_every,
            seed=seed,
            drop_last=True,
        )
