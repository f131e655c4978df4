"""What a person looks at after a run: the learning curve, a gallery of neighbours, and a map.

The gallery and the map are drawn by :mod:`~nearkin.pictures.galleries` and :mod:`~nearkin.pictures.maps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nearkin.pictures.galleries import contact_sheet, retrieval_gallery
from nearkin.pictures.maps import embedding_map
from nearkin.pictures.style import LIGHT, Path, Theme, dress, save, styled

__all__ = ["contact_sheet", "embedding_map", "fold_curves", "learning_curve", "retrieval_gallery"]

_HEIGHT, _PANEL = 3.6, 4.8
"""Inches: height of a picture, and width of each of its panels."""


def learning_curve(
    rows: Sequence[dict[str, Any]],
    path: Path,
    *,
    title: str,
    chosen_epoch: int,
    scored_on: str = "validation classes",
    theme: Theme = LIGHT,
) -> None:
    """Draw the loss and the validation scores over the epochs.

    Args:
        rows: The lines of ``metrics.jsonl``.
        path: A PNG, SVG or PDF.
        title: What the run is.
        chosen_epoch: Marked, where there is a validation.
        scored_on: Which classes chose it.
        theme: Colours of the picture.
    """
    recalls = [key for key in rows[-1] if key.startswith("recall_at_")]
    with styled(theme):
        figure = Figure(figsize=(_PANEL * (2 if recalls else 1), _HEIGHT), layout="constrained")
        figure.suptitle(title)
        axes = figure.subplots(1, 2 if recalls else 1, squeeze=False)[0]
        trained = [row for row in rows if "loss" in row]
        axes[0].plot([r["epoch"] for r in trained], [r["loss"] for r in trained], marker="o")
        _over_epochs(axes[0], "training loss")
        if recalls:
            _draw_recalls(axes[1], rows, recalls, chosen_epoch, theme)
            _over_epochs(axes[1], f"on {scored_on}, %")
        save(figure, path)


def _draw_recalls(
    axes: Axes, rows: Sequence[dict[str, Any]], recalls: Sequence[str], chosen_epoch: int, theme: Theme
) -> None:
    """A curve per Recall@k, the first the strongest, and a line at the chosen epoch."""
    epochs = [row["epoch"] for row in rows]
    for number, key in enumerate(recalls):
        axes.plot(
            epochs,
            [100 * row[key] for row in rows],
            color=theme.accent,
            alpha=1 - 0.7 * number / len(recalls),
            marker="o",
            label=f"Recall@{key.removeprefix('recall_at_')}",
        )
    axes.axvline(
        chosen_epoch, color=theme.second, linestyle="--", linewidth=1, label=f"chosen: epoch {chosen_epoch}"
    )
    axes.figure.legend(loc="outside lower right", ncols=len(recalls) + 1)


def fold_curves(
    folds: Sequence[Sequence[dict[str, Any]]],
    path: Path,
    *,
    title: str,
    chosen_epochs: Sequence[int],
    theme: Theme = LIGHT,
) -> None:
    """Draw the loss and the first Recall@k of every fold over the epochs.

    Args:
        folds: The lines of each fold's ``metrics.jsonl``.
        path: A PNG, SVG or PDF.
        title: What the run is.
        chosen_epochs: The chosen epoch of each fold, marked on its curve.
        theme: Colours of the picture.
    """
    key = next(key for key in folds[0][-1] if key.startswith("recall_at_"))
    with styled(theme):
        figure = Figure(figsize=(2 * _PANEL, _HEIGHT), layout="constrained")
        figure.suptitle(title)
        losses, scores = figure.subplots(1, 2)
        mark: dict[str, Any] = {"color": theme.second, "marker": "o", "markersize": 5, "linestyle": "none"}
        for rows, chosen in zip(folds, chosen_epochs, strict=True):
            trained = [row for row in rows if "loss" in row]
            line: dict[str, Any] = {"color": theme.accent, "alpha": 0.5}
            losses.plot([r["epoch"] for r in trained], [r["loss"] for r in trained], **line)
            scores.plot([r["epoch"] for r in rows], [100 * r[key] for r in rows], **line)
            best = next(row for row in rows if row["epoch"] == chosen)
            scores.plot(chosen, 100 * best[key], **mark)
        scores.plot([], [], label="chosen epoch", **mark)
        figure.legend(loc="outside lower right")
        _over_epochs(losses, f"training loss of {len(folds)} folds")
        _over_epochs(scores, f"Recall@{key.removeprefix('recall_at_')} on each fold's validation classes, %")
        save(figure, path)


def _over_epochs(axes: Axes, title: str) -> None:
    dress(axes, title)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
