"""The margin loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.losses.base import check_label_range, register, require_non_negative, require_positive
from nearkin.losses.pair import MinedPairLoss, Pairs
from nearkin.losses.search_space import MARGIN, Range, space
from nearkin.losses.similarity import Measured, safe_distance
from nearkin.mining import Miner, Triplets


@register("margin")
class Margin(MinedPairLoss):
    """Positives shall be nearer than a learnt boundary, negatives farther, both by a margin.

    Equation:
        L = mean over mined pairs with a value above 0 of [m + y (D − β)]₊ + ν · mean β over the mined pairs,
        y = +1 for positive pairs, −1 for negative ones; D = √(2 − 2S)

    Source:
        Wu, Manmatha, Smola, Krähenbühl. Sampling Matters in Deep Embedding Learning. ICCV 2017.
        arXiv:1706.07567.

    When to use:
        With distance-weighted mining, which it was made for. The boundary β learns by itself; give it its own
        (small) learning rate through ``param_groups``.

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

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A hinge on each side of the boundary of the anchor."""
        classes = self._classes_of_anchors(pairs)
        signed = self._signed_counts(S, pairs)
        beta = self.beta.to(S.dtype)
        boundary = beta if classes is None else beta[classes].unsqueeze(1)
        D, inverse = safe_distance(S)
        terms = D.sub_(boundary).mul_(signed.sign()).add_(self.margin).relu_()
        counts = signed.abs()
        active = terms.sign()
        share = 1 / torch.mul(active, counts).sum().clamp_min_(1)
        in_rows = counts.sum(dim=1, keepdim=True)
        beta_share = self.nu / in_rows.sum().clamp_min_(1)
        value = terms.mul_(counts).sum() * share + (boundary * in_rows).sum() * beta_share
        if not with_weights:
            return Measured(value)
        active.mul_(signed).mul_(share)
        to_boundaries = (in_rows * beta_share).sub_(active.sum(dim=1, keepdim=True)).squeeze(1)
        weights = inverse.mul_(active).neg_()
        if not self.learn_beta:
            return Measured(value, weights)
        if classes is None:
            return Measured(value, weights, (to_boundaries.sum(),))
        return Measured(value, weights, (torch.zeros_like(beta).index_add_(0, classes, to_boundaries),))

    def _signed_counts(self, S: Tensor, pairs: Pairs) -> Tensor:
        """How often each pair was mined ``(B, R)``, negative pairs with a minus."""
        mined = self.mine(S, pairs)
        if not isinstance(mined, Triplets):
            return mined.positive.to(S.dtype).sub_(mined.negative.to(S.dtype))
        anchor, kin, stranger = mined
        counts = torch.zeros_like(S)
        one = counts.new_ones(1).expand(len(anchor))
        counts.view(-1).index_add_(0, anchor * S.shape[1] + kin, one)
        counts.view(-1).index_add_(0, anchor * S.shape[1] + stranger, one, alpha=-1)
        return counts

    def _classes_of_anchors(self, pairs: Pairs) -> Tensor | None:
        """Which β belongs to each anchor ``(B,)``, where there are several."""
        if not self.per_class:
            return None
        if pairs.labels.dim() == 2:
            raise ValueError("per_class=True needs one label per sample, not a multi-hot matrix")
        if self.validate:
            check_label_range(pairs.labels, len(self.beta))
        return pairs.labels.long()
