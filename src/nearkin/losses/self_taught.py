"""Self-Taught Metric Learning: what a moving average of the network finds alike, with its context."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from nearkin.losses.base import (
    Loss,
    check_embeddings,
    check_finite,
    or_one,
    require_count,
    require_positive,
    runs_eagerly,
)
from nearkin.losses.relaxed_contrastive import likeness, relative_distances, relaxed_contrastive
from nearkin.losses.similarity import at_least_float32, full_precision


class SelfTaught(Loss):
    """A teacher, the moving average of the network, says how much images are alike; no labels.

    Equation:
        L = ½ (R(x, W) + R(g, W)) + (1/B) Σ_i KL(sg σ(−d^g_i) ‖ σ(−d^x_i))

        x are the network's embeddings and g those of a wider head on the same features; d are distances
        divided by their row's mean, σ is the softmax of a row, and
        R(x, W) = (1/B) Σ_{i≠j} W_ij d_ij² + (1 − W_ij) [δ − d_ij]₊²

        W = ½ (W^P + W^C), constants, of the teacher's embeddings t by its own wide head:
        W^P_ij = e^{−‖t_i − t_j‖²/σ} of unit rows, 1 for two views of one image;
        W^C as in :func:`contextual_likeness`.

    Source:
        Kim, Kim, Cho, Kwak. Self-Taught Metric Learning without Labels. CVPR 2022. arXiv:2205.01903.
        (Its code divides R by B (B − 1), and uses the 1 of two views only to find neighbours.)

    When to use:
        Where there are images and no labels: with two views of every image, and batches in which images meet
        their nearest neighbours (the sampler ``neighbours``). R grows with the batch: beside a loss with
        labels, a weight of 0.01 is about as much as that loss.

    Relations to other losses:
        The modifier ``distil`` is R with W^P alone, beside any loss with labels. S2SD teaches from wider
        heads in a similar way.

    Args:
        num_features: F, the size of the features that heads are given.
        wide: size of the wide head; 1,024.
        sigma: σ of W^P.
        margin: δ.
        neighbours: k of W^C, in images: its lists have k times as many rows as an image has views, with the
            row itself among them.
        decay: of the teacher's moving average, of the network (which a training keeps) and of the wide head
            (kept here, and moved before every batch): d = min(decay, (1 + t)/(10 + t)) after t batches.
        generator: draws the wide head's first weights; seed 0 if there is none.

    Example:
        >>> loss = SelfTaught(num_features=3, wide=4, neighbours=1)
        >>> features = torch.eye(3).repeat_interleave(2, dim=0)
        >>> images = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> bool(loss(features, images, features=features, teacher_features=features) > 0)
        True
    """

    stops_gradients: ClassVar[bool] = True

    teacher_weight: Tensor
    teacher_bias: Tensor
    steps: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        wide: int = 1024,
        sigma: float = 3.0,
        margin: float = 1.0,
        neighbours: int = 10,
        decay: float = 0.999,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        require_count(num_features=num_features, wide=wide, neighbours=neighbours)
        require_positive(sigma=sigma, margin=margin)
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must be at least 0 and below 1")
        self.num_features, self.wide = num_features, wide
        self.sigma, self.margin, self.neighbours = sigma, margin, neighbours
        self.decay = self.teacher_decay = decay
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0 if generator is None else int(torch.randint(2**62, (), generator=generator)))
            self.head = nn.Linear(num_features, wide)
        self.register_buffer("teacher_weight", self.head.weight.detach().clone())
        self.register_buffer("teacher_bias", self.head.bias.detach().clone())
        self.register_buffer("steps", torch.tensor(0))

    @runs_eagerly
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        features: Tensor | None = None,
        teacher_features: Tensor | None = None,
        reduction: str | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: which image each row shows, ``(B,)``: the views of an image have the same number. Classes
                are not asked for.
            features: what the network's head is given, ``(B, F)``.
            teacher_features: the same by the moving average of the network.
            reduction: "mean" or "none"; without it, the attribute of that name.
        """
        reduction = self.reduction if reduction is None else reduction
        check_embeddings(embeddings)
        self._move_teacher()
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            wide = self._through(self._checked(features, rows, "features"), self.head.weight, self.head.bias)
            if not len(rows):
                return rows.sum(dim=1) * 0 if reduction == "none" else rows.sum() * 0
            with torch.no_grad():
                taught = self._checked(teacher_features, rows, "teacher_features")
                alike = self.alike(self._through(taught, self.teacher_weight, self.teacher_bias), labels)
            values = self._divergence(rows, wide)
            for own in (rows, wide):
                values = values + relaxed_contrastive(own, alike, self.margin, reduction="none") / 2
            return values if reduction == "none" else values.mean()

    def alike(self, teacher: Tensor, images: Tensor) -> Tensor:
        """W ``(B, B)``, between 0 and 1.

        Args:
            teacher: the teacher's embeddings, ``(B, E)``, raw.
            images: which image each row shows, ``(B,)``.
        """
        pairwise = likeness(teacher, self.sigma)
        pairwise = pairwise.masked_fill(images[:, None] == images, 1.0)
        views = -(-len(images) // max(len(images.unique()), 1))
        return (pairwise + contextual_likeness(pairwise, self.neighbours * views)) / 2

    @staticmethod
    def _divergence(rows: Tensor, wide: Tensor) -> Tensor:
        """How far the rows' distances are from those of the wide head, ``(B,)``."""
        log_q = (-relative_distances(rows)).log_softmax(dim=1)
        log_p = (-relative_distances(wide.detach())).log_softmax(dim=1)
        return (log_p.exp() * (log_p - log_q)).sum(dim=1)

    @torch.no_grad()
    def _move_teacher(self) -> None:
        """Take in the wide head as the last step left it."""
        if not self.training:
            return
        decay = ((1 + self.steps) / (10 + self.steps)).clamp(max=self.decay)
        self.teacher_weight.lerp_(self.head.weight, 1 - decay.to(self.head.weight))
        self.teacher_bias.lerp_(self.head.bias, 1 - decay.to(self.head.bias))
        self.steps += 1

    def _checked(self, features: Tensor | None, rows: Tensor, what: str) -> Tensor:
        if features is None:
            raise ValueError(f"self-taught learning needs {what}=, (B, F): what a head is given")
        check_embeddings(features, what)
        if features.shape != (len(rows), self.num_features):
            raise ValueError(
                f"{what} have shape {tuple(features.shape)}, not ({len(rows)}, {self.num_features})"
            )
        if self.validate:
            check_finite(features.detach(), what)
        return features.to(rows.dtype)

    @staticmethod
    def _through(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear(features, weight.to(features.dtype), bias.to(features.dtype))

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """The wide head says that it learns as the network's head does."""
        return [{**group, "as_head": True} for group in super().param_groups(lr)]


def contextual_likeness(pairwise: Tensor, neighbours: int) -> Tensor:
    """How much rows of a batch are alike by their neighbours, ``(B, B)``, between 0 and 1.

    N_i are the k rows most alike to row i, itself among them, and R_i those of them that have i among theirs.
    The share of common ones, ``|R_i ∩ R_j| / |R_i|`` for j in R_i and 0 for others, is averaged over the
    nearer half of N_i in the place of i, and then over both orders of i and j.

    Args:
        pairwise: how much rows are alike, ``(B, B)``.
        neighbours: k; all rows where they are fewer.

    >>> alike = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    >>> contextual_likeness(alike, 2)
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 1.]])
    """
    k = min(neighbours, len(pairwise))
    nearest = pairwise.topk(k, dim=1).indices
    chosen = torch.zeros_like(pairwise).scatter_(1, nearest, 1.0)
    mutual = chosen * chosen.mT
    share = mutual * (mutual @ mutual.mT) / or_one(mutual.sum(dim=1, keepdim=True))
    half = max(round(k / 2), 1)
    nearer = torch.zeros_like(pairwise).scatter_(1, nearest[:, :half], 1.0 / half)
    averaged = nearer @ share
    return (averaged + averaged.mT) / 2
