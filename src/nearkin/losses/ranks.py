"""The core of the ranking losses: how many samples stand before each positive, softly.

Of a query i with positives, the rank of positive p is ``R = R⁺ + R⁻``: one and a soft step for every other
positive, and a soft step for every negative, that is nearer than p. A query's loss is a function of the ranks
of its positives, so that it depends on its own row of S alone, and value and gradient of a row need no other.

There are B·(m − 1)·B steps for classes of m samples. They are taken for some queries at a time, and what is
kept of them is one row of weights per query: memory grows with B², never with B³.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearkin.losses.base import or_one
from nearkin.losses.exponentials import without_underflow_
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.similarity import Measured, refuse_second_derivative
from nearkin.mining.base import places_in_rows, places_of

_TILE = 2**18
"""How many steps are taken at a time: as many as a processor's cache holds."""


class OfRanks(NamedTuple):
    """What a loss makes of the ranks of the positives of Q queries, at most M each.

    Attributes:
        values: the loss of each query, ``(Q,)``.
        by_positives: its derivative by R⁺ of each positive, ``(Q, M)``, or 0.
        by_negatives: the same by R⁻.
    """

    values: Tensor
    by_positives: Tensor | float
    by_negatives: Tensor


class Positives(NamedTuple):
    """The positives of some queries, as many places for each; a query may have fewer.

    Attributes:
        queries: which rows of S, ``(Q,)``.
        columns: which columns of S, ``(Q, M)``; 0 where there is none.
        present: 1 where there is one, else 0; ``(Q, M)``.
        counts: how many there are, ``(Q,)``.
    """

    queries: Tensor
    columns: Tensor
    present: Tensor
    counts: Tensor


class Step(NamedTuple):
    """A soft step at some differences.

    Attributes:
        values: 0 far below 0, 1 far above.
        slopes: its derivative; ``None`` where it was not asked for.
    """

    values: Tensor
    slopes: Tensor | None


def sigmoid_step_(differences: Tensor, temperature: float, with_slopes: bool) -> Step:
    """``σ_τ(t) = 1 / (1 + e^{−t/τ})``; overwrites the differences.

    >>> sigmoid_step_(torch.tensor([0.0]), 0.5, True)
    Step(values=tensor([0.5000]), slopes=tensor([0.5000]))
    """
    values = without_underflow_(differences.div_(temperature).sigmoid_())
    if not with_slopes:
        return Step(values, None)
    return Step(values, torch.addcmul(values, values, values, value=-1).div_(temperature))


class RankingLoss(PairLoss):
    """A loss of the ranks of each query's positives, meant over the queries that have one.

    A subclass says what it makes of the ranks, in :meth:`of_ranks`; value and weights ∂L/∂S are then in
    closed form. It may take other steps than the sigmoid.

    Attributes:
        temperature: τ of the sigmoid.
    """

    temperature: float

    def of_ranks(
        self, among_positives: Tensor, among_negatives: Tensor, present: Tensor, counts: Tensor
    ) -> OfRanks:
        """The loss of each query and its derivatives.

        Args:
            among_positives: R⁺ of each positive, at least 1, ``(Q, M)``.
            among_negatives: R⁻ of each positive, ``(Q, M)``.
            present: 1 where a query has a positive, else 0, ``(Q, M)``; what is given for the others does
                not matter, as long as it is finite.
            counts: |P_i|, ``(Q,)``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define of_ranks")

    def step_over_positives_(self, differences: Tensor, with_slopes: bool) -> Step:
        """How far another positive stands before this one; may overwrite the differences of similarity."""
        return sigmoid_step_(differences, self.temperature, with_slopes)

    def step_over_negatives_(self, differences: Tensor, with_slopes: bool) -> Step:
        """How far a negative stands before this positive; −∞ stands for none, and must give 0."""
        return sigmoid_step_(differences, self.temperature, with_slopes)

    @property
    def traceable(self) -> bool:
        """Ranks are found for some queries at a time, those with as many positives together."""
        return False

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """One value for each query, differentiable by its row of weights."""
        values: Tensor = _OfRows.apply(self, S, pairs.positive, pairs.negative)  # type: ignore[no-untyped-call]
        return pairs.mean_over_anchors(values, among=pairs.positive.any(dim=1))

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """The mean over the queries, and over their rows of weights."""
        values, weights = self.of_rows(S, pairs.positive, pairs.negative, with_weights)
        queries = or_one(pairs.positive.any(dim=1).sum().to(S.dtype))
        return Measured(values.sum() / queries, None if weights is None else weights.div_(queries))

    def of_rows(
        self, S: Tensor, positive: Tensor, negative: Tensor, with_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The loss of each row of S ``(B, R)``, 0 without a positive, and its derivative by that row."""
        values = S.new_zeros(len(S))
        weights = torch.zeros_like(S) if with_weights else None
        if not negative.any():  # then no order is wrong
            return values, weights
        for some in tiles(positive, S):
            rows = S.index_select(0, some.queries)
            near = rows.gather(1, some.columns)
            rows.masked_fill_(~negative.index_select(0, some.queries), -torch.inf)
            before = self.step_over_negatives_(rows.unsqueeze(1) - near.unsqueeze(2), with_weights)
            others = self.step_over_positives_(_between(near, some.present), with_weights)
            found = self.of_ranks(
                others.values.sum(dim=2).add_(1), before.values.sum(dim=2), some.present, some.counts
            )
            values[some.queries] = found.values
            if weights is not None:
                weights[some.queries] = _weights_of(found, before, others, some)
        return values, weights


def tiles(positive: Tensor, S: Tensor) -> Iterator[Positives]:
    """All queries with a positive, some at a time, those with as many positives together."""
    query, column = places_of(positive)
    counts = torch.bincount(query, minlength=len(S))
    place = places_in_rows(query, len(S))
    first = counts.cumsum(0) - counts
    ordered, order = counts.sort(stable=True)
    start = int((ordered == 0).sum())
    sizes = ordered.tolist()
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * sizes[stop] * S.shape[1] <= _TILE:
            stop += 1
        queries = order[start:stop]
        most = sizes[stop - 1]
        there = torch.arange(most, device=S.device) < counts[queries].unsqueeze(1)
        entries = (first[queries].unsqueeze(1) + place.new_tensor(range(most))).clamp_max_(len(column) - 1)
        columns = torch.where(there, column[entries], 0)
        yield Positives(queries, columns, there.to(S.dtype), ordered[start:stop].to(S.dtype))
        start = stop


def _between(near: Tensor, present: Tensor) -> Tensor:
    """How much nearer each positive ``(Q, 1, M)`` is than each ``(Q, M, 1)``; −∞ for itself and for none."""
    nearer = near.masked_fill(present == 0, -torch.inf).unsqueeze(1) - near.unsqueeze(2)
    nearer.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    return nearer


def _weights_of(found: OfRanks, before: Step, others: Step, some: Positives) -> Tensor:
    """The derivative of each query's loss by its row of S: a nearer sample lowers p, a nearer p raises it."""
    assert before.slopes is not None
    by_negatives = found.by_negatives * some.present
    rows = torch.bmm(by_negatives.unsqueeze(1), before.slopes).squeeze(1)
    by_positives = before.slopes.sum(dim=2).mul_(by_negatives).neg_()
    if others.slopes is not None and isinstance(found.by_positives, Tensor):
        among = others.slopes * (found.by_positives * some.present).unsqueeze(2)
        by_positives.add_(among.sum(dim=1)).sub_(among.sum(dim=2))
    return rows.scatter_add_(1, some.columns, by_positives)


class _OfRows(torch.autograd.Function):
    """The loss of each row of S, differentiable once; what is kept is the weights."""

    @staticmethod
    def forward(ctx: Any, loss: RankingLoss, S: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        values, weights = loss.of_rows(S, positive, negative, ctx.needs_input_grad[1])
        ctx.save_for_backward(weights)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (weights,) = ctx.saved_tensors
        return None, gradient.unsqueeze(1) * weights, None, None
