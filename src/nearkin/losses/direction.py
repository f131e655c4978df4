"""The cosine that direction regularisation subtracts, in terms of similarities alone."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Direction(NamedTuple):
    """cos(z_n − z_a, z_p − z_a) and its derivatives by the three similarities between a, p and n.

    With unit vectors ``(z_n − z_a)·(z_p − z_a) = S_pn − S_an − S_ap + 1`` and ``‖z_n − z_a‖ = D_an``. The
    cosine of a zero vector is 0, and so are its derivatives.
    """

    cosine: Tensor
    by_pn: Tensor
    by_an: Tensor
    by_ap: Tensor


def direction(S_an: Tensor, S_ap: Tensor, S_pn: Tensor, inverse_an: Tensor, inverse_ap: Tensor) -> Direction:
    """The cosine at anchor a between the ways to n and to p; arguments broadcast, inverses are 1/D or 0."""
    by_pn = inverse_an * inverse_ap
    cosine = (S_pn - S_an).sub_(S_ap - 1).mul_(by_pn)
    # With N the inner product and q = 1/(D_an D_ap): ∂(Nq)/∂S_an = q (N/D_an² − 1) = cos/D_an² − q
    by_an = (cosine * inverse_an.square()).sub_(by_pn)
    by_ap = (cosine * inverse_ap.square()).sub_(by_pn)
    return Direction(cosine, by_pn, by_an, by_ap)
