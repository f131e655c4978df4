"""The SoftTriple loss."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from nearkin.losses.base import register, require_count, require_non_negative, require_positive
from nearkin.losses.exponentials import log_sum_exp_
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import MARGIN, SCALE, TEMPERATURE, space
from nearkin.losses.similarity import Measured, Side, lengths, similarities, through_similarities
from nearkin.losses.softmax import cross_entropy_


@register("soft_triple")
class SoftTriple(ProxyLoss):
    """Several centres per class, of which a sample belongs, softly, to the nearest; superfluous ones merge.

    Equation:
        L = mean over samples of −log softmax_c(λ(S_c − δ[c = y]))_y
            + τ · Σ_c Σ_{s<t} √(2 + 1e−5 − 2u_cs·u_ct) / (C·K·(K − 1)),
        S_c = Σ_k softmax_k(u_ck·z/γ) u_ck·z

        One value per sample: its own logarithm, and all of the second term.

    Source:
        Qian, Shang, Sun, Hu, Li, Jin. SoftTriple Loss: Deep Metric Learning Without Triplet Sampling.
        ICCV 2019. arXiv:1909.05235.

    When to use:
        Classes with several modes (poses, plumages). Its centres want a learning rate about 100 times the
        network's; for very many classes use two centres each.

    Relations to other losses:
        With one centre per class and no margin it is ``softmax`` with normalized; the centres are averaged
        softly where others take the nearest.

    Args:
        num_classes: C.
        embedding_dim: D.
        scale: λ.
        gamma: γ, how softly a sample chooses among the centres of a class.
        margin: δ.
        tau: τ, weight of the term that merges centres; without effect for K = 1.
        proxies_per_class: K.
        generator: starts the proxies.

    Example:
        >>> loss = SoftTriple(num_classes=3, embedding_dim=4, proxies_per_class=2)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(scale=SCALE, gamma=TEMPERATURE, margin=MARGIN, tau=MARGIN)

    tiling = "rows"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        proxies_per_class: int = 10,
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive(scale=scale, gamma=gamma)
        require_non_negative(margin=margin, tau=tau)
        require_count(proxies_per_class=proxies_per_class)
        super().__init__(num_classes, embedding_dim, generator, proxies_per_class)
        self.scale = scale
        self.gamma = gamma
        self.margin = margin
        self.tau = tau
        self.proxies_per_class = proxies_per_class

    def initial_proxies(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Uniform in ±1/√(C·K), as the authors start them."""
        return uniform_proxies(shape, generator)

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the soft maxima over centres."""
        per_class = self.by_class(S)
        own = one_hot(labels, per_class.shape[1]).to(S.dtype)
        return cross_entropy(self.scale * (per_class - self.margin * own), labels, reduction="none")

    def by_class(self, S: Tensor) -> Tensor:
        """The soft maximum over centres."""
        S = S.view(len(S), -1, self.proxies_per_class)
        return (torch.softmax(S / self.gamma, dim=2) * S).sum(dim=2)

    def own_logits(self, own: Tensor) -> Tensor:
        """Scaled."""
        return self.scale * (own - self.margin)

    def other_logits(self, others: Tensor, own: Tensor) -> Tensor:
        """Scaled."""
        return self.scale * others

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The same in closed form; ∂S_c/∂S_ck = a_ck (1 + (S_ck − S_c)/γ)."""
        # The first centres of all classes, then all second ones: sums over centres then run along whole rows.
        by_class = (len(S), -1, self.proxies_per_class)
        S = S.view(by_class).mT.contiguous()
        assigned = S / self.gamma
        share = log_sum_exp_(assigned, 1, 1 / self.gamma).share
        per_class = (assigned * S).sum(dim=1, keepdim=True).mul_(share)
        own = labels.unsqueeze(1)
        logits = per_class.squeeze(1) * self.scale
        logits.scatter_(1, own, logits.gather(1, own).sub_(self.scale * self.margin))
        bound = self.scale * (1 + self.margin)
        value, towards_classes = cross_entropy_(logits, own, bound, slope=self.scale / self.gamma)
        if not with_weights:
            return Measured(value)
        slope = share.mul_(towards_classes.unsqueeze(1))
        offset = per_class.neg_().add_(self.gamma).mul_(slope)
        return Measured(value, torch.addcmul(offset, S, slope).mul_(assigned).mT.flatten(1))

    def extra_term(self, proxies: Tensor) -> Tensor | None:
        """τ times the mean distance of the centres of a class."""
        if self.proxies_per_class == 1 or self.tau == 0:
            return None
        centres = Side(proxies, lengths(proxies))
        if torch.compiler.is_compiling():
            return self.tau * _mean_distance(similarities(centres), False).value
        return self.tau * through_similarities(_mean_distance, centres)


def _mean_distance(S: Tensor, with_weights: bool) -> Measured:
    """``Σ_c Σ_{s<t} √(2 + 1e−5 − 2 S_st) / (C·K·(K − 1))`` of similarities ``(C, K, K)``.

    Each pair is counted in both orders, and half.
    """
    C, K, _ = S.shape
    half = 1 / (2 * C * K * (K - 1))
    counts = torch.full((K, K), half, dtype=S.dtype, device=S.device).fill_diagonal_(0)
    D = torch.rsub(S, 2 + 1e-5, alpha=2).sqrt()
    value = (D * counts).sum()
    return Measured(value, D.reciprocal_().mul_(-counts)) if with_weights else Measured(value)


def uniform_proxies(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Proxies ``(C, K, D)`` spread uniformly in ±1/√(C·K): kaiming, a = √5."""
    C, K, _ = shape
    return torch.rand(shape, generator=generator).mul_(2).sub_(1).div_(sqrt(C * K))
