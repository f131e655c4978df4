"""The Proxy-Anchor loss."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nearkin.losses.base import or_one, register, require_non_negative, require_positive
from nearkin.losses.exponentials import (
    Outside,
    exponentials_fit,
    log_one_plus_sum_exp,
    log_one_plus_sum_exp_,
    log_sum_exp,
)
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import MARGIN, SCALE, space
from nearkin.losses.similarity import Measured


@register("proxy_anchor")
class ProxyAnchor(ProxyLoss):
    """Each proxy is an anchor that pulls its class's samples and pushes all others, the hardest most.

    Equation:
        L = (1/|W⁺|) Σ_{c∈W⁺} log(1 + Σ_{x∈X_c⁺} e^{−α(S − δ)}) + (1/C) Σ_c log(1 + Σ_{x∈X_c⁻} e^{α(S + δ)})

        W⁺: the classes in the batch; S = z·v_c.

        One value per sample: of each logarithm the share that its exponential has in the sum, times B.

    Source:
        Kim, Kim, Cho, Kwak. Proxy Anchor Loss for Deep Metric Learning. CVPR 2020. arXiv:2003.13911.

    When to use:
        The first proxy-based loss to try: fast convergence, works with random batches. Give its proxies a
        learning rate about 100 times the network's and let the embedding layer warm up for an epoch.

    Relations to other losses:
        ``multi_similarity`` with proxies as anchors; ``proxy_repulsion`` keeps its first term and lets
        proxies repel each other instead of samples.

    Args:
        num_classes: C.
        embedding_dim: D.
        alpha: α, how much the hardest samples dominate.
        margin: δ.
        generator: starts the proxies.

    Example:
        >>> loss = ProxyAnchor(num_classes=3, embedding_dim=4)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(alpha=SCALE, margin=MARGIN)

    tiling = "columns"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        alpha: float = 32.0,
        margin: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive(alpha=alpha)
        require_non_negative(margin=margin)
        super().__init__(num_classes, embedding_dim, generator)
        self.alpha = alpha
        self.margin = margin

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """A log-sum-exp per class over its own samples and one over all others."""
        own = one_hot(labels, S.shape[1]).to(torch.bool)
        pull = log_one_plus_sum_exp(-self.alpha * (S - self.margin), own, dim=0)
        push = log_one_plus_sum_exp(self.alpha * (S + self.margin), ~own, dim=0)
        return pull.sum() / own.any(dim=0).sum() + push.mean()

    def weighted_value(self, S: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """A sample that counts w times is in its sums w times."""
        own = one_hot(labels, S.shape[1]).to(torch.bool)
        present, pulls = parts_by_sample(-self.alpha * (S - self.margin), own, weights)
        _, pushes = parts_by_sample(self.alpha * (S + self.margin), ~own, weights)
        return len(S) * (pulls / or_one(present) + pushes / S.shape[1])

    def own_term(self, own: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The positive term."""
        present, places = labels.unique(return_inverse=True)
        pulls, bound = own.squeeze(1).sub(self.margin).mul_(-self.alpha), self.alpha * (1 + self.margin)
        per_class, shares, _ = positive_term(pulls, places, len(present), bound)
        return per_class.sum() / len(present), shares.mul_(-self.alpha / len(present)).unsqueeze(1)

    def column_terms(self, S: Tensor, among: Tensor) -> Tensor:
        """A class's logarithm over the samples of the others."""
        return log_one_plus_sum_exp(self.alpha * (S + self.margin), among, dim=0)

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The same in closed form: B numbers for the samples' own classes, B × C for all others."""
        own = labels.unsqueeze(1)
        pulls = S.gather(1, own).squeeze(1).sub_(self.margin).mul_(-self.alpha)
        bound = self.alpha * (1 + self.margin)
        per_class, shares, present = positive_term(pulls, labels, S.shape[1], bound)
        pushes, offset = S * self.alpha, self.alpha * self.margin
        away, push = log_one_plus_sum_exp_(pushes, 0, self.alpha, Outside(columns=own), offset)
        value = (per_class.sum() / present).add_(away.sum(), alpha=1 / S.shape[1])
        if not with_weights:
            return Measured(value)
        weights = pushes.mul_(push.mul_(self.alpha / S.shape[1]))
        weights.scatter_(1, own, shares.div_(present).mul_(-self.alpha).unsqueeze(1))
        return Measured(value, weights)


def parts_by_sample(T: Tensor, among: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """``Σ_c log(1 + Σ_x w_x eᵗ)`` over the samples ``among`` each class, as parts that belong to the samples.

    Args:
        T: ``(B, C)``.
        among: boolean ``(B, C)``.
        weights: w, ``(B,)``; 1 if not given.

    Returns:
        How many classes have a sample, and of each sample ``(B,)`` its shares of the logarithms.
    """
    if weights is not None:
        among = among & (weights > 0).unsqueeze(1)
        T = T + torch.where(weights > 0, weights, 1).log().unsqueeze(1)
    logs = log_one_plus_sum_exp(T, among, dim=0)
    shares = torch.where(among, T - log_sum_exp(T, among, dim=0), -inf).exp()
    return among.any(dim=0).sum(), (shares * logs).sum(dim=1)


def positive_term(t: Tensor, labels: Tensor, num_classes: int, bound: float) -> tuple[Tensor, Tensor, Tensor]:
    """``log(1 + Σ_{x∈X_c} eᵗ)`` per class.

    Args:
        t: ``(B,)``, the exponent of each sample.
        labels: ``(B,)``.
        num_classes: C.
        bound: a promise that ``|t| ≤ bound``.

    Returns:
        The logarithms ``(C,)`` (0 for an absent class), each sample's share ``(B,)`` of its class's sum (the
        gradient with respect to t), and the number of classes present, a scalar of the dtype of t.
    """
    if exponentials_fit(t, 0, bound):
        exponentials = t.exp()
        sums = t.new_zeros(num_classes).index_add_(0, labels, exponentials)
        present = sums.sign().sum()
        shares = exponentials.div_(sums.index_select(0, labels).add_(1))
        return sums.log1p_(), shares, present
    shift = t.new_zeros(num_classes).scatter_reduce_(0, labels, t, "amax")  # at least 0: the 1 is e⁰
    exponentials = (t - shift[labels]).exp_()
    beyond_one = torch.expm1(-shift).index_add_(0, labels, exponentials)
    shares = exponentials / (1 + beyond_one[labels])
    present = t.new_zeros(num_classes).index_fill_(0, labels, 1).sum()
    return shift + beyond_one.log1p_(), shares, present
