"""The PNP losses: penalise the negatives before a positive."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_one_of, require_positive
from nearkin.losses.ranks import OfRanks, RankingLoss
from nearkin.losses.search_space import Choices, Range, space
from nearkin.losses.smooth_ap import RANK_TEMPERATURE

FORMS = ("O", "Ds", "Dq", "Iu")


@register("pnp")
class PNP(RankingLoss):
    """Penalise each positive by the negatives that stand before it, whatever the other positives do.

    Equation:
        L = mean over queries with a positive of (1/|P_i|) Σ_{p∈P_i} f(R⁻(i,p))
        R⁻(i,p) = Σ_{n∈N_i} σ_τ(S_in − S_ip)

        f(t) = t with form="O", log(1 + t) with "Ds", 1 − (1 + t)^{−α} with "Dq", (1 + t) log(1 + t) with "Iu"

        One value per sample: its own term times B / the number of queries with a positive.

    Source:
        Li, Min, Song, Zhu, Kang, Wei, Wei, Jiang. Rethinking the Optimization of Average
        Precision: Only Penalizing Negative Instances before Positive Ones is Enough. AAAI 2022.
        arXiv:2102.04640. (There a query is its own first positive; here it is none.)

    When to use:
        In the place of ``smooth_ap``, with a say in which positives matter: "Dq" and "Ds" let go of positives
        that are far behind (noisy labels, several modes per class), "O" and "Iu" insist on them.

    Relations to other losses:
        ``smooth_ap`` less its competition between positives: with one positive per query and form="Dq", α = 1
        it is that loss.

    Args:
        form: "O", "Ds", "Dq" or "Iu".
        temperature: τ, of a step between two cosines.
        alpha: α of "Dq".

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> PNP()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.9375)
    """

    search_space = space(
        form=Choices(*FORMS), temperature=RANK_TEMPERATURE, alpha=Range(1.0, 16.0, step=2.0, log=True)
    )

    def __init__(self, *, form: str = "Dq", temperature: float = 0.01, alpha: float = 4.0) -> None:
        require_one_of(FORMS, form=form)
        require_positive(temperature=temperature, alpha=alpha)
        super().__init__()
        self.form = form
        self.temperature = temperature
        self.alpha = alpha

    def of_ranks(
        self, among_positives: Tensor, among_negatives: Tensor, present: Tensor, counts: Tensor
    ) -> OfRanks:
        """The mean penalty of a query's positives; R⁺ has no part in it."""
        share = present / counts.unsqueeze(1)
        penalties, slopes = self._penalty(among_negatives)
        return OfRanks((penalties * share).sum(dim=1), 0.0, slopes * share)

    def _penalty(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """F and its derivative."""
        if self.form == "O":
            return t, torch.ones_like(t)
        log = t.log1p()
        if self.form == "Ds":
            return log, 1 / (1 + t)
        if self.form == "Iu":
            return (1 + t) * log, 1 + log
        return -torch.expm1(-self.alpha * log), self.alpha * torch.exp(-(self.alpha + 1) * log)
