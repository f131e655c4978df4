"""From which similarity on two samples are taken for the same: chosen for a wanted false-accept rate.

All pairs count, and neither the pairs nor their similarities are ever held: a tile of the similarity matrix
at a time is counted into histograms. Three passes over the upper triangle: where the wanted share of the
negative pairs lies, the same within that bin (finer than float32 can tell two similarities apart), and how
many pairs of which classes are accepted at a grid of similarities. The last is all that the intervals need.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.evaluation.inputs import checked_embeddings, checked_labels, unit_rows
from nearkin.evaluation.spread import Interval, check_draws, drawn_classes, interval_ends, pair_times
from nearkin.evaluation.verification import VerificationScores

_TILE = 1024
_BINS = 2**16  # of one histogram; two of them, one inside a bin of the other, are finer than float32
# Somewhat more than cosines reach, and such that round numbers are no edges: ties stay together.
_LOWEST, _HIGHEST = -1.00001, 1.00002
_WIDTH = (_HIGHEST - _LOWEST) / _BINS
_ROUND_OFF = 1e-6
_DIGITS = 10**5
_GRID = 128  # similarities at which accepted pairs are counted
# More classes are drawn in so many groups: counts of pairs are kept for every two groups.
_MOST_GROUPS = 100
FEWEST_CLASSES = 3
_PAIR_ENTRIES = 2**23  # multiplicities of pairs held at once
WANTED_RATE, MOST_RIGHT = "wanted false accept rate", "most right answers"
"""What a threshold was chosen for."""


class TooFewPairsError(ValueError):
    """The classes and pairs are too few to choose a threshold; the message says which."""


@dataclass(frozen=True)
class Threshold:
    """The similarity from which on two samples are taken for the same, and how often that is wrong.

    The intervals are for *new* classes: in them lies, as often as their confidence says, the rate that as
    many classes as chose the threshold, drawn like them, would show.

    Attributes:
        similarity: Two samples are taken for the same if their cosine is at least this; no probability.
        wanted_false_accept_rate: What was asked for.
        false_accept_rate: Share of the pairs of different classes that are taken for the same.
        false_reject_rate: Share of the pairs of one class that are not.
        classes: How many classes chose it.
        negative_pairs: Pairs of samples of different classes among them.
        positive_pairs: Pairs of samples of one class.
        class_names: Which classes; empty where they have no names.
        rule: What it was chosen for: the wanted rate, or, of few known pairs, the most right answers.
        known_classes: Whether the network was trained on other samples of these classes (a closed set). Then
            the rates are for new samples of known classes, and say nothing of new classes.

    >>> draw = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(20).repeat_interleave(10)
    >>> points = torch.randn(20, 16, generator=draw)[labels] + torch.randn(200, 16, generator=draw) / 2
    >>> print(choose_threshold(points, labels))
    same from similarity 0.56... on: false accepts 1.00 % (... to ... % on new classes), false rejects ...
    """

    similarity: float
    wanted_false_accept_rate: float
    false_accept_rate: Interval
    false_reject_rate: Interval
    classes: int
    negative_pairs: int
    positive_pairs: int
    class_names: tuple[str, ...] = ()
    rule: str = WANTED_RATE
    known_classes: bool = False

    @property
    def where(self) -> str:
        """Where its rates are expected: "on new classes", or on new samples of classes trained on."""
        return "on new samples of classes trained on" if self.known_classes else "on new classes"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"class_names": list(self.class_names)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Threshold:
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: It is something else.
        """
        try:
            return cls(
                similarity=float(values["similarity"]),
                wanted_false_accept_rate=float(values["wanted_false_accept_rate"]),
                false_accept_rate=Interval(**values["false_accept_rate"]),
                false_reject_rate=Interval(**values["false_reject_rate"]),
                classes=int(values["classes"]),
                negative_pairs=int(values["negative_pairs"]),
                positive_pairs=int(values["positive_pairs"]),
                class_names=tuple(values.get("class_names", ())),
                rule=str(values.get("rule", WANTED_RATE)),
                known_classes=bool(values.get("known_classes", False)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"these values are no threshold: {error!r}") from None

    def __str__(self) -> str:
        accepts, rejects = self.false_accept_rate, self.false_reject_rate
        return (
            f"same from similarity {self.similarity:.4f} on: false accepts {percent(accepts.value)} % "
            f"({percent(accepts.low)} to {percent(accepts.high)} % {self.where}), false rejects "
            f"{percent(rejects.value)} % ({percent(rejects.low)} to {percent(rejects.high)} %); "
            f"chosen on {self._chosen_on()}"
        )

    def _chosen_on(self) -> str:
        if self.rule == WANTED_RATE:
            return f"{self.classes:,} validation classes"
        pairs = self.positive_pairs + self.negative_pairs
        return f"{pairs:,} validation pairs, for the most right answers"


def percent(share: float) -> str:
    """A share in percent, with two digits that say something.

    >>> percent(0.01), percent(0.000123), percent(0.0), percent(0.25)
    ('1.00', '0.012', '0.00', '25.00')
    """
    return f"{100 * share:.2g}" if 0 < share < 1e-3 else f"{100 * share:.2f}"


@torch.no_grad()
def choose_threshold(
    embeddings: Tensor,
    labels: Tensor,
    *,
    false_accept_rate: float = 0.01,
    class_names: Sequence[str] = (),
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Threshold:
    """The lowest similarity at which at most the wanted share of the negative pairs is accepted.

    All pairs of samples count alike, so a class with many samples counts more. The intervals predict: classes
    are drawn twice, once to choose a threshold anew and once to count its errors, as the threshold was chosen
    on some classes and will meet others. (Drawing only the classes on which errors are counted would be an
    interval for the mean at a threshold that had been given from outside, and too narrow.) A negative pair
    counts the product of how often its two classes were drawn, which errs on the safe side (Owen, 2007,
    Annals of Applied Statistics, "The pigeonhole bootstrap"); the ends are widened for few classes.

    Args:
        embeddings: ``(N, D)``, of classes that were not trained on.
        labels: ``(N,)`` integers.
        false_accept_rate: Wanted share of the negative pairs that may be accepted.
        class_names: What the threshold remembers of its classes.
        confidence: Of the intervals.
        resamples: How many times the classes are drawn.
        seed: Of the draws.

    Raises:
        TooFewPairsError: Fewer than three classes, no class with two samples, or fewer negative pairs than
            the rate can be told from.
    """
    if not 0 < false_accept_rate < 1:
        raise ValueError(f"false_accept_rate={false_accept_rate} must lie between 0 and 1")
    check_draws(confidence, resamples)
    tiles = _Tiles(embeddings, labels)
    wanted = _allowed(tiles, false_accept_rate)
    coarse = tiles.histogram(_LOWEST, _HIGHEST)
    # Embeddings may differ in their last bits from one process to another; a threshold must not.
    similarity = math.ceil(_cut(tiles, coarse, wanted) * _DIGITS) / _DIGITS
    grid = _grid(coarse, similarity)
    accepted = tiles.accepted(grid)
    at = int(torch.searchsorted(grid, torch.tensor(similarity, dtype=torch.float64)))
    accepts, rejects = (
        Interval(value, min(low, value), max(high, value), confidence, tiles.classes)
        for value, (low, high) in zip(
            (accepted.false_accepts(at), accepted.false_rejects(at)),
            _intervals(accepted, false_accept_rate, confidence, resamples, seed),
            strict=True,
        )
    )
    return Threshold(
        similarity,
        false_accept_rate,
        accepts,
        rejects,
        tiles.classes,
        tiles.negatives,
        tiles.positives,
        tuple(class_names),
    )


def _allowed(tiles: _Tiles, rate: float) -> int:
    """How many negative pairs may be accepted."""
    if tiles.classes < FEWEST_CLASSES:
        raise TooFewPairsError(
            f"{tiles.classes} classes are too few to choose a threshold: at least {FEWEST_CLASSES}"
        )
    if tiles.positives == 0:
        raise TooFewPairsError("no class has two samples, so there is no positive pair to choose a threshold")
    if rate * tiles.negatives < 1:
        raise TooFewPairsError(
            f"{tiles.negatives:,} negative pairs are too few to tell a false-accept rate of {rate:g}: at "
            f"least {1 / rate:,.0f}"
        )
    return int(rate * tiles.negatives + 1e-9)


def _cut(tiles: _Tiles, coarse: Tensor, allowed: int) -> float:
    """Half-way between the highest negative that is rejected and the lowest that is accepted."""
    bin_ = _last_above(coarse, allowed)
    low = _LOWEST + bin_ * _WIDTH
    fine = tiles.histogram(low, low + _WIDTH)
    rejected = _last_above(fine, allowed - int(coarse[bin_ + 1 :].sum()))
    edge = low + (rejected + 1) * _WIDTH / _BINS
    above = fine[rejected + 1 :].nonzero()
    if len(above):
        return edge + float(above[0]) * _WIDTH / _BINS / 2
    above = coarse[bin_ + 1 :].nonzero()
    if len(above):
        return (edge + low + float(above[0] + 1) * _WIDTH) / 2
    return edge + _ROUND_OFF  # many negatives are copies of each other: none of them is accepted


def _last_above(counts: Tensor, allowed: int) -> int:
    """The highest bin such that it and all above it hold more than allowed; there always is one."""
    from_here_on = counts.flip(0).cumsum(0).flip(0)
    return int((from_here_on > allowed).sum()) - 1


def _grid(coarse: Tensor, similarity: float) -> Tensor:
    """Similarities in rising order between which shares of the negatives differ by about one factor."""
    share = coarse.flip(0).cumsum(0).flip(0) / coarse.sum()
    wanted = torch.logspace(0, float(torch.log10(1 / coarse.sum())), _GRID, dtype=torch.float64)
    edges = torch.searchsorted(-share, -wanted)  # the shares fall
    grid = torch.cat(
        [edges.double() * _WIDTH + _LOWEST, torch.tensor([similarity, 2.0], dtype=torch.float64)]
    )
    in_order: Tensor = grid.unique()
    return in_order


@dataclass(frozen=True)
class _Accepted:
    """Pairs accepted at each of ``T`` similarities, by groups of classes; the last accepts none.

    Attributes:
        negative: ``(G, G, T)``, every pair counted in both orders.
        positive: ``(G, T)``.
        negatives: ``(G, G)`` all of them.
        positives: ``(G,)``.
    """

    negative: Tensor
    positive: Tensor
    negatives: Tensor
    positives: Tensor

    def false_accepts(self, at: int) -> float:
        return float(self.negative[:, :, at].sum() / self.negatives.sum())

    def false_rejects(self, at: int) -> float:
        return float(1 - self.positive[:, at].sum() / self.positives.sum())

    def rates(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """``(R, T)`` false accepts and false rejects; NaN where no such pair was drawn."""
        groups, grid = self.positive.shape
        once = (times @ self.negative.reshape(groups, -1)).reshape(len(times), groups, grid)
        accepted = torch.einsum("rg,rgt->rt", times, once)
        of = torch.einsum("rg,rg->r", times, times @ self.negatives)
        false_rejects = 1 - (times @ self.positive) / (times @ self.positives)[:, None]
        return accepted / of[:, None], false_rejects


def _intervals(
    accepted: _Accepted, rate: float, confidence: float, resamples: int, seed: int
) -> list[list[float]]:
    """Low and high of the false accepts and of the false rejects."""
    groups = len(accepted.positives)
    found = []
    for times in drawn_classes(groups, 2 * resamples, seed):
        choosing, tested = (accepted.rates(half) for half in times.chunk(2))
        found.append(_at_the_chosen(choosing[0], tested, rate))
    whole = torch.cat(found)
    whole = whole[whole.isfinite().all(dim=1)]
    if len(whole) < resamples // 2:
        raise TooFewPairsError(
            f"{groups} classes are too few for an interval: {resamples - len(whole)} of {resamples} draws "
            "hold no positive or no negative pair"
        )
    ends: list[list[float]] = interval_ends(whole, confidence, groups).clamp(0, 1).T.tolist()
    return ends


def _at_the_chosen(choosing: Tensor, tested: tuple[Tensor, Tensor], rate: float) -> Tensor:
    """``(R, 2)`` rates of the tested draw at the similarity that the choosing draw chooses.

    Between two similarities of the grid all rates are read from straight lines.
    """
    after = (choosing > rate).sum(dim=1, keepdim=True).clamp(1, choosing.shape[1] - 1)
    ends = torch.cat([after - 1, after], dim=1)
    high, low = choosing.gather(1, ends).unbind(dim=1)
    way = ((high - rate) / (high - low)).nan_to_num(nan=0.0).clamp(0, 1)
    columns = []
    for rates in tested:
        before, behind = rates.gather(1, ends).unbind(dim=1)
        columns.append((before + way * (behind - before)).where(choosing.isfinite().all(dim=1), torch.nan))
    return torch.stack(columns, dim=1)


class _Tiles:
    """The upper triangle of the cosines of all samples, a tile at a time."""

    def __init__(self, embeddings: Tensor, labels: Tensor) -> None:
        embeddings = checked_embeddings(embeddings)
        labels = checked_labels(labels, len(embeddings), embeddings.device)
        if labels.ndim != 1:
            raise ValueError(f"labels must be one integer each, not of shape {tuple(labels.shape)}")
        _, self.labels, sizes = labels.unique(return_inverse=True, return_counts=True)
        self.units = unit_rows(embeddings)
        self.classes = len(sizes)
        self.positives = int((sizes * (sizes - 1) // 2).sum())
        self.negatives = len(labels) * (len(labels) - 1) // 2 - self.positives
        self.groups = self.labels * min(self.classes, _MOST_GROUPS) // self.classes

    def __iter__(self) -> Iterator[tuple[Tensor, slice, slice, Tensor]]:
        """Similarities ``(R, C)`` in float64, which rows and columns they are of, and which pairs count."""
        count = len(self.units)
        for top in range(0, count, _TILE):
            rows = slice(top, min(top + _TILE, count))
            for left in range(top, count, _TILE):
                columns = slice(left, min(left + _TILE, count))
                cosines = (self.units[rows] @ self.units[columns].T).double()
                pairs = torch.ones_like(cosines, dtype=torch.bool)
                yield cosines, rows, columns, pairs.triu_(diagonal=1) if left == top else pairs

    def _same(self, rows: slice, columns: slice) -> Tensor:
        same: Tensor = self.labels[rows, None] == self.labels[columns]
        return same

    def histogram(self, low: float, high: float) -> Tensor:
        """``(BINS,)`` numbers of negative pairs whose similarity is at least ``low`` and below ``high``."""
        counts = torch.zeros(_BINS + 2, dtype=torch.long)  # one bin for all below, one for all above
        for cosines, rows, columns, pairs in self:
            bins = cosines.sub_(low).mul_(_BINS / (high - low)).floor_().clamp_(-1, _BINS).add_(1)
            bins = bins.long().masked_fill_(self._same(rows, columns) | ~pairs, 0)
            counts += bins.flatten().bincount(minlength=len(counts)).cpu()
        return counts[1:-1]

    def accepted(self, grid: Tensor) -> _Accepted:
        """How many pairs are accepted at each similarity of a rising grid."""
        groups, size = int(self.groups.max()) + 1, len(grid) + 1
        # Negatives by two groups, then positives by one group, then pairs that do not count.
        counts = torch.zeros((groups + 1) * groups * size + 1, dtype=torch.long)
        edges = grid.to(self.units.device)
        for cosines, rows, columns, pairs in self:
            first, second = self.groups[rows, None], self.groups[columns]
            of = torch.where(self._same(rows, columns), groups * groups + first, first * groups + second)
            keys = of.mul_(size).add_(torch.searchsorted(edges, cosines, side="right"))
            keys.masked_fill_(~pairs, len(counts) - 1)
            counts += keys.flatten().bincount(minlength=len(counts)).cpu()
        # A pair that reaches the k lowest similarities of the grid is accepted at each of them.
        by_groups = counts[:-1].view(groups + 1, groups, size).double().flip(-1).cumsum(-1).flip(-1)
        negative, positive = by_groups[:-1] + by_groups[:-1].transpose(0, 1), by_groups[-1]
        return _Accepted(negative[:, :, 1:], positive[:, 1:], negative[:, :, 0], positive[:, 0])


def rates_at_threshold(
    scores: VerificationScores,
    first_labels: Tensor,
    second_labels: Tensor,
    similarity: float,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """How well a given threshold does on labelled pairs, with intervals over the classes of these pairs.

    Args:
        scores: Of :func:`nearkin.evaluation.verification_scores`, made with ``per_pair=True``.
        first_labels: ``(P,)`` integer class of the first side of every pair.
        second_labels: ``(P,)`` of the second side.
        similarity: The threshold.
        confidence: Of the intervals.
        resamples: How many times the classes are drawn.
        seed: Of the draws.

    Returns:
        ``false_accept_rate``, ``false_reject_rate`` and ``accuracy_at_threshold``.
    """
    pairs = scores.per_pair
    if pairs is None:
        raise ValueError("scores hold no pairs: make them with per_pair=True")
    check_draws(confidence, resamples)
    classes, numbers = torch.stack([first_labels, second_labels]).unique(return_inverse=True)
    accepted = pairs.similarity >= similarity
    wrong = {
        "false_accept_rate": (~pairs.same, accepted),
        "false_reject_rate": (pairs.same, ~accepted),
        "accuracy_at_threshold": (torch.ones_like(pairs.same), accepted == pairs.same),
    }
    at_once = max(_PAIR_ENTRIES // len(accepted), 1)
    rows = [
        torch.stack(
            [_weighted_share(pair_times(part, numbers, pairs.same), *kind) for kind in wrong.values()]
        )
        for times in drawn_classes(len(classes), resamples, seed)
        for part in times.split(at_once)
    ]
    drawn = torch.cat(rows, dim=1).T
    drawn = drawn[drawn.isfinite().all(dim=1)]
    if len(classes) < FEWEST_CLASSES or len(drawn) < resamples // 2:
        raise TooFewPairsError(f"{len(classes)} classes are too few for an interval")
    low, high = interval_ends(drawn, confidence, len(classes)).clamp(0, 1).tolist()
    return {
        name: Interval(float(counts[of].double().mean()), low[i], high[i], confidence, len(classes))
        for i, (name, (of, counts)) in enumerate(wrong.items())
    }


def _weighted_share(times: Tensor, of: Tensor, counts: Tensor) -> Tensor:
    """``(R,)`` share of the pairs ``of`` that count, each as often as ``(R, P)`` says."""
    return times[:, of & counts].sum(dim=1) / times[:, of].sum(dim=1)
