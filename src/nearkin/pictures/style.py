"""How the pictures look: colours that everybody can tell apart, and files by their extension."""

from __future__ import annotations

import os
from math import ceil, sqrt
from pathlib import Path as FilePath

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from nearkin.atomic import atomic_path

Path = str | os.PathLike[str]

INK, GREY, PALE = "#222222", "#6b6b6b", "#d0d0d0"
PULL, PUSH = "#0072b2", "#d55e00"
"""Okabe and Ito's blue and vermilion: told apart with every kind of colour vision, and in grey."""

CLASS_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#4d4d4d")
CLASS_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")

PULL_TO_PUSH = LinearSegmentedColormap.from_list("pull_to_push", [PULL, "#ffffff", PUSH])

FORMATS = ("png", "svg", "pdf")


def colour_of(label: int) -> str:
    """The colour of a class."""
    return CLASS_COLOURS[label % len(CLASS_COLOURS)]


def marker_of(label: int) -> str:
    """The shape of a class, for those who print in black and white."""
    return CLASS_MARKERS[label % len(CLASS_MARKERS)]


def check_format(path: Path, formats: tuple[str, ...] = FORMATS) -> str:
    """The format that a file's extension asks for.

    >>> check_format("forces.PDF")
    'pdf'
    >>> check_format("forces.jpg")
    Traceback (most recent call last):
    ValueError: forces.jpg: pictures are written as png, svg, pdf
    """
    extension = FilePath(path).suffix.lower().removeprefix(".")
    if extension not in formats:
        raise ValueError(f"{path}: pictures are written as {', '.join(formats)}")
    return extension


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF; the same figure gives the same bytes."""
    kind = check_format(path)
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    settings = {"svg.hashsalt": "nearkin", "pdf.fonttype": 42}
    with mpl.rc_context(settings), atomic_path(path) as temporary:  # type: ignore[arg-type]
        figure.savefig(temporary, dpi=200, facecolor="white", format=kind, metadata=dates)


def columns_of_grid(panels: int, wanted: int | None) -> int:
    """Panels in a row: as many as wanted, or about half more than rows.

    >>> columns_of_grid(18, None)
    6
    """
    return min(panels, wanted or ceil(sqrt(1.6 * panels)))


def dress(axes: Axes) -> None:
    """A frame that stays out of the way."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=7, color=GREY, labelcolor=INK, length=2.5)
    axes.grid(color="#ececec", linewidth=0.6)
    axes.set_axisbelow(True)
