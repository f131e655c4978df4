"""The Proxy-NCA loss with direction regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.direction import direction
from nearkin.losses.exponentials import log_sum_exp
from nearkin.losses.proxy_nca import ProxyNCA
from nearkin.losses.search_space import MARGIN, SCALE, space
from nearkin.losses.similarity import Measured


@register("direction_proxy_nca")
class DirectionProxyNCA(ProxyNCA):
    """Proxy-NCA, pushing less from a proxy that lies in the own proxy's direction.

    Equation:
        L = mean over samples of −log(e^{−s‖z − v_y‖²} / Σ_{n≠y} e^{−s‖z − v_n‖² − γ cos(v_n − z, v_y − z)})

        The prose of the survey says the cosine is minimised; its equations subtract it, and that is built.

    Source:
        Mohan, Sankaran, Fedorishin, Setlur, Govindaraju. Moving in the Right Direction: A Regularization for
        Deep Metric Learning. CVPR 2020. Survey equation (35).

    When to use:
        To try on top of ``proxy_nca``.

    Relations to other losses:
        ``proxy_nca`` where γ is 0.

    Args:
        num_classes: C; with a single class there is nothing to learn and the loss is 0.
        embedding_dim: D.
        scale: s.
        gamma: γ; 0 is ``proxy_nca``.
        generator: starts the proxies.

    Example:
        >>> loss = DirectionProxyNCA(num_classes=3, embedding_dim=4)
        >>> loss(torch.eye(4), torch.tensor([0, 1, 2, 0])).shape
        torch.Size([])
    """

    search_space = space(scale=SCALE, gamma=MARGIN)

    tiling = None

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        scale: float = 9.0,
        gamma: float = 0.3,
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(gamma=gamma)
        super().__init__(num_classes, embedding_dim, scale=scale, generator=generator)
        self.gamma = gamma
        self.among_proxies = gamma > 0  # sample, own proxy and another proxy form a triangle

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """From ``(2B, C)`` similarities, the samples' above those of their own proxies."""
        if self.gamma == 0 or S.shape[1] == 1:
            return super().value(S[: len(labels)], labels)
        own, (S, between) = labels.unsqueeze(1), S.chunk(2)
        S_own = S.gather(1, own)
        exponents = 2 * self.scale * S - self.gamma * direction(S, S_own, between)
        others = torch.ones_like(S, dtype=torch.bool).scatter_(1, own, False)
        return log_sum_exp(exponents, others) - 2 * self.scale * S_own.squeeze(1)

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """Without direction the closed form of Proxy-NCA, else what autograd finds."""
        measure = super().measure if self.gamma == 0 else super(ProxyNCA, self).measure
        return measure(S, labels, with_weights)
