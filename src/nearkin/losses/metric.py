"""By which measure of nearness a margin or a temperature is meant.

Every metric is a function of one matrix product, S: of unit rows for cosines and what follows from them, of
rows with two further columns for distances in which lengths count. None needs a ``(B, B, D)`` tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin.losses.base import require_positive
from nearkin.losses.similarity import (
    Side,
    distance,
    distance_and_inverse,
    normalise,
)

_SHORT = 1e-18
"""Below this a length counts as 0; its square is still a number in float32."""


@dataclass(frozen=True)
class Metric:
    """How near two embeddings are, larger is nearer; here the cosine itself.

    Attributes:
        name: as in ``metric="cosine"``.
        on_sphere: whether S is made of cosines; else :meth:`place` says what of.
        identical: the nearness of two embeddings that are the same.
    """

    name: ClassVar[str] = "cosine"
    on_sphere: ClassVar[bool] = True
    identical: ClassVar[float] = 1.0

    def place(self, left: Side, right: Side | None) -> tuple[Side, Side | None]:
        """Rows whose inner products are S, differentiable; here those that are given."""
        return left, right

    def nearness(self, S: Tensor) -> Tensor:
        """Nearness from S, differentiable."""
        return S

    def nearness_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor | int]:
        """The same, and its derivative by S; S stays as it is."""
        return S, 1


class SquaredEuclidean(Metric):
    """``−D² = 2S − 2`` of unit rows."""

    name = "squared_euclidean"
    identical = 0.0

    def nearness(self, S: Tensor) -> Tensor:
        """Linear in S."""
        return 2 * S - 2

    def nearness_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor | int]:
        """The slope is 2 everywhere."""
        return torch.mul(S, 2).sub_(2), 2


class Euclidean(Metric):
    """``−D = −√(2 − 2S)`` of unit rows."""

    name = "euclidean"
    identical = 0.0

    def nearness(self, S: Tensor) -> Tensor:
        """0 with derivative 0 where two coincide up to rounding."""
        return -distance(S)

    def nearness_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor | int]:
        """The slope is 1/D."""
        D, inverse = distance_and_inverse(S)
        return D.neg_(), inverse


class EuclideanRaw(Metric):
    """``−‖x − y‖²`` of raw embeddings, lengths included: the survey's (5) and (6) literally.

    >>> left, right = EuclideanRaw().place(Side(torch.tensor([[3.0, 0.0]])), Side(torch.tensor([[0.0, 4.0]])))
    >>> left.rows @ right.rows.T
    tensor([[-25.]])
    """

    name = "euclidean_raw"
    on_sphere = False
    identical = 0.0

    def place(self, left: Side, right: Side | None) -> tuple[Side, Side | None]:
        """``2x·y − ‖x‖² − ‖y‖²`` as one inner product."""
        return minus_squared_distance(left.rows, (left if right is None else right).rows)


class SignalToNoise(Metric):
    """``−var(z − z') / var(z)`` of unit rows, z the anchor's: the noise that turns one into the other.

    Variances are over the columns. The two sides of a pair are not alike: the anchor is the signal.
    """

    name = "signal_to_noise"
    on_sphere = False
    identical = 0.0

    def place(self, left: Side, right: Side | None) -> tuple[Side, Side | None]:
        """The squared distance of centred rows over the squared length of the anchor's."""
        signal, other = (_centred(side.rows) for side in (left, left if right is None else right))
        power = signal.square().sum(dim=1, keepdim=True)
        # A row without variance is no signal: it is near to everything, and nothing moves it.
        inverse = torch.threshold(power, 64 * torch.finfo(power.dtype).eps ** 2, inf).reciprocal()
        before, after = minus_squared_distance(signal, other)
        return Side(before.rows * inverse), after


@dataclass(frozen=True)
class Hyperbolic(Metric):
    """Minus the geodesic distance in the Poincaré ball, which rows reach by the exponential map at 0.

    With ``u = √c · min(‖x‖, clip)`` and x̂ the direction of x, points are ``tanh(u) x̂ / √c``. They are
    ``d = (1/√c) arcosh(1 + t)`` apart, ``t = 2c‖x−y‖² / ((1−c‖x‖²)(1−c‖y‖²))``. Written in u,
    ``t = 2 sinh²u cosh²v + 2 cosh²u sinh²v − sinh 2u sinh 2v x̂·ŷ``: nothing is divided, and S = −t is one
    inner product.

    Source: Khrulkov, Mirvakhabova, Ustinova, Oseledets, Lempitsky. Hyperbolic Image Embeddings. CVPR 2020;
    Ermolov, Mirvakhabova, Khrulkov, Sebe, Oseledets. Hyperbolic Vision Transformers. CVPR 2022. The clip is
    that of Guo, Wang, Chen, Yu. Clipped Hyperbolic Classifiers Are Super-Hyperbolic Classifiers. CVPR 2022.

    Args:
        curvature: c, above 0; the ball's is −c.
        clip: the length that longer rows are cut to.
    """

    curvature: float = 0.1
    clip: float = 2.3

    name = "hyperbolic"
    on_sphere = False
    identical = 0.0

    def __post_init__(self) -> None:
        require_positive(curvature=self.curvature, clip=self.clip)
        if sqrt(self.curvature) * self.clip > 10:
            raise ValueError(
                f"curvature={self.curvature} and clip={self.clip} reach too near to the ball's rim for "
                "float32: √curvature · clip must be at most 10"
            )

    def place(self, left: Side, right: Side | None) -> tuple[Side, Side | None]:
        """−t as one inner product."""
        rows, short, long = self._polar(left.rows)
        others, their_short, their_long = (rows, short, long) if right is None else self._polar(right.rows)
        return (
            Side(torch.cat([rows, -2 * short, -2 * long], dim=1)),
            Side(torch.cat([others, their_long, their_short], dim=1)),
        )

    def nearness(self, S: Tensor) -> Tensor:
        """``−d``; 0 with derivative 0 where two coincide up to rounding."""
        apart = -self._rounding(S) > S
        t = torch.where(apart, -S, 1)
        return torch.where(apart, -torch.log1p(t + (t * (t + 2)).sqrt()) / sqrt(self.curvature), 0)

    def nearness_and_slope(self, S: Tensor) -> tuple[Tensor, Tensor | int]:
        """The slope is ``1/√(c t(t + 2))``."""
        t = torch.threshold(-S, self._rounding(S), 0)
        root = torch.addcmul(2 * t, t, t).sqrt_()
        near = torch.log1p(t.add_(root)).div_(-sqrt(self.curvature))
        return near, root.mul_(sqrt(self.curvature)).reciprocal_().nan_to_num_(posinf=0.0)

    def _polar(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``sinh 2u x̂``, ``sinh²u`` and ``cosh²u`` of rows of any length, a zero row included."""
        root = sqrt(self.curvature)
        size = rows.detach().abs().amax(dim=1, keepdim=True).clamp_min(_SHORT)
        even = rows / size  # so that no square of a long row overflows
        length = torch.linalg.vector_norm(even, dim=1, keepdim=True)
        u = root * (length * size).clamp_max(self.clip)
        near_0 = u.detach() < _SHORT
        factor = torch.sinh(2 * u) / torch.where(near_0, 1, length)
        return (
            torch.where(near_0, 2 * root * rows, factor * even),
            torch.sinh(u).square(),
            torch.cosh(u).square(),
        )

    def _rounding(self, S: Tensor) -> float:
        """Up to which t two points may be the same."""
        return 64 * torch.finfo(S.dtype).eps


COSINE = Metric()
METRICS: dict[str, type[Metric]] = {
    kind.name: kind for kind in (Metric, SquaredEuclidean, Euclidean, EuclideanRaw, Hyperbolic, SignalToNoise)
}


def find_metric(metric: str | Mapping[str, Any] | Metric) -> Metric:
    """A metric by its name, by a table of its name and keywords, or as it is.

    Raises:
        ValueError: for an unknown name or keyword.

    >>> find_metric("euclidean").name
    'euclidean'
    >>> find_metric({"name": "hyperbolic", "curvature": 0.5})
    Hyperbolic(curvature=0.5, clip=2.3)
    """
    if isinstance(metric, Metric):
        return metric
    keywords = dict(metric) if isinstance(metric, Mapping) else {"name": metric}
    name = keywords.pop("name", None)
    if name not in METRICS:
        raise ValueError(f"metric={name!r} must be one of: {', '.join(METRICS)}")
    try:
        return METRICS[name](**keywords)
    except TypeError:
        raise ValueError(f"metric {name!r} does not take {', '.join(map(repr, keywords))}") from None


def through_slope_(weights: Tensor, slope: Tensor | int) -> Tensor:
    """Weights by the nearness become weights by S, in place."""
    return weights if isinstance(slope, int) and slope == 1 else weights.mul_(slope)


def minus_squared_distance(rows: Tensor, others: Tensor) -> tuple[Side, Side]:
    """Two sides whose inner products are ``−‖x − y‖²``: the rows, and two columns for their lengths."""
    short, long = (side.square().sum(dim=1, keepdim=True) for side in (rows, others))
    return (
        Side(torch.cat([sqrt(2) * rows, -short, -torch.ones_like(short)], dim=1)),
        Side(torch.cat([sqrt(2) * others, torch.ones_like(long), long], dim=1)),
    )


def _centred(rows: Tensor) -> Tensor:
    """Unit rows less the mean of their columns."""
    unit = normalise(rows)
    return unit - unit.mean(dim=1, keepdim=True)
