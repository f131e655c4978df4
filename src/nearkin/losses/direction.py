"""The cosine that direction regularisation subtracts, in terms of similarities alone.

With unit vectors, ``cos(z_n − z_a, z_p − z_a) = N q`` where ``N = S_pn − S_an − S_ap + 1`` and
``q = 1/(D_an D_ap)``. Its derivatives are ``q`` by S_pn, ``cos/D_an² − q`` by S_an and ``cos/D_ap² − q`` by
S_ap. The cosine of a zero vector is 0, and so are its derivatives: there 1/D is taken as 0.
"""

from __future__ import annotations

from torch import Tensor


def direction_(
    S_pn: Tensor, S_an: Tensor, S_ap: Tensor, inverse_an: Tensor, inverse_ap: Tensor
) -> tuple[Tensor, Tensor]:
    """The cosine at a between the ways to n and to p, in the place of ``S_pn``, and q.

    Args:
        S_pn: ``(A, R)``, overwritten.
        S_an: ``(A, R)``.
        S_ap: ``(A, 1)``.
        inverse_an: 1/D_an ``(A, R)``, or 0.
        inverse_ap: 1/D_ap ``(A, 1)``, or 0; times any factor, which the cosine and q then have too.
    """
    q = inverse_an * inverse_ap
    return S_pn.sub_(S_an).sub_(S_ap - 1).mul_(q), q
