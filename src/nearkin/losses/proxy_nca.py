"""The Proxy-NCA loss."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from nearkin.losses.base import register, require_positive
from nearkin.losses.exponentials import Outside, log_sum_exp, log_sum_exp_
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import SCALE, space
from nearkin.losses.similarity import Measured


@register("proxy_nca")
class ProxyNCA(ProxyLoss):
    """Nearer to the own class's proxy than, softly, to the nearest of all others.

    Equation:
        L = mean over samples of −log(e^{−s‖z − v_y‖²} / Σ_{c≠y} e^{−s‖z − v_c‖²})

        The own proxy is not in the denominator, so the value may be negative.

    Source:
        Movshovitz-Attias, Toshev, Leung, Ioffe, Singh. No Fuss Distance Metric Learning using Proxies.
        ICCV 2017. arXiv:1703.07464.

    When to use:
        Historically the first proxy loss; ``proxy_nca_pp`` and ``proxy_anchor`` supersede it.

    Relations to other losses:
        ``proxy_nca_pp`` keeps the own proxy in the denominator, which makes it a cross-entropy;
        ``direction_proxy_nca`` adds a term.

    Args:
        num_classes: C; with a single class there is nothing to learn and the loss is 0.
        embedding_dim: D.
        scale: s; 9 stands for embeddings and proxies of length 3.
        generator: starts the proxies.

    Example:
        >>> loss = ProxyNCA(num_classes=3, embedding_dim=4)
        >>> loss(torch.eye(4), torch.tensor([0, 1, 2, 0])).shape
        torch.Size([])
    """

    search_space = space(scale=SCALE)

    tiling: ClassVar[Literal["rows", "columns"] | None] = "rows"
    own_in_sum = False

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        scale: float = 9.0,
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive(scale=scale)
        super().__init__(num_classes, embedding_dim, generator)
        self.scale = scale

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """‖z − v‖² = 2 − 2S, whose constant cancels."""
        own = labels.unsqueeze(1)
        if S.shape[1] == 1:
            return S.sum(dim=1) * 0
        near = 2 * self.scale * S
        others = torch.ones_like(S, dtype=torch.bool).scatter_(1, own, False)
        return log_sum_exp(near, others) - near.gather(1, own).squeeze(1)

    def own_logits(self, own: Tensor) -> Tensor:
        """Scaled."""
        return 2 * self.scale * own

    def other_logits(self, others: Tensor, own: Tensor) -> Tensor:
        """Scaled."""
        return 2 * self.scale * others

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """A proxy's weight is its share of the sum, the own proxy's a constant."""
        if S.shape[1] == 1:
            return Measured(S.new_zeros(()), torch.zeros_like(S))
        own, slope = labels.unsqueeze(1), 2 * self.scale
        others = S * slope
        own_logits = others.gather(1, own).squeeze(1)
        among_others, share = log_sum_exp_(others, 1, slope, Outside(columns=own))
        value = among_others.sub_(own_logits).mean()
        if not with_weights:
            return Measured(value)
        per_sample = slope / len(S)
        return Measured(value, others.mul_(share.mul_(per_sample)).scatter_(1, own, -per_sample))
