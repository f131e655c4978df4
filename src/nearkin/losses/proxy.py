"""The core of the proxy-based losses: a batch against one or more learnable vectors per class."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn

from nearkin.losses.base import Loss, check_embeddings, check_finite, check_labels
from nearkin.losses.similarity import (
    Measured,
    at_least_float32,
    full_precision,
    normalise,
    through_similarities,
)


class ProxyLoss(Loss):
    """A loss over the similarities to learnable ``.proxies``, of shape ``(C, D)`` or ``(C, K, D)``.

    A subclass states its value and weights in :meth:`measure`, and may add a term of its own in
    :meth:`extra_term`.

    Args:
        num_classes: C; labels lie in ``0 … C − 1``.
        embedding_dim: D.
        proxies_per_class: K; without it the proxies are a ``(C, D)`` matrix.
        generator: starts the proxies; seed 0 if there is none.
    """

    needs_classes: ClassVar[bool] = True
    normalised: bool = True
    """Whether S is made of cosines, or of raw inner products."""

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        generator: torch.Generator | None,
        proxies_per_class: int | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("num_classes", num_classes), ("embedding_dim", embedding_dim)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name}={size!r} must be a whole number of at least 1")
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
            norms = torch.linalg.vector_norm(rows.detach(), dim=1)
            if self.validate:
                self._check_values(norms, labels)
            if not len(rows):
                return rows.sum() * 0 + self.proxies.sum() * 0
            proxies = self.proxies.to(rows.dtype)
            if self.normalised:
                rows, proxies = normalise(rows, norms), normalise(proxies)
            labels = labels.long()
            value = through_similarities(
                rows, proxies.flatten(0, -2), lambda S, with_weights: self.measure(S, labels, with_weights)
            )
            extra = self.extra_term(rows, proxies, labels)
            return value if extra is None else value + extra

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The value and, where wanted, the weights ∂L/∂S; S may be overwritten.

        Args:
            S: similarities ``(B, C)``, or ``(B, C·K)``, class after class.
            labels: ``(B,)`` int64.
            with_weights: whether the weights are wanted.
        """
        raise NotImplementedError(f"{type(self).__name__} must define measure")

    def extra_term(self, embeddings: Tensor, proxies: Tensor, labels: Tensor) -> Tensor | None:
        """What the loss adds to its function of S, from (normalised) embeddings and proxies; or nothing."""
        return None

    def _check_values(self, norms: Tensor, labels: Tensor) -> None:
        """Refuse values that are not finite and labels out of range; one look from the host for both."""
        in_range = (labels >= 0) & (labels < self.num_classes)
        if torch.isfinite(norms.sum()) & in_range.all():
            return
        for label in labels[~in_range].tolist():
            raise ValueError(f"label {label} is out of range for num_classes={self.num_classes}")
        check_finite(norms)
