"""The N-pair loss."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_one_of
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.similarity import Measured, log_sum_exp_


@register("npair")
class NPair(PairLoss):
    """Compare each anchor's positives with all its negatives at once, by raw inner products.

    Equation:
        L = mean over anchors of softplus(LSE_{N_i} x_i·x_k + LSE_{P_i} −x_i·x_j) + l2 · mean ‖x_i‖²

        With pairs="one_per_class" the first two samples of each class are anchor and positive, the negatives
        of an anchor are the positives of the other classes, and the mean is over those anchors.

    Source:
        Sohn. Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NeurIPS 2016.

    When to use:
        With batches of two images from each of many classes. It works on raw embeddings, whose length the l2
        term holds; evaluate with cosine similarity.

    Args:
        l2: weight of the mean squared length of the embeddings; a batch without any pair has no such term.
        pairs: "all", or Sohn's "one_per_class".

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        >>> NPair(l2=0.0)(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.3355)
    """

    on_sphere = False

    def __init__(self, *, l2: float = 0.02, pairs: str = "all") -> None:
        require_non_negative(l2=l2)
        require_one_of(("all", "one_per_class"), pairs=pairs)
        super().__init__()
        self.l2 = l2
        self.pairs = pairs

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A softplus per anchor; a pair's weight is its share of its sum times the anchor's sigmoid."""
        positive, negative, anchors = self._select(pairs)
        pulls = torch.where(positive, S, inf).neg_()
        pushes = torch.where(negative, S, -inf)
        per_anchor = log_sum_exp_(pushes, dim=1) + log_sum_exp_(pulls, dim=1)
        share = anchors.to(S.dtype).clamp_min(1).reciprocal()
        value = torch.nn.functional.softplus(per_anchor).sum() * share
        if not with_weights:
            return Measured(value)
        return Measured(value, pushes.sub_(pulls).mul_((per_anchor.sigmoid() * share).unsqueeze(1)))

    def extra_term(self, embeddings: Tensor, pairs: Pairs) -> Tensor | None:
        """The mean squared length, if there is anything to learn from."""
        if self.l2 == 0:
            return None
        something = (pairs.positive.any(dim=1) & pairs.negative.any(dim=1)).any()
        return embeddings.square().sum() * something * (self.l2 / len(embeddings))

    def _select(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs that count, and over how many anchors the mean goes."""
        if self.pairs == "all":
            return pairs.positive, pairs.negative, torch.tensor(pairs.anchors)
        if pairs.labels.dim() == 2:
            raise ValueError('pairs="one_per_class" needs one label per sample, not a multi-hot matrix')
        first = ~(pairs.labels.unsqueeze(1) == pairs.labels).tril(-1).any(dim=1)
        anchor = first & pairs.positive.any(dim=1)
        partner_of = pairs.positive.to(torch.uint8).argmax(dim=1)
        partner = torch.zeros(pairs.positive.shape[1], dtype=torch.bool, device=anchor.device)
        partner.index_put_((torch.where(anchor, partner_of, 0),), anchor, accumulate=True)
        both = anchor.unsqueeze(1) & partner
        return pairs.positive & both, pairs.negative & both, anchor.sum()
