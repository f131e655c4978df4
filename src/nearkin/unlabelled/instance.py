"""Every image a class of its own: two views of it shall find each other."""

from __future__ import annotations

from typing import ClassVar

import torch

from nearkin.losses import InfoNCE, Loss
from nearkin.losses.base import require_positive
from nearkin.sampling import PlannedSampler, RandomSampler
from nearkin.unlabelled.base import Method, Setting, register


@register("instance")
class Instance(Method):
    """Instance discrimination: InfoNCE between the views of an image, against all others of the batch.

    Wu, Xiong, Yu, Lin. Unsupervised Feature Learning via Non-parametric Instance Discrimination. CVPR 2018.
    arXiv:1805.01978; between two views of a batch as in Chen, Kornblith, Norouzi, Hinton. A Simple Framework
    for Contrastive Learning of Visual Representations. ICML 2020. arXiv:2002.05709.

    Args:
        temperature: T of ``info_nce``.
    """

    views: ClassVar[int] = 2

    def __init__(self, temperature: float = 0.05) -> None:
        require_positive(temperature=temperature)
        self.temperature = temperature

    def term(self, setting: Setting) -> Loss:
        """InfoNCE over the views of a sample."""
        return InfoNCE(temperature=self.temperature)

    def sampler(self, samples: int, *, batch_size: int, seed: int) -> PlannedSampler:
        """Random batches."""
        labels = torch.zeros(samples, dtype=torch.long)
        return RandomSampler(labels, batch_size=batch_size, seed=seed, drop_last=True)
