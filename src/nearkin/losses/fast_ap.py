"""The FastAP loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_count
from nearkin.losses.histograms import histogram, shares_of_nodes
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.search_space import Range, space


@register("fast_ap")
class FastAP(PairLoss):
    """Average precision of each sample's retrieval, from histograms of its distances.

    Equation:
        L = mean over queries with a positive of 1 − (1/|P_i|) Σ_j h⁺_j H⁺_j / H_j

        h⁺_j is how many positives of the query are at node j of squared distances from 0 to 4, each shared by
        the two nodes around it; H⁺_j and H_j are how many positives and how many samples at all are at nodes
        up to j.

        One value per sample: its own term times B / the number of queries with a positive.

    Source:
        Cakir, He, Xia, Kulis, Sclaroff. Deep Metric Learning to Rank. CVPR 2019.

    When to use:
        As a cheap ranking loss for very large batches: its cost does not grow with the number of positives.

    Relations to other losses:
        ``smooth_ap`` compares every positive with every sample; this only asks in which bin they are. More
        bins come nearer to average precision, with gradients of fewer samples.

    Args:
        bins: into how many parts the squared distances are divided.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> FastAP()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.5000)
    """

    search_space = space(bins=Range(5, 40, step=5, whole=True))

    def __init__(self, *, bins: int = 10) -> None:
        require_count(bins=bins)
        super().__init__()
        self.bins = bins

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The precision that is lost at every node, weighed by the positives there."""
        positive, negative = pairs.indicators(S)
        below, above = shares_of_nodes(2 - 2 * S, 0, 4, self.bins)
        of_positives, of_negatives = (
            histogram(below, above, mask, self.bins) for mask in (positive, negative)
        )
        wrong = of_negatives.cumsum(dim=1)
        in_all = of_positives.cumsum(dim=1) + wrong
        some = (of_positives > 0) & (in_all > 0)
        lost = torch.where(some, wrong / torch.where(some, in_all, 1), 0)
        counts = positive.sum(dim=1)
        average = (of_positives * lost).sum(dim=1) / counts.clamp_min(1)
        return pairs.mean_over_anchors(average, among=counts > 0)
