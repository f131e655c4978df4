"""The SoftTriple loss."""

from __future__ import annotations

from math import cos, inf, radians, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from nearkin.losses.base import register, require_count, require_non_negative, require_positive
from nearkin.losses.exponentials import log_sum_exp_
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import MARGIN, SCALE, Range, space
from nearkin.losses.similarity import (
    Measured,
    Side,
    lengths,
    normalise,
    similarities,
    through_similarities,
)
from nearkin.losses.softmax import cross_entropy_


@register("soft_triple")
class SoftTriple(ProxyLoss):
    """Several centres per class, of which a sample belongs, softly, to the nearest; superfluous ones merge.

    Equation:
        L = mean over samples of −log softmax_c(λ(S_c − δ[c = y]))_y
            + τ · Σ_c Σ_{s<t} √(2 + 1e−5 − 2u_cs·u_ct) / (C·K·(K − 1)),
        S_c = Σ_k softmax_k(u_ck·z/γ) u_ck·z

        One value per sample: its own logarithm, and all of the second term.

    Source:
        Qian, Shang, Sun, Hu, Li, Jin. SoftTriple Loss: Deep Metric Learning Without Triplet Sampling.
        ICCV 2019. arXiv:1909.05235.

    When to use:
        Classes with several modes (poses, plumages). Its centres want a learning rate about 100 times the
        network's; for very many classes use two centres each.

    Relations to other losses:
        With one centre per class and no margin it is ``softmax`` with normalized; the centres are averaged
        softly where others take the nearest.

    Centres that the second term has merged are found by :meth:`distinct_centres` and left out by
    :meth:`pruned`, which changes no value and no gradient of the first term.

    Args:
        num_classes: C.
        embedding_dim: D.
        scale: λ.
        gamma: γ, how softly a sample chooses among the centres of a class.
        margin: δ.
        tau: τ, weight of the term that merges centres; without effect for K = 1.
        proxies_per_class: K.
        generator: starts the proxies.

    Example:
        >>> loss = SoftTriple(num_classes=3, embedding_dim=4, proxies_per_class=2)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    # Thesis, Table 15: its gamma is our 1/gamma, in steps of 10, and the rate of the centres is searched too.
    search_space = space(
        margin=MARGIN, scale=SCALE, gamma=Range(0.01, 1.0, step=10.0, log=True, inverse=True), tau=MARGIN
    )
    searches_rate = True

    log_copies: Tensor | None
    """Of a pruned loss, the logarithm of how many merged centres each one stands for, ``(C, K)``."""

    tiling = "rows"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        proxies_per_class: int = 10,
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive(scale=scale, gamma=gamma)
        require_non_negative(margin=margin, tau=tau)
        require_count(proxies_per_class=proxies_per_class)
        super().__init__(num_classes, embedding_dim, generator, proxies_per_class)
        self.register_buffer("log_copies", None)
        self.scale = scale
        self.gamma = gamma
        self.margin = margin
        self.tau = tau
        self.proxies_per_class = proxies_per_class

    def initial_proxies(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Uniform in ±1/√(C·K), as the authors start them."""
        return uniform_proxies(shape, generator)

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the soft maxima over centres."""
        per_class = self.by_class(S)
        own = one_hot(labels, per_class.shape[1]).to(S.dtype)
        return cross_entropy(self.scale * (per_class - self.margin * own), labels, reduction="none")

    def by_class(self, S: Tensor) -> Tensor:
        """The soft maximum over centres."""
        S = S.view(len(S), -1, self.proxies_per_class)
        chosen = S / self.gamma
        if self.log_copies is not None:
            if S.shape[1] != len(self.log_copies):
                raise ValueError(
                    f"a pruned SoftTriple compares all {len(self.log_copies)} classes at once, not "
                    f"{S.shape[1]}: use neither sample nor tile with it"
                )
            chosen = chosen + self.log_copies.to(S.dtype)
        return (torch.softmax(chosen, dim=2) * torch.where(chosen > -inf, S, 0)).sum(dim=2)

    def own_logits(self, own: Tensor) -> Tensor:
        """Scaled."""
        return self.scale * (own - self.margin)

    def other_logits(self, others: Tensor, own: Tensor) -> Tensor:
        """Scaled."""
        return self.scale * others

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The same in closed form; ∂S_c/∂S_ck = a_ck (1 + (S_ck − S_c)/γ)."""
        if self.log_copies is not None:
            return super().measure(S, labels, with_weights)
        # The first centres of all classes, then all second ones: sums over centres then run along whole rows.
        by_class = (len(S), -1, self.proxies_per_class)
        S = S.view(by_class).mT.contiguous()
        assigned = S / self.gamma
        share = log_sum_exp_(assigned, 1, 1 / self.gamma).share
        per_class = (assigned * S).sum(dim=1, keepdim=True).mul_(share)
        own = labels.unsqueeze(1)
        logits = per_class.squeeze(1) * self.scale
        logits.scatter_(1, own, logits.gather(1, own).sub_(self.scale * self.margin))
        bound = self.scale * (1 + self.margin)
        value, towards_classes = cross_entropy_(logits, own, bound, slope=self.scale / self.gamma)
        if not with_weights:
            return Measured(value)
        slope = share.mul_(towards_classes.unsqueeze(1))
        offset = per_class.neg_().add_(self.gamma).mul_(slope)
        return Measured(value, torch.addcmul(offset, S, slope).mul_(assigned).mT.flatten(1))

    def extra_term(self, proxies: Tensor) -> Tensor | None:
        """τ times the mean distance of the centres of a class."""
        if self.proxies_per_class == 1 or self.tau == 0 or self.log_copies is not None:
            return None
        centres = Side(proxies, lengths(proxies))
        if torch.compiler.is_compiling():
            return self.tau * _mean_distance(similarities(centres), False).value
        return self.tau * through_similarities(_mean_distance, centres)

    @torch.no_grad()
    def merged_into(self, *, degrees: float = 1.0) -> Tensor:
        """For each centre the first one of its class that it is the same as, ``(C, K)``.

        Two centres are the same if less than an angle lies between them, directly or by way of others.

        Args:
            degrees: the angle. The second term pulls centres of a class together with a constant force, so
                that those it has won meet within rounding and steps of the optimiser.
        """
        if not 0 < degrees < 90:
            raise ValueError(f"degrees={degrees} must be an angle above 0 and below 90")
        units = normalise(self.proxies.double())
        near = units @ units.mT > cos(radians(degrees))
        K = self.proxies_per_class
        near.diagonal(dim1=1, dim2=2).fill_(True)
        for _ in range(max(1, (K - 1).bit_length())):
            near = (near.double() @ near.double()) > 0  # by way of others: each time twice as many
        return near.byte().argmax(dim=2)

    def distinct_centres(self, *, degrees: float = 1.0) -> Tensor:
        """How many different centres each class has, ``(C,)``: K, less those that have merged.

        >>> loss = SoftTriple(num_classes=2, embedding_dim=2, proxies_per_class=3)
        >>> centres = [[[1.0, 0.0], [0.0, 1.0], [1.0, 0.001]], [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]]
        >>> _ = loss.proxies.data.copy_(torch.tensor(centres))
        >>> loss.distinct_centres()
        tensor([2, 1])
        """
        into = self.merged_into(degrees=degrees)
        return (into == torch.arange(into.shape[1], device=into.device)).sum(dim=1)

    def findings(self) -> tuple[str, ...]:
        """How many centres the classes have left."""
        if self.proxies_per_class == 1 or self._owned is not None:
            return ()
        counts = self.distinct_centres()
        mean, fewest, most = counts.double().mean().item(), int(counts.min()), int(counts.max())
        return (
            f"soft_triple: of {self.proxies_per_class} centres per class {mean:.1f} are distinct on average "
            f"(from {fewest} to {most})",
        )

    @torch.no_grad()
    def pruned(self, *, degrees: float = 1.0) -> SoftTriple:
        """The same loss with merged centres as one: as many as the class with most of them keeps.

        A centre that stands for n merged ones counts n times in the softmax over the centres of its class.
        Where merged centres coincide, value, weights and what a sample belongs to are exactly those of the
        loss with all of them; where they nearly do, one takes the place of all, the mean of their directions.
        The second term, which has done its work, is left out.

        Args:
            degrees: see :meth:`merged_into`.

        >>> loss = SoftTriple(num_classes=1, embedding_dim=2, proxies_per_class=3)
        >>> _ = loss.proxies.data.copy_(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]]))
        >>> small = loss.pruned()
        >>> small.proxies_per_class, small.log_copies.exp().tolist()
        (2, [[2.0, 1.0]])
        """
        into = self.merged_into(degrees=degrees)
        C, K, D = self.proxies.shape
        units = normalise(self.proxies)
        sums = torch.zeros_like(units).scatter_add_(1, into.unsqueeze(2).expand(C, K, D), units)
        copies = units.new_zeros(C, K).scatter_add_(1, into, units.new_ones(C, K))
        if self.log_copies is not None:
            copies = torch.zeros_like(copies).scatter_add_(1, into, self.log_copies.exp().to(copies))
        kept = int((copies > 0).sum(dim=1).max())
        order = (copies == 0).int().argsort(dim=1, stable=True)[:, :kept]
        small = SoftTriple(
            C,
            D,
            scale=self.scale,
            gamma=self.gamma,
            margin=self.margin,
            tau=self.tau,
            proxies_per_class=kept,
        ).to(self.proxies)
        alone = copies.gather(1, order)
        chosen = sums.gather(1, order.unsqueeze(2).expand(C, kept, D))
        # A class with fewer centres than another has empty places: they count 0 times, wherever they are.
        filler = units[:, :1].expand_as(chosen)
        small.proxies.copy_(torch.where(alone.unsqueeze(2) > 0, chosen, filler))
        small.log_copies = alone.log()
        small.reduction, small.validate = self.reduction, self.validate
        return small.train(self.training)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Make room for the counts of a pruned loss, or forget ours where there are none."""
        counts = state_dict.get(f"{prefix}log_copies")
        self.log_copies = None if counts is None else torch.empty_like(counts, device=self.proxies.device)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _mean_distance(S: Tensor, with_weights: bool) -> Measured:
    """``Σ_c Σ_{s<t} √(2 + 1e−5 − 2 S_st) / (C·K·(K − 1))`` of similarities ``(C, K, K)``.

    Each pair is counted in both orders, and half.
    """
    C, K, _ = S.shape
    half = 1 / (2 * C * K * (K - 1))
    counts = torch.full((K, K), half, dtype=S.dtype, device=S.device).fill_diagonal_(0)
    D = torch.rsub(S, 2 + 1e-5, alpha=2).sqrt()
    value = (D * counts).sum()
    return Measured(value, D.reciprocal_().mul_(-counts)) if with_weights else Measured(value)


def uniform_proxies(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Proxies ``(C, K, D)`` spread uniformly in ±1/√(C·K): kaiming, a = √5."""
    C, K, _ = shape
    return torch.rand(shape, generator=generator).mul_(2).sub_(1).div_(sqrt(C * K))
