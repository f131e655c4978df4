"""Dimensions that vary and do not repeat each other, beside any loss."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearkin.losses.base import Loss, check_embeddings, check_finite, require_non_negative, require_positive
from nearkin.losses.modifiers.base import Modifier, register
from nearkin.losses.search_space import Range, space
from nearkin.losses.similarity import at_least_float32, full_precision
from nearkin.losses.wrapping import LossFunction

_EPSILON = 1e-4
"""Added to variances: the slope of a root has no limit at 0."""


@register("vicreg")
class VICReg(Modifier):
    """Any loss, and two terms that keep every dimension of the raw embeddings in use.

    Equation:
        L = loss(x) + μ · mean over dimensions d of [γ − √(Var_d + ε)]₊ + ν · (1/D) Σ_{d≠e} Cov_de²

        Variance and covariance are those of the batch, divided by B − 1; ε is 10⁻⁴. A batch of one sample
        has none. One value per sample: the inner loss's, and all of both terms. ``weights`` count samples in
        the inner loss only.

    Source:
        Bardes, Ponce, LeCun. VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised
        Learning. ICLR 2022. arXiv:2105.04906. There the loss inside is the mean squared distance of two
        views of an image, each view has terms of its own, and the weights of the three are 25 : 25 : 1.

    When to use:
        When embeddings use few of their dimensions (the effective dimension of ``nearkin evaluate`` is
        small), or collapse. γ is a length: it also keeps raw embeddings from shrinking.

    Relations:
        Around a mean squared distance of positives it is VICReg on labels. With both weights 0 it is the
        inner loss, bit for bit.

    Args:
        loss: the inner loss, ours or anything :func:`~nearkin.losses.as_loss` takes.
        variance: μ.
        covariance: ν.
        deviation: γ, the standard deviation up to which a dimension is pushed.

    Example:
        >>> from nearkin.losses import build
        >>> loss = VICReg(build("contrastive"), variance=0.0, covariance=1.0)
        >>> x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])  # both dimensions say the same: covariance 2
        >>> loss(x, torch.tensor([0, 1]))
        tensor(4.)
    """

    order: ClassVar[int] = 80
    search_space = space(variance=Range(1e-3, 10.0, log=True), covariance=Range(1e-4, 1.0, log=True))

    def __init__(
        self,
        loss: Loss | nn.Module | LossFunction,
        variance: float = 1.0,
        covariance: float = 0.04,
        *,
        deviation: float = 1.0,
    ) -> None:
        super().__init__(loss)
        require_non_negative(variance=variance, covariance=covariance)
        require_positive(deviation=deviation)
        self.variance = variance
        self.covariance = covariance
        self.deviation = deviation

    @property
    def traceable(self) -> bool:
        """As the inner loss is."""
        return self.loss.traceable

    def forward(self, embeddings: Tensor, labels: Tensor, **keywords: Any) -> Tensor:
        """The inner loss of a batch and both terms, a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)``, or what else the inner loss takes.
            keywords: what else the inner loss takes.
        """
        if self.reduction != "mean":
            keywords.setdefault("reduction", self.reduction)
        check_embeddings(embeddings)
        if len(embeddings) < 2 or (self.variance == 0 and self.covariance == 0):
            return self.inner(embeddings, labels, keywords)
        rows = at_least_float32(embeddings)
        return self.inner(rows, labels, keywords) + self.regularisation(rows)

    def regularisation(self, embeddings: Tensor) -> Tensor:
        """Both terms of a batch ``(B, D)`` of two samples or more, a scalar."""
        if self.validate:
            check_finite(embeddings.detach())
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            centred = rows - rows.mean(dim=0)
            covariances = centred.T @ centred / (len(rows) - 1)
            variances = covariances.diagonal()
            narrow = (self.deviation - (variances + _EPSILON).sqrt()).relu().mean()
            others = 1 - torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
            shared = (covariances * others).square().sum() / max(1, rows.shape[1])
            return self.variance * narrow + self.covariance * shared

    def extra_repr(self) -> str:
        """The constructor's keywords."""
        return f"variance={self.variance}, covariance={self.covariance}, deviation={self.deviation}"
