"""What the weight of a pair reacts to: the thesis's Table 1, measured.

General pair weighting asks which similarities decide the weight ∂L/∂S of a pair. Table 1 of the thesis names
three: S, the pair's own; N, relative to the anchor's other negative pairs; P, relative to its positive pairs.
Here each is changed in turn and the weight is watched.

A change of the pair's own similarity alone changes its relative similarities, too, and every loss reacts to
that. Self-similarity is what remains when all similarities of the anchor rise or fall together: relative ones
stay as they are.

Means over a batch ("of the violating pairs") share one factor among all pairs. It says nothing about one
pair, so that weights are measured in units of the weight of a pair of another anchor, which is left alone.
Proxy losses divide by constants; there the unit is the largest weight of the batch before anything changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nearkin import losses
from nearkin.explain.choice import LossChoice
from nearkin.explain.pair_weighting import pairs_of, similarity_weights
from nearkin.losses import Loss, ProxyLoss
from nearkin.losses.base import require_one_of
from nearkin.pictures.style import GREY, INK, MONOSPACE, PULL, PUSH, Path, dress_small, save, styled

CHANGES = ("own", "S", "N", "P")
"""The pair alone; all of the anchor's similarities together; its other negatives; its other positives."""

PRINTED: dict[str, dict[str, bool]] = {
    "contrastive": {"S": True, "N": False, "P": False},
    "triplet": {"S": False, "N": False, "P": True},
    "lifted_structure": {"S": False, "N": True, "P": False},
    "npair": {"S": False, "N": True, "P": False},
    "multi_similarity": {"S": True, "N": True, "P": True},
}
"""Table 1 of the thesis, as printed."""

PAIRS = ("negative", "positive")
ANCHORS = ("sample", "proxy")

_CLASSES, _IMAGES_PER_CLASS, _DIMENSIONS = 4, 4, 32
_STEPS = 41
_END = 0.95
"""Similarities are changed until the first of them is as large as this, on either side of 0."""

_SCENES = (0.0, -0.1, -0.85)
"""How much less similar the anchor's negatives are than its positives: as near, a little farther, far away. A
hinge or a miner may let a pair in in one scene and not in another."""

_UNMOVED = 1e-3
"""A weight that changes by less than this part of its largest value does not react."""

_NOTHING = 1e-6
"""A weight that is smaller all the time, in units of an untouched pair's, is none."""

_NUDGE = 1e-4
"""A change so small that it crosses a hinge or a miner's bound at one step of a sweep, if at all: a weight
that follows it at several steps is smooth. Every second step is tried."""


@dataclass(frozen=True)
class Reaction:
    """How the weight of a pair follows a change of similarities.

    Attributes:
        kind: "none", "switch" (constant but for jumps), "smooth", or "absent" where there is nothing to
            change.
        size: Largest minus smallest size of the weight, as a part of the largest; 0 to 1.
        shifts: By how much the similarities changed ``(T,)``.
        weights: The size of the weight at each ``(T,)``, in units of an untouched pair's.
    """

    kind: str
    size: float
    shifts: Tensor
    weights: Tensor

    @property
    def range(self) -> float:
        """Largest minus smallest size of the weight."""
        return float(self.weights.max() - self.weights.min()) if len(self.weights) else 0.0

    @property
    def reacts(self) -> bool:
        """Whether the weight changes at all."""
        return self.kind in ("switch", "smooth")


@dataclass(frozen=True)
class Measurement:
    """What a loss's pair weight reacts to.

    Attributes:
        choice: The loss.
        anchor: Whose similarities change with the pair's: the sample's (a row of S) or the proxy's (a
            column).
        alone: Change → reaction of the loss over all pairs.
        mined: The same with the loss's own mining; ``None`` where it has none.
    """

    choice: LossChoice
    anchor: str
    alone: dict[str, Reaction]
    mined: dict[str, Reaction] | None

    @property
    def printed(self) -> dict[str, bool] | None:
        """What Table 1 says, if it is about this loss."""
        return PRINTED.get(self.choice.name)


def measure_choice(choice: LossChoice, *, pair: str = "negative", anchor: str = "sample") -> Measurement:
    """Measure a loss with and without its mining.

    Args:
        choice: The loss.
        pair: Whether the watched pair is "negative", as in the thesis's explanation, or "positive".
        anchor: "sample", or "proxy" for proxy losses, which anchor at either.

    >>> measured = measure_choice(LossChoice("npair"))
    >>> {change: reaction.kind for change, reaction in measured.alone.items()}
    {'own': 'smooth', 'S': 'none', 'N': 'smooth', 'P': 'smooth'}
    """
    loss = choice.build(_CLASSES, _DIMENSIONS)
    keywords = losses.describe(choice.name).defaults
    mines = "mining" in keywords and choice.hyperparameters.get("mining", keywords["mining"]) != "all"
    if not mines:
        return Measurement(choice, anchor, reactions(loss, pair=pair, anchor=anchor), None)
    over_all = LossChoice(choice.name, choice.hyperparameters | {"mining": "all"})
    alone = reactions(over_all.build(_CLASSES, _DIMENSIONS), pair=pair, anchor=anchor)
    return Measurement(choice, anchor, alone, reactions(loss, pair=pair, anchor=anchor))


def reactions(loss: Loss, *, pair: str = "negative", anchor: str = "sample") -> dict[str, Reaction]:
    """How ∂L/∂S of one pair follows each of the :data:`CHANGES`, everything else being equal.

    Args:
        loss: Pair-based or proxy-based, for 4 classes.
        pair: "negative" or "positive".
        anchor: "sample" or, for proxy losses, "proxy".
    """
    require_one_of(PAIRS, pair=pair)
    require_one_of(ANCHORS, anchor=anchor)
    scenes = [_Scene(loss, anchor, negatives) for negatives in _SCENES]
    pairs = scenes[0].choose(pair)
    return {change: _strongest([scene.sweep(change, *pairs) for scene in scenes]) for change in CHANGES}


def _strongest(found: Sequence[Reaction]) -> Reaction:
    """What the weight reacts to in one scene, it reacts to."""
    kinds = ("absent", "none", "switch", "smooth")
    return max(found, key=lambda reaction: (kinds.index(reaction.kind), reaction.range))


class _Scene:
    """A batch of moderately hard pairs, in which every loss has something to do.

    Rows and columns are exchanged where the anchor is the proxy, so that anchors are always rows.
    """

    def __init__(self, loss: Loss, anchor: str, negatives: float) -> None:
        self.loss = loss
        self.labels = torch.arange(_CLASSES).repeat_interleave(_IMAGES_PER_CLASS)
        self.transposed = anchor == "proxy"
        if isinstance(loss, ProxyLoss):
            per_class = loss.proxies.flatten(0, -2).shape[0] // _CLASSES
            positive = self.labels.unsqueeze(1) == torch.arange(_CLASSES).repeat_interleave(per_class)
            negative = ~positive
        elif self.transposed:
            raise ValueError(f"{type(loss).__name__} has no proxies: anchor=proxy is for proxy losses")
        else:
            pairs = pairs_of(self.labels, _DIMENSIONS)
            positive, negative = pairs.positive, pairs.negative
        self.positive, self.negative = self._turn(positive), self._turn(negative)
        generator = torch.Generator().manual_seed(0)
        mixed = 0.42 + 0.2 * torch.rand(positive.shape, generator=generator, dtype=torch.float64)
        self.S = self._turn(torch.where(positive | negative, mixed, 1.0))
        self.unit = float(self.weights(self.S).max()) if isinstance(loss, ProxyLoss) else None
        self.S[0] += self.negative[0] * negatives

    def _turn(self, matrix: Tensor) -> Tensor:
        return matrix.T.contiguous() if self.transposed else matrix

    def weights(self, S: Tensor) -> Tensor:
        """The sizes of ∂L/∂S, anchors in rows."""
        weights = similarity_weights(self.loss, self._turn(S), self.labels, _DIMENSIONS)
        return self._turn(weights).abs()

    def choose(self, pair: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """The hardest pair of the first anchor, and the pair of most weight of the last class's anchors."""
        kind = self.negative if pair == "negative" else self.positive
        hardness = self.S[0] if pair == "negative" else -self.S[0]
        watched = torch.where(kind[0], hardness, -torch.inf).argmax()
        weights = self.weights(self.S) * kind
        rows, columns = weights.shape
        last_class = rows - rows // _CLASSES
        row, column = divmod(int(weights[last_class:].argmax()), columns)
        if weights[last_class + row, column] == 0:
            raise ValueError(f"{type(self.loss).__name__} has no weight on any {pair} pair of the test batch")
        return (0, int(watched)), (last_class + row, column)

    def sweep(self, change: str, watched: tuple[int, int], untouched: tuple[int, int]) -> Reaction:
        """Follow the weight of the watched pair."""
        row, column = watched
        only = torch.zeros_like(self.positive)
        only[row, column] = True
        in_row = torch.zeros_like(only)
        in_row[row] = True
        moving = {
            "own": only,
            "S": in_row & (self.positive | self.negative),
            "N": in_row & self.negative & ~only,
            "P": in_row & self.positive & ~only,
        }[change]
        if not moving.any():
            return Reaction("absent", 0.0, torch.zeros(0), torch.zeros(0))
        lowest, highest = self.S[moving].min(), self.S[moving].max()
        shifts = torch.linspace(float(-_END - lowest), float(_END - highest), _STEPS, dtype=torch.float64)

        def size(shift: Tensor) -> Tensor:
            weights = self.weights(self.S + shift * moving)
            return weights[watched] / (self.unit or weights[untouched])

        sizes = torch.stack([size(shift) for shift in shifts])
        nudged = torch.stack([size(shift + _NUDGE) for shift in shifts[::2]])
        return _reaction(shifts, sizes, nudged)


def _reaction(shifts: Tensor, sizes: Tensor, nudged: Tensor) -> Reaction:
    largest = float(sizes.max())
    size = float(sizes.max() - sizes.min()) / largest if largest > _NOTHING else 0.0
    if size < _UNMOVED:
        return Reaction("none", 0.0, shifts, sizes)
    follows = int(((nudged - sizes[::2]).abs() > 1e-9 * largest).sum())
    return Reaction("smooth" if follows > 2 else "switch", size, shifts, sizes)


def differences(measurement: Measurement) -> list[str]:
    """Where measurement and Table 1 differ, a sentence each."""
    printed = measurement.printed
    if printed is None:
        return []
    sentences = []
    for similarity, says in printed.items():
        alone = measurement.alone[similarity]
        mined = measurement.mined[similarity] if measurement.mined else alone
        if says == alone.reacts == mined.reacts:
            continue
        where = f"{measurement.choice.name}, {similarity}: printed {mark(says)}"
        if alone.reacts == mined.reacts:
            sentences.append(f"{where}, measured {in_words(alone)}")
        else:
            sentences.append(f"{where}; measured {in_words(alone)} alone, {in_words(mined)} with its mining")
    return sentences


def mark(yes: bool) -> str:
    """A tick or a cross."""
    return "✓" if yes else "✗"


def in_words(reaction: Reaction) -> str:
    """A reaction in a table's cell.

    >>> in_words(Reaction("switch", 1.0, torch.zeros(0), torch.zeros(0)))
    '✓ on/off'
    """
    words = {"none": "✗", "switch": "✓ on/off", "smooth": f"✓ {reaction.size:.0%}", "absent": "–"}
    return words[reaction.kind]


_TITLES = {
    "own": "own similarity alone",
    "S": "S: all of the anchor's",
    "N": "N: other negatives",
    "P": "P: positives",
}


def draw_similarities(measurements: Sequence[Measurement], path: Path, *, pair: str = "negative") -> None:
    """Draw how the weight of a pair follows each change, a row per loss.

    Args:
        measurements: What was measured.
        path: A PNG, SVG or PDF.
        pair: Which pair was watched, for the colour.
    """
    with styled():
        save(_similarity_figure(measurements, pair), path)


def _similarity_figure(measurements: Sequence[Measurement], pair: str) -> Figure:
    """A row of panels per loss, one for each kind of change."""
    figure = Figure(figsize=(6.4, 0.88 * len(measurements) + 0.75))
    up = figure.get_figheight()
    grid = figure.subplots(len(measurements), len(CHANGES), squeeze=False, sharey="row")
    figure.subplots_adjust(
        left=0.2, right=0.985, bottom=0.55 / up, top=1 - 0.25 / up, hspace=0.5, wspace=0.12
    )
    for row, measurement in zip(grid, measurements, strict=True):
        _label(row[0], measurement)
        for axes, change in zip(row, CHANGES, strict=True):
            _follow(axes, measurement, change, PUSH if pair == "negative" else PULL)
    for axes, change in zip(grid[0], CHANGES, strict=True):
        axes.set_title(_TITLES[change], fontsize=7, color=INK, pad=4)
    for axes in grid[-1]:
        axes.set_xlabel("change of similarity", fontsize=6.5, labelpad=1)
    figure.text(
        0.5,
        0.06 / up,
        f"Size of ∂L/∂S of a {pair} pair, largest = 1. Line: the loss over all pairs; dashes: with its own "
        "mining. Tick or cross: Table 1.",
        ha="center",
        fontsize=5.8,
        color=GREY,
    )
    return figure


def _label(axes: Axes, measurement: Measurement) -> None:
    name = measurement.choice.name.replace("direction_", "direction_\n")
    below = (
        f"\n({measurement.anchor}'s view)" if losses.describe(measurement.choice.name).needs_classes else ""
    )
    axes.set_ylabel(
        name + below, fontsize=6.5, family=MONOSPACE, rotation=0, ha="right", va="center", labelpad=14
    )


def _follow(axes: Axes, measurement: Measurement, change: str, colour: str) -> None:
    for found, style in ((measurement.alone, "-"), (measurement.mined, (0, (2, 1.2)))):
        if found is not None and len(found[change].weights):
            sizes = found[change].weights
            axes.plot(
                found[change].shifts.numpy(),
                (sizes / sizes.max().clamp_min(_NOTHING)).numpy(),
                linestyle=style,
                linewidth=1.2,
                color=colour if found is measurement.alone else INK,
            )
    axes.set(ylim=(-0.1, 1.15), yticks=[0, 1], xlim=(-1.6, 1.6), xticks=[-1, 0, 1])
    dress_small(axes)
    axes.tick_params(labelsize=6)
    if measurement.printed is not None and change in measurement.printed:
        says = measurement.printed[change]
        axes.text(
            1.5, 0.98, mark(says), ha="right", va="top", fontsize=8, color=GREY, transform=axes.transData
        )
