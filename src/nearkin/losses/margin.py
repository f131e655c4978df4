"""The margin loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.losses.base import check_label_range, register, require_non_negative, require_positive
from nearkin.losses.pair import MinedPairLoss, Pairs
from nearkin.losses.search_space import MARGIN, Range, space
from nearkin.losses.similarity import Measured, distance, distance_and_inverse
from nearkin.mining import Mined, Miner, Triplets


@register("margin")
class Margin(MinedPairLoss):
    """Positives shall be nearer than a learnt boundary, negatives farther, both by a margin.

    Equation:
        L = mean over mined pairs with a value above 0 of [m + y (D − β)]₊ + ν · mean β over the mined pairs,
        y = +1 for positive pairs, −1 for negative ones; D = √(2 − 2S)

        One value per sample: the part of the mined pairs it is the anchor of, times B.

    Source:
        Wu, Manmatha, Smola, Krähenbühl. Sampling Matters in Deep Embedding Learning. ICCV 2017.
        arXiv:1706.07567.

    When to use:
        With distance-weighted mining, which it was made for. The boundary β learns by itself; give it its own
        (small) learning rate through ``param_groups``.

    Relations to other losses:
        ``contrastive`` on distances with a margin for positives too and a boundary that is learnt;
        ``ranked_list`` weighs its negatives.

    Args:
        margin: m.
        beta: β at the start.
        learn_beta: whether β is learnt.
        per_class: one β for each class (the anchor's counts) instead of one for all; needs num_classes.
        nu: ν, weight of the term that keeps β small.
        mining: a miner's name or a miner; a pair that several triplets share counts several times.
        num_classes: C, for per_class.
        generator: for random miners.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> round(Margin(mining="all")(embeddings, torch.tensor([0, 0, 1])).item(), 4)
        0.9071
    """

    search_space = space(margin=MARGIN, beta=Range(0.5, 1.5, step=0.1))

    def __init__(
        self,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        learn_beta: bool = True,
        per_class: bool = False,
        nu: float = 0.0,
        mining: str | Miner = "distance_weighted",
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(margin=margin, nu=nu)
        require_positive(beta=beta)
        if per_class and num_classes is None:
            raise ValueError("per_class=True needs num_classes")
        super().__init__(mining, generator)
        self.margin = margin
        self.learn_beta = learn_beta
        self.per_class = per_class
        self.nu = nu
        self.num_classes = num_classes
        start = torch.full((num_classes,) if per_class and num_classes else (), float(beta))
        if learn_beta:
            self.beta: Tensor = nn.Parameter(start)
        else:
            self.register_buffer("beta", start)

    @property
    def traceable(self) -> bool:
        """The mined pairs are listed."""
        return False

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """A hinge on each side of the boundary of the anchor, over the mined pairs only."""
        entry, sides = _mined_entries(self.mine(S, pairs), S)
        anchor = torch.div(entry, S.shape[1], rounding_mode="floor")
        classes, beta = self._classes_of_anchors(pairs), self.beta.to(S.dtype)
        boundary = beta.expand_as(sides) if classes is None else beta[classes[anchor]]
        terms = (self.margin + sides * (distance(S.reshape(-1)[entry]) - boundary)).relu()
        sums, active, boundaries, mined = (
            S.new_zeros(len(S)).index_add(0, anchor, of_pairs)
            for of_pairs in (terms, terms.detach().sign(), boundary, torch.ones_like(sides))
        )
        return pairs.mean_of_sums(sums, active) + self.nu * pairs.mean_of_sums(boundaries, mined)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A pair's weight is ±1/D, and 0 where its hinge is."""
        classes = self._classes_of_anchors(pairs)
        entry, sides = _mined_entries(self.mine(S, pairs), S)
        beta = self.beta.to(S.dtype)
        owner = None if classes is None else classes[torch.div(entry, S.shape[1], rounding_mode="floor")]
        boundary = beta if owner is None else beta[owner]
        D, inverse = distance_and_inverse(S.view(-1).index_select(0, entry))
        terms = D.sub_(boundary).mul_(sides).add_(self.margin).relu_()
        active = terms.sign()
        share = active.sum().clamp_min_(1).reciprocal_()
        value = terms.sum().mul_(share)
        if self.nu:
            value += self.nu * boundary.expand_as(entry).sum() / max(1, len(entry))
        if not with_weights:
            return Measured(value)
        active.mul_(sides).mul_(share)
        weights = torch.zeros_like(S)
        weights.view(-1).index_add_(0, entry, inverse.mul_(active), alpha=-1)
        if not self.learn_beta:
            return Measured(value, weights)
        to_boundaries = active.neg_().add_(self.nu / max(1, len(entry)))
        if owner is None:
            return Measured(value, weights, (to_boundaries.sum(),))
        return Measured(value, weights, (torch.zeros_like(beta).index_add_(0, owner, to_boundaries),))

    @property
    def chooses_by_class(self) -> bool:
        """A boundary per class needs classes."""
        return self.per_class

    def _classes_of_anchors(self, pairs: Pairs) -> Tensor | None:
        """Which β belongs to each anchor ``(B,)``, where there are several."""
        if not self.per_class:
            return None
        if pairs.labels.dim() == 2:
            raise ValueError("per_class=True needs one label per sample, not a multi-hot matrix")
        if self.validate:
            check_label_range(pairs.labels, len(self.beta))
        return pairs.labels.long()


def _mined_entries(mined: Mined, S: Tensor) -> tuple[Tensor, Tensor]:
    """The mined pairs as places in the flattened S, and y of each: 1 for positive, −1 for negative pairs.

    A pair that several triplets share is listed as often.
    """
    columns = S.shape[1]
    if isinstance(mined, Triplets):
        start = mined.anchor * columns
        positive, negative = start + mined.positive, start.add_(mined.negative)
    else:
        positive, negative = (mask.reshape(-1).nonzero().squeeze(1) for mask in mined)
    sides = S.new_ones(len(positive) + len(negative))
    sides[len(positive) :] = -1
    return torch.cat([positive, negative]), sides
