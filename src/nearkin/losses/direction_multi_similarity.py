"""The multi-similarity loss with direction regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.direction import direction_
from nearkin.losses.multi_similarity import MultiSimilarity
from nearkin.losses.pair import Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured, Outside, inverse_distance, log_one_plus_sum_exp_
from nearkin.mining import Miner
from nearkin.mining.base import FAR, first_equal_, only


@register("direction_multi_similarity")
class DirectionMultiSimilarity(MultiSimilarity):
    """The multi-similarity loss, pushing less where a negative lies in the hardest positive's direction.

    Equation:
        L = mean over all anchors i of
            (1/α) log(1 + Σ_{P_i} e^{−α(S − λ)}) + (1/β) log(1 + Σ_{N_i} e^{β(S − λ − γ cos)}),
        cos = cos(z_n − z_i, z_p − z_i), p the least similar of P_i

        The prose of the survey says the cosine is minimised; its equations subtract it, and that is built.

    Source:
        Mohan, Sankaran, Fookes, Denman, Sridharan. Moving in the Right Direction: A Regularization for Deep
        Metric Learning. CVPR 2020. Survey equation (35).

    When to use:
        To try on top of ``multi_similarity`` with the same batches.

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

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """As without direction, but a negative weighs on three similarities of its triangle."""
        if self.gamma == 0:
            return super().measure(S, pairs, with_weights)
        positive, negative = self.mine_pairs(S, pairs)
        candidates = only(pairs.indicators(S).positive, S, FAR)
        S_ap = candidates.amin(dim=1, keepdim=True)
        hardest = first_equal_(candidates, S_ap)
        has_positive = S_ap < FAR / 2
        S_ap = torch.where(has_positive, S_ap, 0)
        inverse = inverse_distance(S)
        inverse_ap = inverse.gather(1, hardest.unsqueeze(1)).mul_(has_positive)
        alpha, beta, margin = self.alpha, self.beta, self.margin
        # Cosine and q times −βγ, as they stand in the exponents: what the weights lack is then 1/β.
        turn, q = direction_(S.index_select(0, hardest), S, S_ap, inverse, inverse_ap * (-beta * self.gamma))
        pulls = torch.mul(S, -alpha, out=candidates)  # not needed any more
        pushes = torch.add(turn, S, alpha=beta)
        most = beta * (1 + self.gamma)
        far, pull = log_one_plus_sum_exp_(pulls, 1, alpha, Outside(positive), offset=alpha * margin)
        near, push = log_one_plus_sum_exp_(pushes, 1, most, Outside(negative), offset=-beta * margin)
        value = far.div_(alpha).add_(near, alpha=1 / beta).sum().div_(pairs.anchors)
        if not with_weights:
            return Measured(value)
        pushes.mul_(push.div_(pairs.anchors))
        turn.mul_(pushes)
        q.mul_(pushes)
        by_ap = turn.sum(dim=1, keepdim=True).mul_(inverse_ap.square()).sub_(q.sum(dim=1, keepdim=True))
        weights = pushes.addcmul_(pulls, pull, value=-1 / pairs.anchors)
        weights.addcmul_(turn, inverse.square_(), value=1 / beta)
        weights.sub_(q, alpha=1 / beta).index_add_(0, hardest, q, alpha=1 / beta)
        weights.scatter_add_(1, hardest.unsqueeze(1), by_ap.div_(beta))
        return Measured(value, weights)
