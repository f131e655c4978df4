"""The ProxyNCA++ loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nearkin.losses.base import register, require_positive
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import TEMPERATURE, space
from nearkin.losses.similarity import Measured
from nearkin.losses.softmax import cross_entropy_


@register("proxy_nca_pp")
class ProxyNCAPlusPlus(ProxyLoss):
    """The probability of the own proxy among all proxies, sharpened by a temperature.

    Equation:
        L = mean over samples of −log softmax_c(−‖z − v_c‖²/T)_y

    Source:
        Teh, DeVries, Taylor. ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis.
        ECCV 2020. arXiv:2004.01113.

    When to use:
        A strong and simple proxy loss. The paper pairs it with max pooling, layer normalisation and proxies
        that learn much faster than the network.

    Relations to other losses:
        ``softmax`` with normalized and scale 2/T: between unit vectors the squared distance is 2 − 2S.
        ``nca`` is its form without proxies.

    Args:
        num_classes: C.
        embedding_dim: D.
        temperature: T.
        generator: starts the proxies.

    Example:
        >>> loss = ProxyNCAPlusPlus(num_classes=3, embedding_dim=4)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(temperature=TEMPERATURE)

    tiling = "rows"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        temperature: float = 1 / 9,
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive(temperature=temperature)
        super().__init__(num_classes, embedding_dim, generator)
        self.temperature = temperature

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """‖z − v‖² = 2 − 2S, whose constant cancels."""
        return cross_entropy(2 * S / self.temperature, labels, reduction="none")

    def own_logits(self, own: Tensor) -> Tensor:
        """Scaled."""
        return 2 / self.temperature * own

    def other_logits(self, others: Tensor, own: Tensor) -> Tensor:
        """Scaled."""
        return 2 / self.temperature * others

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The gradient of a cross-entropy, scaled."""
        slope = 2 / self.temperature
        return Measured(*cross_entropy_(S * slope, labels.unsqueeze(1), bound=slope, slope=slope))
