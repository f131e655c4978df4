"""The SoftTriple loss."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from nearkin.losses.base import register, require_count, require_non_negative, require_positive
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import MARGIN, SCALE, TEMPERATURE, space
from nearkin.losses.similarity import (
    Measured,
    full_precision,
    inverse_of,
    lengths,
    log_sum_exp_,
    refuse_second_derivative,
)
from nearkin.losses.softmax import cross_entropy_


@register("soft_triple")
class SoftTriple(ProxyLoss):
    """Several centres per class, of which a sample belongs, softly, to the nearest; superfluous ones merge.

    Equation:
        L = mean over samples of −log softmax_c(λ(S_c − δ[c = y]))_y
            + τ · Σ_c Σ_{s<t} √(2 + 1e−5 − 2u_cs·u_ct) / (C·K·(K − 1)),
        S_c = Σ_k softmax_k(u_ck·z/γ) u_ck·z

    Source:
        Qian, Shang, Sun, Hu, Li, Jin. SoftTriple Loss: Deep Metric Learning Without Triplet Sampling.
        ICCV 2019. arXiv:1909.05235.

    When to use:
        Classes with several modes (poses, plumages). Its centres want a learning rate about 100 times the
        network's; for very many classes use two centres each.

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

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """Cross-entropy of the soft maxima over centres."""
        measured = self.measure_centres(
            S.unflatten(1, (self.num_classes, self.proxies_per_class)), labels, with_weights
        )
        weights = measured.weights
        return measured if weights is None else measured._replace(weights=weights.flatten(1))

    def measure_centres(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The same from similarities ``(B, C, K)``; ∂S_c/∂S_ck = a_ck (1 + (S_ck − S_c)/γ)."""
        assigned = S / self.gamma
        share = log_sum_exp_(assigned, 2, 1 / self.gamma).share
        per_class = (assigned * S).sum(dim=2, keepdim=True).mul_(share)
        own = labels.unsqueeze(1)
        logits = per_class.squeeze(2) * self.scale
        logits.scatter_(1, own, logits.gather(1, own).sub_(self.scale * self.margin))
        bound = self.scale * (1 + self.margin)
        value, towards_classes = cross_entropy_(logits, own, bound, slope=self.scale / self.gamma)
        if not with_weights:
            return Measured(value)
        slope = share.mul_(towards_classes.unsqueeze(2))
        offset = per_class.neg_().add_(self.gamma).mul_(slope)
        weights = torch.addcmul(offset, S, slope, out=torch.empty_like(S)).mul_(assigned)
        return Measured(value, weights)

    def value(self, embeddings: Tensor, norms: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, and the term that draws the centres of a class together."""
        value: Tensor = _AmongCentres.apply(  # type: ignore[no-untyped-call]
            self, embeddings, norms, proxies, labels
        )
        return value

    def spread(self, between: Tensor) -> Measured:
        """τ times the mean distance of the centres of a class, from their similarities ``(C, K, K)``."""
        C, K, _ = between.shape
        if K == 1 or self.tau == 0:
            return Measured(between.new_zeros(()), torch.zeros_like(between), symmetric=True)
        share = self.tau / (2 * C * K * (K - 1))  # each pair stands in the matrix twice
        distances = torch.rsub(between, 2 + 1e-5, alpha=2).sqrt_()
        distances.diagonal(dim1=1, dim2=2).zero_()
        value = distances.sum() * share
        weights = distances.reciprocal_().mul_(-share)
        weights.diagonal(dim1=1, dim2=2).zero_()
        return Measured(value, weights, symmetric=True)


class _AmongCentres(torch.autograd.Function):
    """Both terms and what they do to samples and centres.

    Inside, the first centres of all classes come first, then all second ones: what belongs to a class is
    then added up along whole rows and not over a few neighbours at a time.
    """

    @staticmethod
    def forward(ctx: Any, loss: SoftTriple, *inputs: Tensor) -> Tensor:
        rows, norms, proxies, labels = inputs
        C, K, D = proxies.shape
        inverse = inverse_of(norms)
        units = rows * inverse
        inverse_lengths = inverse_of(lengths(proxies))
        centres = torch.mul(
            proxies.transpose(0, 1), inverse_lengths.transpose(0, 1), out=proxies.new_empty(K, C, D)
        )
        similarities = units @ centres.flatten(0, 1).mT
        S = similarities.view(-1, K, C).transpose(1, 2)
        measured = loss.measure_centres(S, labels, True)
        of_classes = centres.transpose(0, 1)
        between = of_classes @ of_classes.mT
        spread = loss.spread(between)
        weights, pulls = measured.weights, spread.weights
        assert weights is not None
        assert pulls is not None
        weights = weights.transpose(1, 2).flatten(1)
        radial = similarities.mul_(weights)
        pulls.mul_(2)  # from either side of a pair
        along_centres = between.mul_(pulls).sum(dim=2).add_(radial.sum(dim=0).view(K, C).mT)
        pulls.diagonal(dim1=1, dim2=2).sub_(along_centres)
        along_rows = radial.sum(dim=1, keepdim=True)
        ctx.save_for_backward(units, inverse, along_rows, weights, centres, inverse_lengths, pulls)
        return measured.value + spread.value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        units, inverse, along_rows, weights, centres, inverse_lengths, pulls = ctx.saved_tensors
        to_rows = to_proxies = None
        with full_precision(units):
            if ctx.needs_input_grad[1]:
                to_rows = weights @ centres.flatten(0, 1)
                to_rows.addcmul_(units, along_rows, value=-1).mul_(inverse * gradient)
            if ctx.needs_input_grad[3]:
                to_proxies = pulls @ centres.transpose(0, 1)
                to_proxies.add_((weights.mT @ units).view_as(centres).transpose(0, 1))
                to_proxies.mul_(inverse_lengths * gradient)
        return None, to_rows, None, to_proxies, None


def uniform_proxies(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Proxies ``(C, K, D)`` spread uniformly in ±1/√(C·K): kaiming, a = √5."""
    C, K, _ = shape
    return torch.rand(shape, generator=generator).mul_(2).sub_(1).div_(sqrt(C * K))
