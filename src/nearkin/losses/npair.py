"""The N-pair loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_one_of
from nearkin.losses.exponentials import Outside, log_sum_exp, log_sum_exp_, without_underflow_
from nearkin.losses.pair import Comparison, PairLoss, Pairs
from nearkin.losses.search_space import Range, space
from nearkin.losses.similarity import Measured, Side
from nearkin.losses.softmax import cross_entropy_


@register("npair")
class NPair(PairLoss):
    """Compare each anchor's positives with all its negatives at once, by raw inner products.

    Equation:
        L = mean over anchors of softplus(LSE_{N_i} x_i·x_k + LSE_{P_i} −x_i·x_j) + l2 · mean ‖x_i‖²

        With pairs="one_per_class" the first two samples of each class are anchor and positive, the negatives
        of an anchor are the positives of the other classes, and the mean is over those anchors.

        One value per sample: its own softplus and length; of one pair per class, the softplus times B / the
        number of those anchors, and 0 for the other samples.

    Source:
        Sohn. Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NeurIPS 2016.

    When to use:
        With batches of two samples from each of many classes. It works on raw embeddings, whose length the l2
        term holds; evaluate with cosine similarity.

    Relations to other losses:
        ``info_nce`` on raw inner products in the place of scaled cosines; one negative makes it a smooth
        ``triplet``.

    Args:
        l2: weight of the mean squared length of the embeddings; a batch without any pair has no such term.
        pairs: "all", or Sohn's "one_per_class".

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        >>> NPair(l2=0.0)(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.3355)
    """

    on_sphere = False

    search_space = space(l2=Range(1e-4, 1.0, log=True))

    def __init__(self, *, l2: float = 0.02, pairs: str = "all") -> None:
        require_non_negative(l2=l2)
        require_one_of(("all", "one_per_class"), pairs=pairs)
        super().__init__()
        self.l2 = l2
        self.pairs = pairs

    @property
    def traceable(self) -> bool:
        """Of all pairs; those of one pair per class are listed."""
        return self.pairs == "all"

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """A softplus per anchor."""
        differences = log_sum_exp(S, pairs.negative) + log_sum_exp(-S, pairs.positive)
        return pairs.mean_over_anchors(torch.logaddexp(differences, torch.zeros_like(differences)))

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A pair's weight is its share of its sum times the anchor's sigmoid.

        With one positive, softplus(LSE_N − S_ap) is the cross-entropy of the row.
        """
        if self.pairs == "one_per_class":
            return Measured(*cross_entropy_(S.clone(), torch.arange(len(S), device=S.device).unsqueeze(1)))
        positive, negative = pairs.indicators(S)
        pulls, pushes = -S, S.clone()
        near, push = log_sum_exp_(pushes, 1, outside=Outside(negative))
        far, pull = log_sum_exp_(pulls, 1, outside=Outside(positive))
        per_anchor = near.add_(far)
        value = torch.nn.functional.softplus(per_anchor).mean()
        if not with_weights:
            return Measured(value)
        share = without_underflow_(per_anchor.sigmoid_().div_(len(S))).unsqueeze(1)
        return Measured(value, pushes.mul_(push.mul_(share)).addcmul_(pulls, pull.mul_(share), value=-1))

    def extra_values(self, embeddings: Tensor, pairs: Pairs) -> Tensor | None:
        """The squared lengths, if there is anything to learn from."""
        if self.l2 == 0:
            return None
        something = (pairs.positive.any(dim=1) & pairs.negative.any(dim=1)).any()
        return embeddings.square().sum(dim=1) * something * self.l2

    @property
    def chooses_by_class(self) -> bool:
        """One pair per class needs classes."""
        return self.pairs != "all"

    def select(self, compared: Comparison, reference_labels: Tensor | None) -> Comparison:
        """One pair per class is a small batch of anchors against a small gallery of their partners."""
        left, right, pairs, _ = compared
        if self.pairs == "all":
            return compared
        if pairs.labels.dim() == 2:
            raise ValueError('pairs="one_per_class" needs one label per sample, not a multi-hot matrix')
        anchor, partner = one_per_class(pairs.labels, reference_labels)
        if right is None:
            left, right = (Side(rows) for rows in left.at(torch.cat([anchor, partner])).rows.chunk(2))
        else:
            left, right = left.at(anchor), right.at(partner)

        def on_the_diagonal() -> tuple[Tensor, Tensor]:
            itself = torch.eye(len(anchor), dtype=torch.bool, device=anchor.device)
            return itself, ~itself

        weights = None if pairs.weights is None else pairs.weights[anchor]
        chosen = Pairs(on_the_diagonal, pairs.labels, pairs.embedding_dim, len(anchor), weights)
        return Comparison(left, right, chosen, anchor)

    def pair_weights(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        known_pairs: Tensor | None = None,
    ) -> Tensor:
        """∂L/∂S ``(B, R)``; of one pair per class, only the pairs of anchors and partners have any."""
        keywords = {
            "references": references,
            "reference_labels": reference_labels,
            "known_pairs": known_pairs,
        }
        weights = super().pair_weights(embeddings, labels, **keywords)
        if self.pairs == "all" or labels is None:
            return weights
        anchor, partner = one_per_class(labels, reference_labels)
        everywhere = weights.new_zeros(len(labels), len(labels if references is None else references))
        everywhere[anchor.unsqueeze(1), partner] = weights[: len(anchor), : len(partner)]
        return everywhere


def one_per_class(labels: Tensor, reference_labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """The first sample of each class and its partner: the second, or the first reference of the class.

    Args:
        labels: ``(B,)``.
        reference_labels: ``(R,)``, or ``None`` where the batch is compared with itself.

    Returns:
        Indices into the batch and into the references (or the batch), for classes that have both.

    >>> one_per_class(torch.tensor([7, 5, 5, 7, 6, 5]), None)
    (tensor([1, 0]), tensor([2, 3]))
    """
    ordered, order = labels.sort(stable=True)
    if reference_labels is None:
        changes = ordered[1:] != ordered[:-1]
        begins_a_pair = ~changes
        begins_a_pair[1:].logical_and_(changes[:-1])
        first = begins_a_pair.nonzero().squeeze(1)
        return order.index_select(0, first), order.index_select(0, first.add_(1))
    classes, counts = ordered.unique_consecutive(return_counts=True)
    first = counts.cumsum(0) - counts
    theirs, their_order = reference_labels.sort(stable=True)
    if not len(theirs):
        return order[:0], their_order
    place = torch.searchsorted(theirs, classes).clamp_max_(len(theirs) - 1)
    shared = theirs[place] == classes
    return order[first[shared]], their_order[place[shared]]
