"""How everything that nearkin draws looks: the colours of both modes, the fonts, and how files are written.

Every picture, the tournament's report and the animated page take their colours from :data:`LIGHT` and
:data:`DARK`; no other module of the package names a colour.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import ceil, sqrt
from pathlib import Path as FilePath
from typing import Any

from cycler import cycler
from matplotlib import style as mpl_style
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from nearkin.atomic import atomic_path

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Theme:
    """The colours of a mode, as ``#rrggbb``.

    Words in ``ink``, ``soft``, ``positive`` and ``negative`` have a contrast of at least 4.5 : 1 with
    ``paper`` and ``raised``, everything in ``series`` one of at least 3 : 1 with ``paper``.

    Attributes:
        name: ``light`` or ``dark``.
        paper: Behind everything.
        raised: Behind boxes and every other row.
        ink: Words.
        soft: Words that matter less, and axes.
        rule: Lines between parts of a page.
        grid: Behind curves.
        pale: Curves and circles that are only there for comparison.
        series: Categories, in this order; told apart with every kind of colour vision.
        marked: Behind the row of a table that a link leads to.
        warning: Behind a warning.
        warning_ink: Its words.
    """

    name: str
    paper: str
    raised: str
    ink: str
    soft: str
    rule: str
    grid: str
    pale: str
    series: tuple[str, ...]
    marked: str
    warning: str
    warning_ink: str

    @property
    def positive(self) -> str:
        """Pairs of one class, and neighbours of the query's class."""
        return self.series[0]

    @property
    def negative(self) -> str:
        """Pairs of different classes, and neighbours of another class than the query's."""
        return self.series[1]

    @property
    def accent(self) -> str:
        """The curve, bar or link that the eye should find first."""
        return self.series[0]

    @property
    def second(self) -> str:
        """What is marked on it: the chosen epoch, the best trial."""
        return self.series[1]

    def css(self) -> dict[str, str]:
        """The colours by the names that pages use for them.

        >>> LIGHT.css()["ink"], DARK.css()["ink"]
        ('#1d1d1b', '#e9e7e2')
        """
        plain = ("paper", "raised", "ink", "soft", "rule", "grid", "pale", "accent", "positive", "negative")
        names = {name: getattr(self, name) for name in plain}
        names |= {f"s{number}": colour for number, colour in enumerate(self.series)}
        return names | {"marked": self.marked, "warn": self.warning, "warn-ink": self.warning_ink}


LIGHT = Theme(
    name="light",
    paper="#ffffff",
    raised="#f5f4ef",
    ink="#1d1d1b",
    soft="#5d5c57",
    rule="#dddbd3",
    grid="#e9e7e0",
    pale="#cfcdc5",
    series=("#1f5a9f", "#aa3d00", "#1b9785", "#783fc7", "#b08400", "#da3f70", "#4a3218", "#7289a8"),
    marked="#e8f0fa",
    warning="#fbf1dc",
    warning_ink="#6b4700",
)
DARK = Theme(
    name="dark",
    paper="#151617",
    raised="#1e1f21",
    ink="#e9e7e2",
    soft="#aaa8a1",
    rule="#383835",
    grid="#2a2b2b",
    pale="#45464a",
    series=("#7fb2ee", "#f38947", "#5cd5b7", "#a878f0", "#f0dc70", "#d977b6", "#b08a5a", "#e6ebf0"),
    marked="#1c2a3a",
    warning="#33291a",
    warning_ink="#f0cf94",
)

PAPER, INK, GREY, PALE, GRID = LIGHT.paper, LIGHT.ink, LIGHT.soft, LIGHT.pale, LIGHT.grid
PULL, PUSH = LIGHT.positive, LIGHT.negative
"""What a loss does to positive pairs and to negative ones."""

CLASS_COLOURS = LIGHT.series
CLASS_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")

PULL_TO_PUSH = LinearSegmentedColormap.from_list("pull_to_push", [PULL, PAPER, PUSH])
"""For numbers of both signs: negative ones pull, zero is paper, positive ones push."""

SHADES = LinearSegmentedColormap.from_list("shades", [PAPER, INK])
"""For numbers of one sign."""

FORMATS = ("png", "svg", "pdf")
DPI = 200
POINTS_PER_INCH = 72.0

SMALL, NORMAL, TITLE = 7.0, 8.5, 10.0
"""Font sizes in points: words inside a picture, axes and legends, and titles."""

MONOSPACE = "monospace"

# The first one comes with matplotlib, so that pictures are the same everywhere; the others have the letters
# that it lacks, and are used where they are installed.
_FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans JP",
    "Noto Sans SC",
    "WenQuanYi Zen Hei",
    "IPAGothic",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Noto Sans Devanagari",
    "Arial Unicode MS",
)


@cache
def _installed_fonts() -> list[str]:
    installed = {font.name for font in fontManager.ttflist}
    return [*(name for name in _FONTS if name in installed), "sans-serif"]


def settings(theme: Theme = LIGHT) -> dict[Any, Any]:
    """The style as matplotlib's rcParams."""
    return {
        "font.family": _installed_fonts(),
        "font.size": NORMAL,
        "figure.titlesize": TITLE,
        "axes.titlesize": TITLE,
        "axes.labelsize": NORMAL,
        "xtick.labelsize": NORMAL,
        "ytick.labelsize": NORMAL,
        "legend.fontsize": NORMAL,
        "legend.frameon": False,
        "text.color": theme.ink,
        "text.parse_math": False,  # a text or a class may be called "$5 and $6"
        "axes.titlecolor": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.soft,
        "axes.facecolor": theme.paper,
        "figure.facecolor": theme.paper,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": cycler(color=theme.series),
        "grid.color": theme.grid,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.5,
        "lines.markersize": 4.0,
        "xtick.color": theme.soft,
        "ytick.color": theme.soft,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "svg.fonttype": "none",  # words stay words
        "svg.hashsalt": "nearkin",
        "pdf.fonttype": 42,
    }


@contextmanager
def styled(theme: Theme = LIGHT) -> Iterator[Theme]:
    """Draw in this style, whatever the caller's own rcParams are; figures are made and saved inside.

    Letters that no installed font has become boxes, without a warning for each.
    """
    with mpl_style.context(["default", settings(theme)]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield theme


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


_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def save(
    figure: Figure, path: Path, *, tight: bool = False, transparent: bool = False, dpi: float = DPI
) -> None:
    """Write a figure as PNG, SVG or PDF, whole or not at all; the same figure gives the same bytes.

    Args:
        figure: On the paper of the theme it was made in.
        path: Where it goes; its extension says the format.
        tight: Cut the picture to what is drawn.
        transparent: Leave the paper away.
        dpi: Pixels per inch.
    """
    kind = check_format(path)
    with atomic_path(path) as temporary:
        figure.savefig(
            temporary,
            dpi=dpi,
            format=kind,
            metadata=_METADATA[kind],
            facecolor="none" if transparent else figure.get_facecolor(),
            bbox_inches="tight" if tight else None,
        )


def light_dark_css() -> str:
    """CSS variables that follow the page's colour scheme.

    >>> light_dark_css().splitlines()[0]
    '--paper: light-dark(#ffffff, #151617);'
    """
    dark = DARK.css()
    return "\n".join(f"--{name}: light-dark({colour}, {dark[name]});" for name, colour in LIGHT.css().items())


def css_of(theme: Theme) -> str:
    """CSS variables of one mode, for pages whose scripts read them."""
    return " ".join(f"--{name}: {colour};" for name, colour in theme.css().items())


def colour_of(label: int, theme: Theme = LIGHT) -> str:
    """The colour of a class."""
    return theme.series[label % len(theme.series)]


def marker_of(label: int) -> str:
    """The shape of a class, for those who print in black and white."""
    return CLASS_MARKERS[label % len(CLASS_MARKERS)]


def two_colours_of(number: int, theme: Theme = LIGHT) -> tuple[str, str]:
    """Two colours for a class of many: the first classes have one colour twice, no two have the same pair.

    >>> len({two_colours_of(number) for number in range(64)})
    64
    """
    count = len(theme.series)
    first = number % count
    return theme.series[first], theme.series[(first + number // count) % count]


def columns_of_grid(panels: int, wanted: int | None) -> int:
    """Panels in a row: as many as wanted, or about half more than rows.

    >>> columns_of_grid(18, None)
    6
    """
    return min(panels, wanted or ceil(sqrt(1.6 * panels)))


def dress(axes: Axes, title: str = "") -> None:
    """A title, a grid, and a frame that stays out of the way."""
    if title:
        axes.set_title(title)
    axes.grid(visible=True)


def dress_small(axes: Axes) -> None:
    """The same for one of many small panels."""
    dress(axes)
    axes.tick_params(labelsize=SMALL, length=2.5)
