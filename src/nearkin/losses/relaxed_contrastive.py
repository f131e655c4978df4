"""Degrees of likeness in place of labels, for distillation and for learning without labels."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import or_one, weighted
from nearkin.losses.similarity import normalise


def likeness(teacher: Tensor, sigma: float) -> Tensor:
    """``w_ij = e^{−‖t_i − t_j‖²/σ}`` of unit rows t: how much a teacher finds samples alike, ``(B, B)``.

    Args:
        teacher: its embeddings, ``(B, E)``, raw.
        sigma: σ.
    """
    units = normalise(teacher)
    squared = torch.cdist(units, units, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (-squared / sigma).exp()


def relative_distances(rows: Tensor) -> Tensor:
    """``d_ij = ‖x_i − x_j‖ / ((1/B) Σ_k ‖x_i − x_k‖)``, ``(B, B)``; 0 where all rows are one.

    Args:
        rows: embeddings, ``(B, D)``, raw.
    """
    D = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return D / or_one(D.mean(dim=1, keepdim=True))


def relaxed_contrastive(
    rows: Tensor, alike: Tensor, margin: float, *, weights: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """``(1/B) Σ_{i≠j} w_ij d_ij² + (1 − w_ij) [δ − d_ij]₊²`` on relative distances d.

    Kim, Kim, Cho, Kwak. Embedding Transfer with Label Relaxation for Improved Metric Learning. CVPR 2021.

    Args:
        rows: embeddings, ``(B, D)``, raw, of full precision.
        alike: w, ``(B, B)``, between 0 and 1.
        margin: δ.
        weights: how often each row counts, ``(B,)``.
        reduction: "mean", or "none" for values ``(B,)`` whose mean it is.

    >>> rows = torch.tensor([[0.0], [0.0], [1.0]])  # the first two should be apart
    >>> relaxed_contrastive(rows, torch.eye(3), margin=1.0)
    tensor(0.6667)
    """
    d = relative_distances(rows)
    terms = alike * d.square() + (1 - alike) * (margin - d).relu().square()
    others = 1 - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    values = weighted((terms * others).sum(dim=1), None if weights is None else weights.to(rows))
    return values if reduction == "none" else values.mean() if len(values) else values.sum()
