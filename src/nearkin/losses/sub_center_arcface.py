"""The sub-centre ArcFace loss, and the samples that its centres give away as mislabelled."""

from __future__ import annotations

from math import cos, radians

import torch
from torch import Tensor

from nearkin.losses.base import check_embeddings, check_label_range, check_labels, register, require_count
from nearkin.losses.margin_softmax import MarginSoftmax, add_angle, require_angle
from nearkin.losses.search_space import SCALE, Range, space
from nearkin.losses.similarity import Measured, at_least_float32, normalise

_ROWS = 4096
"""Samples whose centres are gathered at a time."""


@register("sub_center_arcface")
class SubCenterArcFace(MarginSoftmax):
    """ArcFace with several centres per class: noise gathers around centres of its own.

    Equation:
        L = mean over samples of −log softmax of s·cos(θ_y + m) for the own class, s·cos θ_c for the others,
        cos θ_c = max_k u_ck·z

        Where θ_y > π − m, cos θ_y − m sin m takes the place of cos(θ_y + m), which would rise again.

    Source:
        Deng, Guo, Liu, Gong, Zafeiriou. Sub-center ArcFace: Boosting Face Recognition by Large-scale Noisy
        Web Faces. ECCV 2020.

    When to use:
        Labels collected from the web: clean samples agree on one dominant centre, wrong ones go to the
        others. :meth:`far_from_dominant_centre` then names the suspects; train again without them.

    Relations to other losses:
        With one centre it is ``arcface``. ``soft_triple`` has a soft maximum over centres and a term that
        merges them.

    Args:
        num_classes: C.
        embedding_dim: D.
        margin_degrees: m, in degrees, at most 130.
        scale: s.
        proxies_per_class: K.
        generator: starts the proxies.

    Example:
        >>> loss = SubCenterArcFace(num_classes=3, embedding_dim=4)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(margin_degrees=Range(0.0, 60.0, step=5.0), scale=SCALE)

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin_degrees: float = 28.6,
        scale: float = 64.0,
        proxies_per_class: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        self._margin = require_angle(margin_degrees)
        require_count(proxies_per_class=proxies_per_class)
        super().__init__(
            num_classes,
            embedding_dim,
            scale=scale,
            reach=1 + self._margin,
            generator=generator,
            proxies_per_class=proxies_per_class,
        )
        self.margin_degrees = margin_degrees
        self.proxies_per_class = proxies_per_class

    def move(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """The margin is added to the angle."""
        return add_angle(cosine, self._margin)

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """ArcFace of the nearest centres' cosines."""
        return super().value(self.by_class(S), labels)

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """A class's weight goes to its nearest centre."""
        nearest, places = self._centres(S).max(dim=2, keepdim=True)
        value, weights, _ = super().measure(nearest.squeeze(2), labels, with_weights)
        if weights is None:
            return Measured(value)
        spread = self._centres(torch.zeros_like(S)).scatter_(2, places, weights.unsqueeze(2))
        return Measured(value, spread.flatten(1))

    def by_class(self, S: Tensor) -> Tensor:
        """The nearest centre's."""
        return self._centres(S).amax(dim=2)

    def _centres(self, S: Tensor) -> Tensor:
        return S.view(len(S), -1, self.proxies_per_class)

    @torch.no_grad()
    def dominant_centres(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Which centre of each class is the nearest of most of its samples, ``(C,)``; of equals the first.

        Args:
            embeddings: ``(N, D)``, of as many samples of each class as there are.
            labels: ``(N,)``.
        """
        nearest = self._own_cosines(embeddings, labels).argmax(dim=1)
        K = self.proxies_per_class
        counts = torch.bincount(labels.long() * K + nearest, minlength=self.num_classes * K)
        return counts.view(-1, K).argmax(dim=1)

    @torch.no_grad()
    def far_from_dominant_centre(
        self, embeddings: Tensor, labels: Tensor, *, degrees: float = 75.0
    ) -> Tensor:
        """The label cleaner: which samples are further than an angle from their class's dominant centre.

        The authors train once, leave these samples out, and train again.

        Args:
            embeddings: ``(N, D)`` of the whole training set, from the trained network.
            labels: ``(N,)``.
            degrees: the angle.

        Returns:
            ``(N,)``, true for suspects.

        >>> loss = SubCenterArcFace(num_classes=1, embedding_dim=2, proxies_per_class=2)
        >>> _ = loss.proxies.data.copy_(torch.eye(2))
        >>> rows = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0]])
        >>> loss.far_from_dominant_centre(rows, torch.tensor([0, 0, 0]))
        tensor([False, False,  True])
        """
        if not 0 <= degrees <= 180:
            raise ValueError(f"degrees={degrees} must be an angle from 0 to 180")
        dominant = self.dominant_centres(embeddings, labels)[labels.long()]
        cosines = self._own_cosines(embeddings, labels).gather(1, dominant.unsqueeze(1)).squeeze(1)
        return cosines < cos(radians(degrees))

    def _own_cosines(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Cosines of samples with the K centres of their class, ``(N, K)``."""
        check_embeddings(embeddings)
        check_labels(labels, embeddings)
        check_label_range(labels, self.num_classes)
        parts = [
            (normalise(self.proxies[own.long()].to(rows.dtype)) @ normalise(rows).unsqueeze(2)).squeeze(2)
            for rows, own in zip(at_least_float32(embeddings).split(_ROWS), labels.split(_ROWS), strict=True)
        ]
        return torch.cat(parts)
