"""The cosine that direction regularisation subtracts, in terms of similarities alone."""

from __future__ import annotations

from torch import Tensor

from nearkin.losses.similarity import inverse_distance


def direction(S_an: Tensor, S_ap: Tensor, S_pn: Tensor) -> Tensor:
    """``cos(z_n − z_a, z_p − z_a)`` of unit vectors; the cosine of a zero vector is 0, with derivative 0.

    With unit vectors it is ``(S_pn − S_an − S_ap + 1) / (D_an D_ap)``.

    Args:
        S_an: ``(A, R)``.
        S_ap: ``(A, 1)``.
        S_pn: ``(A, R)``.
    """
    return (S_pn - S_an - S_ap + 1) * inverse_distance(S_an) * inverse_distance(S_ap)
