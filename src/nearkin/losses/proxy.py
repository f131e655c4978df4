"""The core of the proxy-based losses: a batch against one or more learnable vectors per class."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn

from nearkin.losses.base import (
    Loss,
    check_embeddings,
    check_finite,
    check_label_range,
    check_labels,
    require_count,
)
from nearkin.losses.similarity import (
    Measured,
    Side,
    at_least_float32,
    full_precision,
    lengths,
    through_similarities,
)


class ProxyLoss(Loss):
    """A loss over the similarities to learnable ``.proxies``, of shape ``(C, D)`` or ``(C, K, D)``.

    A subclass states its value and weights in :meth:`measure`; terms that need more than S extend
    :meth:`value`.

    Args:
        num_classes: C; labels lie in ``0 … C − 1``.
        embedding_dim: D.
        proxies_per_class: K; without it the proxies are a ``(C, D)`` matrix.
        generator: starts the proxies; seed 0 if there is none.
    """

    needs_classes: ClassVar[bool] = True
    compares_samples = False
    on_sphere: bool = True
    """Whether S is made of cosines, or of raw inner products."""

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        generator: torch.Generator | None,
        proxies_per_class: int | None = None,
    ) -> None:
        super().__init__()
        require_count(num_classes=num_classes, embedding_dim=embedding_dim)
        self.num_classes = num_classes
        self.embedding_dim = embedding_dim
        shape: tuple[int, ...] = (num_classes, embedding_dim)
        if proxies_per_class is not None:
            shape = (num_classes, proxies_per_class, embedding_dim)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.proxies = nn.Parameter(self.initial_proxies(shape, generator))

    def initial_proxies(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Where the proxies start: normal with deviation √(2/C), kaiming by fan-out."""
        return torch.randn(shape, generator=generator) * sqrt(2 / self.num_classes)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers in ``0 … C − 1``.
        """
        check_embeddings(embeddings)
        check_labels(labels, embeddings)
        if embeddings.shape[1] != self.embedding_dim:
            raise ValueError(
                f"embedding_dim={self.embedding_dim} but the embeddings have {embeddings.shape[1]} columns"
            )
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            norms = lengths(rows)
            if self.validate:
                check_finite(norms)
                check_label_range(labels, self.num_classes)
            if not len(rows):
                return rows.sum() * 0 + self.proxies.sum() * 0
            proxies = self.proxies.to(rows.dtype)
            return self.value(rows, norms, proxies, labels.long())

    def value(self, embeddings: Tensor, norms: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
        """The loss of checked inputs; terms that need more than S are added here.

        Args:
            embeddings: ``(B, D)``, raw, in full precision.
            norms: their lengths ``(B, 1)``.
            proxies: ``(C, D)`` or ``(C, K, D)``, raw.
            labels: ``(B,)`` int64.
        """
        proxies = proxies.flatten(0, -2)
        return through_similarities(
            lambda S, with_weights: self.measure(S, labels, with_weights),
            Side(embeddings, norms if self.on_sphere else None),
            Side(proxies, lengths(proxies) if self.on_sphere else None),
        )

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The value and, where wanted, the weights ∂L/∂S; S stays as it is.

        Args:
            S: similarities ``(B, C)``, or ``(B, C·K)``, class after class.
            labels: ``(B,)`` int64.
            with_weights: whether the weights are wanted.
        """
        raise NotImplementedError(f"{type(self).__name__} must define measure")
