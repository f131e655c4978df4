"""The AdaFace loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_positive
from nearkin.losses.margin_softmax import MarginSoftmax, turn
from nearkin.losses.search_space import MARGIN, SCALE, space

_MOMENTUM = 0.01


@register("adaface")
class AdaFace(MarginSoftmax):
    """The margin depends on how good a sample is, and the length of its raw embedding tells that.

    Equation:
        L = mean over samples of −log softmax of s (cos(θ_y − m ẑ) − (m + m ẑ)) for the own class, s·cos θ_c
        for the others,
        ẑ = clip(h (‖x‖ − μ)/(σ + 10⁻³), −1, 1)

        ẑ is a constant of the gradient. μ and σ are running means, with momentum 0.01, of the mean and the
        standard deviation of a batch's lengths; they start at 20 and 100, as the authors', and a batch has no
        part in its own. θ_y − m ẑ is kept in 0 … π.

    Source:
        Kim, Jain, Liu. AdaFace: Quality Adaptive Margin for Face Recognition. CVPR 2022. arXiv:2204.00964.

    When to use:
        Sharp and blurred images of the same classes: hard samples of good quality count, samples that nobody
        could recognise do not. The network must leave the lengths alone: no normalisation at its end.

    Relations to other losses:
        For ẑ = −1 it is ``arcface`` with m in radians, for ẑ = 0 ``cosface``; for ẑ = 1 the margin in the
        angle is negative.

    Args:
        num_classes: C.
        embedding_dim: D.
        margin: m, at most 1.5.
        scale: s.
        concentration: h, how much of the lengths' spread uses up the margin's range.
        generator: starts the proxies.

    Attributes:
        mean_length: μ, a scalar buffer.
        deviation: σ, a scalar buffer.

    Example:
        >>> loss = AdaFace(num_classes=3, embedding_dim=4)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(margin=MARGIN, scale=SCALE)
    stops_gradients = True
    mean_length: Tensor
    deviation: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin: float = 0.4,
        scale: float = 64.0,
        concentration: float = 0.333,
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(margin=margin)
        require_positive(concentration=concentration)
        if margin > 1.5:  # beyond a right angle a sample on its proxy would be pushed away
            raise ValueError(f"margin={margin} must be at most 1.5")
        super().__init__(num_classes, embedding_dim, scale=scale, reach=1 + 2 * margin, generator=generator)
        self.margin = margin
        self.concentration = concentration
        self.register_buffer("mean_length", torch.tensor(20.0))
        self.register_buffer("deviation", torch.tensor(100.0))
        self._quality = torch.zeros(0, 1)

    def prepare(self, norms: Tensor) -> None:
        """From lengths to ẑ; then the batch counts in the running means."""
        spread = (norms - self.mean_length.to(norms.dtype)) / (self.deviation.to(norms.dtype) + 1e-3)
        self._quality = spread.mul_(self.concentration).clamp_(-1, 1)
        if self.training:
            self.move_on("mean_length", norms.mean(), _MOMENTUM)
            if len(norms) > 1:  # one length has no deviation
                self.move_on("deviation", norms.std(), _MOMENTUM)

    def move(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """A margin in the angle and one in the cosine, by quality; similarities alone have the mean one."""
        known = len(self._quality) == len(cosine)
        quality = self._quality.to(cosine) if known else torch.zeros_like(cosine)
        moved, slope = turn(cosine, quality * -self.margin)
        return moved.sub_(quality.add(1).mul_(self.margin)), slope
