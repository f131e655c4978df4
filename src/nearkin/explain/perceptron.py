"""Where the thesis begins: XOR, which no line divides (Figure 2), and the perceptron (Figures 3 and 4)."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from nearkin.classical import LMNN, Kernelized, MetricLearner, Perceptron
from nearkin.classical.arrays import Array
from nearkin.pictures.style import (
    GREY,
    INK,
    PALE,
    PAPER,
    PULL,
    PUSH,
    Path,
    colour_of,
    marker_of,
    save,
    styled,
)

_SPREAD = 0.1
_FAR = 20.0
_CORNERS = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])


class Xor(NamedTuple):
    """Four clouds of points, and what learners make of them.

    Attributes:
        points: ``(n, 2)``.
        corner: Which corner each belongs to, ``(n,)``; corners 0 and 1 are one class, 2 and 3 the other.
        wrong: How many points the perceptron's best line has on the wrong side.
        weights: Of that line, the bias first, ``(3,)``.
        linear: Where a linear metric puts the points, ``(n, 2)``.
        linear_share: The share of triplets (a point, one of the opposite corner, one of a neighbouring
            corner) in which the opposite one is nearer, as it should be, ``0 … 1``.
        kernel: Where a metric in a kernel's feature space puts them, its two main directions ``(n, 2)``.
        kernel_share: The same share there.
    """

    points: Array
    corner: Array
    wrong: int
    weights: Array
    linear: Array
    linear_share: float
    kernel: Array
    kernel_share: float


def solve_xor(points_per_corner: int = 12, seed: int = 0) -> Xor:
    """Let a perceptron, a linear and a kernel learner of :mod:`nearkin.classical` try XOR.

    Args:
        points_per_corner: Points of each cloud.
        seed: Draws them.
    """
    rng = np.random.default_rng(seed)
    corner = np.repeat(np.arange(4), points_per_corner)
    points = _CORNERS[corner] + _SPREAD * rng.normal(size=(len(corner), 2))
    classes = corner // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # that no line divides them is what is shown
        line = Perceptron().fit(points, classes)
    triplets = _triplets(corner, rng)
    stretched = _learned(LMNN(n_neighbors=points_per_corner), points, classes)
    bent = _learned(
        Kernelized(LMNN(n_neighbors=points_per_corner), kernel="polynomial", degree=2), points, classes
    )
    return Xor(
        points,
        corner,
        int((line.predict(points) != classes).sum()),
        line.path_[int(line.errors_.argmin())],
        _flat(stretched.transform(points)),
        stretched.score_triplets(triplets, points),
        _flat(bent.transform(points)),
        bent.score_triplets(triplets, points),
    )


def _learned(learner: MetricLearner, points: Array, classes: Array) -> MetricLearner:
    fitted: MetricLearner = learner.fit(points, classes)
    return fitted


def _triplets(corner: Array, rng: np.random.Generator, count: int = 2000) -> Array:
    """A point, one of the opposite corner and one of a corner beside it, at random."""
    anchor, other, beside = rng.integers(len(corner), size=(3, 20 * count))
    opposite = (corner[anchor] // 2 == corner[other] // 2) & (corner[anchor] != corner[other])
    kept = opposite & (corner[anchor] // 2 != corner[beside] // 2)
    return np.asarray(np.stack([anchor, other, beside], axis=1)[kept][:count])


def _flat(rows: Array) -> Array:
    """Two directions in which the rows vary most."""
    return np.asarray(PCA(2, svd_solver="full").fit_transform(rows)) if rows.shape[1] > 2 else rows


def draw_xor(path: Path) -> Xor:
    """Draw XOR, and what a line, a linear metric and a kernel make of it."""
    found = solve_xor()
    with styled():
        figure = Figure(figsize=(7.2, 2.75))
        panels = figure.subplots(1, 3)
        figure.subplots_adjust(left=0.02, right=0.98, bottom=0.12, top=0.83, wspace=0.08)
        total = len(found.points)
        _cloud(panels[0], found.points, found.corner)
        _shade(panels[0], found.weights)
        _say(
            panels[0], "one line", f"the perceptron's best: {found.wrong} of {total} points on the wrong side"
        )
        _cloud(panels[1], found.linear, found.corner)
        share = f"in {100 * found.linear_share:.0f} % of triplets the own class is nearer"
        _say(panels[1], "a linear metric", f"LMNN: {share}")
        _cloud(panels[2], found.kernel, found.corner)
        share = f"in {100 * found.kernel_share:.0f} % of triplets the own class is nearer"
        _say(panels[2], "a metric in a kernel's space", f"(xᵀy + 1)²: {share}")
        save(figure, path)
    return found


def _cloud(axes: Axes, points: Array, corner: Array) -> None:
    """Opposite corners have one colour; each corner has a shape of its own."""
    for number in range(4):
        own = points[corner == number]
        colour, marker = colour_of(number // 2), marker_of(number)
        axes.plot(*own.T, linestyle="", marker=marker, ms=4.2, color=colour, mec=PAPER, mew=0.4, zorder=3)
    _frame(axes, points)


def _frame(axes: Axes, points: Array) -> None:
    """A square around the points, without numbers."""
    middle = (points.max(axis=0) + points.min(axis=0)) / 2
    reach = 0.6 * (points.max(axis=0) - points.min(axis=0)).max()
    (x, y) = middle
    axes.set(xlim=(x - reach, x + reach), ylim=(y - reach, y + reach), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(PALE)


def _shade(axes: Axes, weights: Array) -> None:
    """Both sides of a line in the colours of their classes, and the line."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    x, y = np.meshgrid(np.linspace(left, right, 300), np.linspace(low, high, 300))
    side = weights[0] + weights[1] * x + weights[2] * y
    axes.contourf(x, y, side, levels=[-np.inf, 0, np.inf], colors=[colour_of(0), colour_of(1)], alpha=0.12)
    axes.contour(x, y, side, levels=[0], colors=[INK], linewidths=1.2)


def _say(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title, fontsize=9, color=INK, pad=5)
    axes.text(0.5, -0.035, below, transform=axes.transAxes, ha="center", va="top", fontsize=6, color=GREY)


def separable_points(seed: int = 3, count: int = 24) -> tuple[Array, Array]:
    """Two classes ``(count, 2)`` that a line divides, and their labels ``(count,)``."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    centres = np.array([[-0.35, 0.2], [0.75, 0.85]])
    return centres[labels] + 0.28 * rng.normal(size=(count, 2)), labels


def draw_perceptron(path: Path, *, seed: int = 1) -> Perceptron:
    """Draw a perceptron with the weights that it has learnt, and its line after every step.

    Args:
        path: Where the picture goes.
        seed: Chooses the misclassified samples.
    """
    points, labels = separable_points()
    learnt = Perceptron(random_state=seed).fit(points, labels)
    with styled():
        figure = Figure(figsize=(7.2, 3.3))
        left = figure.add_axes((0.01, 0.06, 0.46, 0.84))
        right = figure.add_axes((0.5, 0.06, 0.48, 0.84))
        _draw_neuron(left, learnt)
        _draw_steps(right, learnt, points, labels)
        wrong = ", ".join(str(count) for count in learnt.errors_)
        words = ("y = sgn(wᵀx), after the last step", f"{learnt.n_iter_} steps; on the wrong side: {wrong}")
        for place, title in zip((0.25, 0.74), words, strict=True):
            figure.text(place, 0.93, title, ha="center", va="bottom", fontsize=9, color=INK)
        save(figure, path)
    return learnt


def _draw_neuron(axes: Axes, learnt: Perceptron) -> None:
    """Figure 3: inputs, weights, their sum and the step; widths are the learnt weights."""
    axes.set(xlim=(0, 10), ylim=(0, 7.3), aspect="equal")
    axes.set_axis_off()
    weights = learnt.path_[-1]
    places = [(1.3, 6.0), (1.3, 3.6), (1.3, 1.2)]
    sum_, step = (5.0, 3.6), (7.6, 3.6)
    for number, (place, weight) in enumerate(zip(places, weights, strict=True)):
        width = 0.6 + 3.4 * abs(weight) / np.abs(weights).max()
        axes.plot(*zip(place, sum_, strict=True), color=PULL if weight > 0 else PUSH, lw=width, zorder=1)
        x, y = (0.46 * a + 0.54 * b for a, b in zip(place, sum_, strict=True))
        note: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "color": INK, "zorder": 2}
        axes.text(
            x,
            y,
            f"w{'₀₁₂'[number]} = {weight:.2f}".replace("-", "−"),
            bbox={"fc": PAPER, "ec": "none", "pad": 1},
            **note,
        )
        _node(axes, place, "1" if number == 0 else f"x{'₀₁₂'[number]}", 0.62, filled=number == 0)
    for start, end in ((sum_, step), (step, (9.6, 3.6))):
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": GREY, "lw": 1.1}, zorder=1)
    _node(axes, sum_, "Σ", 0.85)
    _node(axes, step, "", 0.85)
    axes.plot([7.1, 7.6, 7.6, 8.1], [3.25, 3.25, 3.95, 3.95], color=INK, lw=1.2, zorder=4)
    axes.text(9.75, 3.6, "y", ha="left", va="center", fontsize=9, color=INK)
    axes.text(7.6, 2.45, "sgn", ha="center", va="top", fontsize=7, color=GREY)


def _node(axes: Axes, place: tuple[float, float], word: str, radius: float, *, filled: bool = False) -> None:
    face = PALE if filled else PAPER
    axes.add_patch(Circle(place, radius, facecolor=face, edgecolor=INK, linewidth=1.1, zorder=3))
    axes.text(*place, word, ha="center", va="center", fontsize=9, color=INK, zorder=4)


def _draw_steps(axes: Axes, learnt: Perceptron, points: Array, labels: Array) -> None:
    """Figure 4: the line after every step, the last in ink; and the sample that moved each."""
    for label in (0, 1):
        own = points[labels == label]
        style: dict[str, Any] = {
            "marker": marker_of(label),
            "color": colour_of(label),
            "mec": PAPER,
            "mew": 0.5,
            "zorder": 3,
        }
        axes.plot(*own.T, linestyle="", ms=5, **style)
    _frame(axes, points)
    _shade(axes, learnt.path_[-1])
    steps = learnt.path_[1:]
    for number, weights in enumerate(steps[:-1], start=1):
        _line(axes, weights, faint=0.25 + 0.55 * number / len(steps))
    for place, numbers in _movers(learnt, points).items():
        axes.plot(*points[place], marker="o", ms=9.5, mfc="none", mec=GREY, mew=0.8, zorder=2)
        words = ", ".join(map(str, numbers))
        axes.annotate(words, points[place], (6.5, 4.5), textcoords="offset points", fontsize=6.5, color=GREY)


def _movers(learnt: Perceptron, points: Array) -> dict[int, list[int]]:
    """Which sample moved the line, and in which of the steps, counted from 1."""
    found: dict[int, list[int]] = {}
    for number, step in enumerate(np.diff(learnt.path_, axis=0), start=1):
        target = np.sign(step[0])  # what was added is the sample, x₀ = 1 first, times its target
        place = int(np.abs(points - target * step[1:]).sum(axis=1).argmin())
        found.setdefault(place, []).append(number)
    return found


def _line(axes: Axes, weights: Array, faint: float) -> None:
    """Where ``w₀ + w·x = 0``."""
    bias, normal = weights[0], weights[1:]
    length = np.linalg.norm(normal)
    if length == 0:
        return
    foot = -bias * normal / length**2
    along = np.array([-normal[1], normal[0]]) / length
    ends = np.stack([foot - _FAR * along, foot + _FAR * along])
    axes.plot(*ends.T, color=GREY, lw=0.8, alpha=faint, ls=(0, (4, 2)), zorder=1.5)
