"""Larger embeddings of the same network, trained beside the small one, as its teachers; for any loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from nearkin.losses.base import (
    Loss,
    check_embeddings,
    check_finite,
    require_count,
    require_non_negative,
    require_positive,
    runs_eagerly,
    weighted,
)
from nearkin.losses.modifiers.base import Modifier, call, own_generator, register, resized
from nearkin.losses.search_space import Range, space
from nearkin.losses.similarity import (
    Side,
    at_least_float32,
    full_precision,
    lengths,
    measure_by_autograd,
    normalise,
    similarities,
    through_similarities,
)
from nearkin.losses.wrapping import LossFunction


@register("s2sd")
class S2SD(Modifier):
    """Any loss, trained together with larger embeddings of the same features, which teach the small one.

    Equation:
        L = ½ (loss(x) + mean over branches b of loss_b(x_b))
            + ω T² · mean over b and rows of KL(σ(S_b/T) ‖ σ(S/T))
            + ω_f T² · mean over rows of KL(σ(S_f/T) ‖ σ(S/T))

        σ is the softmax of a row; S, S_b and S_f are the cosines within a batch of the embeddings, of a
        branch's and of the pooled features f. S_b and S_f are constants here. A branch is Linear–ReLU–Linear
        on f with the size d of the branch in between; the last term counts after ``feature_after`` batches.

    Source:
        Roth, Milbich, Ommer, Cohen, Ghassemi. Simultaneous Similarity-based Self-Distillation for Deep Metric
        Learning. ICML 2021. arXiv:2009.08348.

    When to use:
        When the embedding must be small and there is time to train: the network stays as it is, and search
        costs nothing more. The larger the branches in comparison with the embedding, the more there is to
        learn from them.

    Relations:
        Distil learns from a teacher that is there already, or from a moving average. Matryoshka trains small
        beginnings of a large embedding, without teaching them. Without sizes and feature weight it is the
        inner loss, bit for bit.

    The branches are parameters of the loss and are not in the trained model. They learn at the rate of the
    network's head. Each has a loss of its own, with its own proxies; a memory inside is one for each, too.

    Args:
        loss: the inner loss, one of ours or somebody's function.
        num_features: F, the size of the pooled features.
        sizes: d of the branches.
        weight: ω.
        temperature: T.
        feature_weight: ω_f.
        feature_after: training batches after which the features teach as well.
        generator: draws the branches' initial weights and proxies; seed 0 if there is none.

    Example:
        >>> from nearkin.losses import build
        >>> loss = S2SD(build("contrastive"), num_features=3, sizes=[8], weight=1.0)
        >>> features = torch.eye(3)
        >>> bool(loss(features[:, :2], torch.tensor([0, 0, 1]), features=features) > 0)
        True
    """

    order: ClassVar[int] = 50
    search_space = space(weight=Range(0.5, 100.0, log=True), feature_weight=Range(0.5, 100.0, log=True))

    steps: Tensor

    def __init__(
        self,
        loss: Loss | nn.Module | LossFunction,
        num_features: int,
        *,
        sizes: Sequence[int] = (512, 1024, 1536, 2048),
        weight: float = 50.0,
        temperature: float = 1.0,
        feature_weight: float = 50.0,
        feature_after: int = 1000,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(loss)
        require_count(num_features=num_features)
        for size in sizes:
            require_count(sizes=size)
        require_non_negative(weight=weight, feature_weight=feature_weight, feature_after=feature_after)
        require_positive(temperature=temperature)
        self.num_features = num_features
        self.sizes = tuple(sizes)
        self.weight = weight
        self.temperature = temperature
        self.feature_weight = feature_weight
        self.feature_after = feature_after
        drawn = own_generator(generator, "s2sd")
        self.branches = nn.ModuleList(_Branch(num_features, size, drawn) for size in self.sizes)
        self.branch_losses = nn.ModuleList(resized(self.loss, size, drawn) for size in self.sizes)
        self.register_buffer("steps", torch.tensor(0))
        self._steps = 0

    @runs_eagerly
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        features: Tensor | None = None,
        weights: Tensor | None = None,
        reduction: str | None = None,
        **keywords: Any,
    ) -> Tensor:
        """The loss of a batch and of its branches, and what these teach; a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)``, or what else the inner loss takes.
            features: what the network's head is given, ``(B, F)``.
            weights: how often each sample counts, ``(B,)``, not negative.
            reduction: "mean" or "none"; without it, the attribute of that name.
            keywords: what else the inner loss takes.
        """
        reduction = self.reduction if reduction is None else reduction
        passed = {**keywords, "weights": weights, "features": features}
        if reduction != "mean":
            passed["reduction"] = reduction
        features_teach = bool(self.feature_weight) and self._steps >= self.feature_after
        self._count_step()
        if not (self.sizes or features_teach):
            return self.inner(embeddings, labels, passed)
        check_embeddings(embeddings)
        pooled = self._checked(features, embeddings)
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            value = self.inner(rows, labels, passed)
            teachers: list[tuple[Tensor, float]] = []
            if self.sizes:
                outputs = [branch(pooled.to(rows.dtype)) for branch in self.branches]
                of_branches = [
                    call(own, output, labels, passed)  # type: ignore[arg-type]
                    for own, output in zip(self.branch_losses, outputs, strict=True)
                ]
                value = (value + torch.stack(of_branches).mean(dim=0)) / 2
                teachers += [(output, self.weight / len(outputs)) for output in outputs]
            if features_teach:
                teachers.append((pooled, self.feature_weight))
            return value + self._divergence(rows, teachers, weights, reduction)

    def _divergence(
        self, rows: Tensor, teachers: list[tuple[Tensor, float]], weights: Tensor | None, reduction: str
    ) -> Tensor:
        """The weighted sum of all divergences, a scalar or one value per row."""
        if not len(rows):
            return rows.sum(dim=1) * 0 if reduction == "none" else rows.sum() * 0
        T = self.temperature
        with torch.no_grad():
            taught = [
                ((units @ units.T / T).log_softmax(dim=1), share * T**2)
                for units, share in ((normalise(own.to(rows.dtype)), share) for own, share in teachers)
                if share
            ]

        def divergences(S: Tensor) -> Tensor:
            """Of each row."""
            log_q = (S / T).log_softmax(dim=1)
            total = log_q.sum(dim=1) * 0
            for log_p, share in taught:
                total = total + share * (log_p.exp() * (log_p - log_q)).sum(dim=1)
            return total

        side = Side(rows, lengths(rows))
        if reduction == "none" or weights is not None:
            values = weighted(divergences(similarities(side)), None if weights is None else weights.to(rows))
            return values if reduction == "none" else values.mean()
        return through_similarities(
            lambda S, with_weights: measure_by_autograd(lambda S: divergences(S).mean(), S, (), with_weights),
            side,
        )

    def _checked(self, features: Tensor | None, embeddings: Tensor) -> Tensor:
        if features is None:
            raise ValueError("s2sd needs what the network's head is given: pass features=, (B, F)")
        check_embeddings(features, "features")
        if features.shape != (len(embeddings), self.num_features):
            raise ValueError(
                f"features have shape {tuple(features.shape)}, not ({len(embeddings)}, {self.num_features}) "
                "as num_features says"
            )
        pooled = at_least_float32(features)
        if self.validate:
            check_finite(pooled.detach(), "features")
        return pooled

    def _count_step(self) -> None:
        if self.training:
            self._steps += 1
            self.steps += 1

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """The counter is kept on the host as well, so that no step has to wait for the device."""
        super()._load_from_state_dict(*arguments)
        self._steps = int(self.steps)

    def takes(self, keyword: str) -> bool:
        """What ``forward`` names and the inner loss takes; but no references from a memory inside of it."""
        return not keyword.startswith("reference") and super().takes(keyword)

    def resized(self, embedding_dim: int, generator: torch.Generator) -> Loss:
        """The inner loss alone: branches need no branches."""
        return resized(self.loss, embedding_dim, generator)

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """The branches' layers say that they learn as the network's head does."""
        groups = super().param_groups(lr)
        return [
            {**group, "as_head": True} if str(group["name"]).startswith("branches.") else group
            for group in groups
        ]

    def extra_repr(self) -> str:
        """The constructor's keywords."""
        return (
            f"num_features={self.num_features}, sizes={self.sizes}, weight={self.weight}, "
            f"temperature={self.temperature}, feature_weight={self.feature_weight}, "
            f"feature_after={self.feature_after}"
        )


class _Branch(nn.Module):
    """Linear, ReLU, Linear, in the precision of what comes in."""

    def __init__(self, num_features: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            self.first = nn.Linear(num_features, size)
            self.second = nn.Linear(size, size)

    def forward(self, features: Tensor) -> Tensor:
        return self._through(self.second, self._through(self.first, features).relu())

    @staticmethod
    def _through(layer: nn.Linear, rows: Tensor) -> Tensor:
        return linear(rows, layer.weight.to(rows.dtype), layer.bias.to(rows.dtype))
