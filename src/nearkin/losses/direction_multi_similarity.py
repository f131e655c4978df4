"""The multi-similarity loss with direction regularisation."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.direction import direction
from nearkin.losses.exponentials import log_one_plus_sum_exp
from nearkin.losses.multi_similarity import MultiSimilarity
from nearkin.losses.pair import Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured
from nearkin.mining import Miner


@register("direction_multi_similarity")
class DirectionMultiSimilarity(MultiSimilarity):
    """The multi-similarity loss, pushing less where a negative lies in the hardest positive's direction.

    Equation:
        L = mean over all anchors i of
            (1/α) log(1 + Σ_{P_i} e^{−α(S − λ)}) + (1/β) log(1 + Σ_{N_i} e^{β(S − λ − γ cos)}),
        cos = cos(z_n − z_i, z_p − z_i), p the least similar of P_i

        The prose of the survey says the cosine is minimised; its equations subtract it, and that is built.

    Source:
        Mohan, Sankaran, Fedorishin, Setlur, Govindaraju. Moving in the Right Direction: A Regularization for
        Deep Metric Learning. CVPR 2020. Survey equation (34).

    When to use:
        To try on top of ``multi_similarity`` with the same batches.

    Relations to other losses:
        ``multi_similarity`` where γ is 0.

    Args:
        alpha: α, sharpness on the positive pairs.
        beta: β, sharpness on the negative pairs.
        margin: λ.
        epsilon: slack of its own miner.
        gamma: γ; 0 is ``multi_similarity``.
        mining: a miner's name or a miner, in place of its own.
        generator: for random miners.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
        >>> DirectionMultiSimilarity()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.3660)
    """

    among_references = True

    search_space = space(**MultiSimilarity.search_space, gamma=MARGIN)

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        margin: float = 0.5,
        epsilon: float = 0.1,
        gamma: float = 0.3,
        mining: str | Miner = "multi_similarity",
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(gamma=gamma)
        super().__init__(
            alpha=alpha, beta=beta, margin=margin, epsilon=epsilon, mining=mining, generator=generator
        )
        self.gamma = gamma

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """As without direction, but a negative is seen in the direction of the anchor's hardest positive."""
        if self.gamma == 0:
            return super().value(S, pairs)
        positive, negative = self.mine_masks(S, pairs)
        hardest = torch.where(pairs.positive, S, inf).argmin(dim=1)
        cosine = direction(S, S.gather(1, hardest.unsqueeze(1)), S[hardest])
        turn = self.gamma * cosine * pairs.positive.any(dim=1, keepdim=True)
        pull = log_one_plus_sum_exp(-self.alpha * (S - self.margin), positive) / self.alpha
        push = log_one_plus_sum_exp(self.beta * (S - self.margin - turn), negative) / self.beta
        return pairs.mean_over_anchors(pull + push)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """Without direction the closed form of multi-similarity, else what autograd finds."""
        measure = super().measure if self.gamma == 0 else super(MultiSimilarity, self).measure
        return measure(S, pairs, with_weights)
