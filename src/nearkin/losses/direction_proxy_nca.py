"""The Proxy-NCA loss with direction regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.direction import direction_
from nearkin.losses.proxy_nca import ProxyNCA
from nearkin.losses.search_space import MARGIN, SCALE, space
from nearkin.losses.similarity import (
    Measured,
    Outside,
    Side,
    inverse_distance,
    lengths,
    log_sum_exp_,
    through_similarities,
)


@register("direction_proxy_nca")
class DirectionProxyNCA(ProxyNCA):
    """Proxy-NCA, pushing less from a proxy that lies in the own proxy's direction.

    Equation:
        L = mean over samples of −log(e^{−s‖z − v_y‖²} / Σ_{n≠y} e^{−s‖z − v_n‖² − γ cos(v_n − z, v_y − z)})

        The prose of the survey says the cosine is minimised; its equations subtract it, and that is built.

    Source:
        Mohan, Sankaran, Fookes, Denman, Sridharan. Moving in the Right Direction: A Regularization for Deep
        Metric Learning. CVPR 2020. Survey equation (34).

    When to use:
        To try on top of ``proxy_nca``.

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

    def value(self, embeddings: Tensor, norms: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
        """Samples and, below them, their own proxies are compared with all proxies in one product."""
        if self.gamma == 0 or self.num_classes == 1:
            return super().value(embeddings, norms, proxies, labels)
        lengths_of_proxies = lengths(proxies)
        return through_similarities(
            lambda S, with_weights: self._measure_triangles(S, labels, with_weights),
            Side(
                torch.cat([embeddings, proxies[labels]]),
                torch.cat([norms, lengths_of_proxies[labels]]),
            ),
            Side(proxies, lengths_of_proxies),
        )

    def _measure_triangles(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """Value and weights from ``(2B, C)`` similarities: sample, own proxy and another form a triangle."""
        own, slope = labels.unsqueeze(1), 2 * self.scale
        S, between = S.chunk(2)
        S_own = S.gather(1, own)
        inverse = inverse_distance(S)
        inverse_own = inverse.gather(1, own)
        cosine, q = direction_(between.clone(), S, S_own, inverse, inverse_own)
        others = (S * slope).sub_(cosine, alpha=self.gamma)
        among_others, share = log_sum_exp_(others, 1, slope + self.gamma, Outside(columns=own))
        value = (among_others - slope * S_own.squeeze(1)).mean()
        if not with_weights:
            return Measured(value)
        others.mul_(share.div_(len(labels)))
        cosine.mul_(others)
        q.mul_(others)
        to_own = cosine.sum(dim=1, keepdim=True).mul_(inverse_own.square()).sub_(q.sum(dim=1, keepdim=True))
        to_own = to_own.mul_(-self.gamma).sub_(slope / len(labels))
        to_samples = others.mul_(slope).addcmul_(cosine, inverse.square_(), value=-self.gamma)
        to_samples.add_(q, alpha=self.gamma).scatter_(1, own, to_own)
        return Measured(value, torch.cat([to_samples, q.mul_(-self.gamma)]))
