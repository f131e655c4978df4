"""Semi-hard mining: the hardest negative that is still farther than the positive."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from nearkin.mining.base import FAR, Triplets, first_equal_, only, places_of, register

_CHUNK = 1 << 19
"""Entries looked at together: they fit into a processor's cache."""

_FEW_POSITIVES = 32
"""Up to so many positives per anchor, looking along the row for each is quicker than sorting the row."""


@register("semi_hard")
@dataclass(frozen=True)
class SemiHard:
    """For each positive pair (a, p), the most similar negative n with ``S_an < S_ap``.

    A pair without such a negative is left out. Exact, in O(B² log B) time and O(B²) memory however many
    positive pairs there are.

    Schroff, Kalenichenko, Philbin, "FaceNet: A Unified Embedding for Face Recognition and Clustering",
    CVPR 2015.

    >>> S = torch.tensor([[1.0, 0.6, 0.7, 0.5, 0.2]])
    >>> same = torch.tensor([[False, True, False, False, False]])
    >>> SemiHard()(S, same, torch.tensor([[False, False, True, True, True]]))
    Triplets(anchor=tensor([0]), positive=tensor([1]), negative=tensor([3]))
    """

    def __call__(self, similarities: Tensor, positive: Tensor, negative: Tensor, **_: Any) -> Triplets:
        """Select at most one triplet per positive pair."""
        if similarities.dtype not in (torch.float32, torch.float64):
            similarities = similarities.float()
        anchor, column = places_of(positive)
        if not len(anchor):
            return Triplets(anchor, column, column)
        few = len(anchor) <= _FEW_POSITIVES * len(similarities)
        find = _look_along_rows if few else _look_up_in_sorted_rows
        found, exists = find(similarities, negative, anchor, column)
        kept = exists.nonzero().squeeze(1)
        return Triplets(*(index.index_select(0, kept) for index in (anchor, column, found)))


def _look_along_rows(S: Tensor, negative: Tensor, anchor: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """For each pair the wanted column and whether there is one; work grows with pairs × columns."""
    negatives = only(negative, S, FAR)
    bounds = S.view(-1).index_select(0, anchor * S.shape[1] + column).unsqueeze(1)
    values, columns = [], []
    pairs_at_once = max(1, _CHUNK // S.shape[1])
    for a, bound in zip(anchor.split(pairs_at_once), bounds.split(pairs_at_once), strict=True):
        rows = negatives.index_select(0, a)
        # Float arithmetic is much quicker than masks: what is not below the bound is moved far below it.
        too_near = torch.ge(rows, bound, out=torch.empty_like(rows))
        value = rows.sub_(too_near, alpha=2 * FAR).amax(dim=1, keepdim=True)
        values.append(value.squeeze(1))
        columns.append(first_equal_(rows, value))
    return torch.cat(columns), torch.cat(values) > -FAR / 2


def _look_up_in_sorted_rows(
    S: Tensor, negative: Tensor, anchor: Tensor, column: Tensor
) -> tuple[Tensor, Tensor]:
    """The same by sorting each row once and one binary search for each entry."""
    ordered, columns = torch.where(negative, S, inf).sort(dim=1)
    nearer_from = torch.searchsorted(ordered, S)[anchor, column]
    return columns[anchor, (nearer_from - 1).clamp_min(0)], nearer_from > 0
