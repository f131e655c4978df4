"""The histogram loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import or_one, register, require_count
from nearkin.losses.histograms import histogram, shares_of_nodes
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.search_space import Range, space


@register("histogram")
class Histogram(PairLoss):
    """The chance that a random negative pair is more similar than a random positive pair.

    Equation:
        L = Σ_r h⁻_r Σ_{q≤r} h⁺_q

        h⁺ and h⁻ are the histograms of the similarities of all positive and of all negative pairs, each
        summing to 1, over nodes from −1 to 1; a similarity is shared by the two nodes around it.

        One value per sample: its own negative pairs' part of the sum over them, times B.

    Source:
        Ustinova, Lempitsky. Learning Deep Embeddings with Histogram Loss. NeurIPS 2016. arXiv:1611.00822.

    When to use:
        Where one threshold shall separate positive from negative pairs of all classes (verification), and
        there is no time to tune: it has next to no hyperparameters.

    Relations to other losses:
        A soft 1 − AUC of "same or not" over all pairs of the batch, where ``triplet`` compares only pairs
        that share an anchor.

    Args:
        bins: into how many parts the range of similarities is divided.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> round(Histogram()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
        1.0
    """

    search_space = space(bins=Range(50, 400, step=50, whole=True))

    def __init__(self, *, bins: int = 200) -> None:
        require_count(bins=bins)
        super().__init__()
        self.bins = bins

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The mean over negative pairs of the share of positive pairs that are less similar."""
        counts = pairs.positive.to(S.dtype)
        if pairs.weights is not None:
            counts = counts * pairs.weights.unsqueeze(1)
        below, above = shares_of_nodes(S, -1, 1, self.bins)
        of_positives = histogram(below, above, counts, self.bins).sum(dim=0)
        less_similar = (of_positives / or_one(counts.sum())).cumsum(dim=0)
        terms = torch.lerp(less_similar[below], less_similar[below + 1], above)
        return pairs.mean_over_pairs(terms, pairs.negative)
