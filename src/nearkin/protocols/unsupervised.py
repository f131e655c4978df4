"""Unsupervised: images to learn from, and no labels; these exist for the test classes only."""

from __future__ import annotations

from nearkin.data import SampleSet
from nearkin.protocols.less_supervision import LessSupervision
from nearkin.training.protocol import register


@register("unsupervised")
class Unsupervised(LessSupervision):
    """All training images without their labels; a method without labels (``[unlabelled]``) learns from them.

    The frozen features that every result of a pretrained network has beside it are the baseline, and
    ``standard``, on all labels, is what there is to reach.
    """

    def weakened(self, samples: SampleSet, seed: int) -> tuple[SampleSet, str]:
        """The samples without a label."""
        return samples.without_labels(range(len(samples))), f"{len(samples):,} training samples, no labels"
