"""What a person sees of a sample: its image, its words, its numbers as a strip of colours, or its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.font_manager import findfont, get_font
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data import shown
from nearkin.pictures.style import LIGHT, NORMAL, POINTS_PER_INCH, Theme

Pixels = NDArray[np.uint8]

_STRIP = 64
"""A longer vector is drawn as the means of so many stretches."""

_SIZES = (NORMAL, 7.5, 6.5, 5.5)
"""Font sizes in points, tried from large to small until the words fit."""

_LINE = 1.2
_LONGEST = 2000
"""Letters of a text that are looked at; no box has room for more."""


class LabelledSamples(Protocol):
    """What pictures ask of a split of a data set."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> Tensor:
        """Numbers of the classes ``(N,)``."""
        ...

    @property
    def class_names(self) -> Sequence[str]:
        """What the numbers mean."""
        ...


def samples_of(labelled: LabelledSamples) -> Any:
    """The samples of a split, without their labels; not what is computed from them and stands for them."""
    samples: Any = labelled.samples  # type: ignore[attr-defined]
    while getattr(samples, "samples", None) is not None:
        samples = samples.samples
    return samples


@dataclass(frozen=True)
class Portrait:
    """A sample as it is drawn.

    Attributes:
        pixels: An RGB image ``(H, W, 3)``, where the sample is one.
        text: Its words or its name, where it is not.
        strip: The numbers of a vector ``(n,)``, the largest in size being 1 or −1.
    """

    pixels: Pixels | None = None
    text: str = ""
    strip: NDArray[np.float64] | None = None


def portrait(labelled: LabelledSamples, index: int) -> Portrait:
    """One sample of a split as it is drawn."""
    samples = samples_of(labelled)
    seen = shown(samples, index)
    if isinstance(seen, Tensor):
        return Portrait(pixels(seen))
    return Portrait(text=one_line(seen), strip=_strip(samples[index]))


def pixels(image: Tensor) -> Pixels:
    """An image ``uint8`` ``(C, H, W)`` as RGB ``(H, W, 3)``.

    Grey images and RGB are shown as they are, RGBA on white, and any other number of channels as its mean.
    """
    channels = image.shape[0]
    if channels == 4:
        opaque = image[3:].float() / 255
        image = (image[:3] * opaque + 255 * (1 - opaque)).round().to(torch.uint8)
    elif channels not in (1, 3):
        image = image.float().mean(dim=0, keepdim=True).round().to(torch.uint8)
    rgb: Pixels = image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()
    return rgb


def _strip(sample: Any) -> NDArray[np.float64] | None:
    """A vector scaled to its largest number, and shortened if it is long; ``None`` for anything else."""
    if not isinstance(sample, (Tensor, np.ndarray)):
        return None
    values = torch.as_tensor(sample)
    if values.ndim != 1 or len(values) == 0 or values.is_complex() or values.dtype == torch.bool:
        return None
    values = torch.nan_to_num(values.detach().cpu().double(), nan=0.0, posinf=0.0, neginf=0.0)
    if len(values) > _STRIP:
        values = torch.stack([part.mean() for part in values.tensor_split(_STRIP)])
    shares: NDArray[np.float64] = (values / values.abs().max().clamp_min(1e-300)).numpy()
    return shares


def strip_pixels(strip: NDArray[np.float64], theme: Theme = LIGHT) -> Pixels:
    """A strip as colours ``(1, n, 3)``: numbers above 0 in one, numbers below in another, 0 as paper."""
    paper, above, below = (np.array(to_rgb(c)) for c in (theme.paper, theme.positive, theme.negative))
    full = np.where(strip[:, None] > 0, above, below)
    strength = np.abs(strip)[:, None]
    colours: Pixels = np.round(255 * (strength * full + (1 - strength) * paper))[None].astype(np.uint8)
    return colours


def one_line(text: str) -> str:
    r"""A text without line breaks and without characters that cannot be printed.

    >>> one_line("two\nlines\x00 ")
    'two lines'
    """
    return " ".join("".join(c if c.isprintable() else " " for c in text[:_LONGEST]).split())


def shortened(text: str, length: int) -> str:
    """At most so many characters, the last of them an ellipsis if there were more.

    >>> shortened("Black-footed Albatross", 12)
    'Black-foote…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def fitted(text: str, width: float, height: float) -> tuple[str, float]:
    """A text in lines that fit a box, with the largest font size for which they do.

    Args:
        text: Its words.
        width: The width of the box, in inches.
        height: The height of the box, in inches.

    Returns:
        The lines, ended by an ellipsis where not all of them fit, and the font size in points.
    """
    for size in _SIZES:
        room = max(1, int(height * POINTS_PER_INCH / (_LINE * size)))
        lines = list(_wrapped(text, width * POINTS_PER_INCH / size))
        if len(lines) <= room:
            return "\n".join(lines), size
    last = lines[room - 1]
    while last and text_width(last + "…") > width * POINTS_PER_INCH / size:
        last = last[:-1]
    return "\n".join([*lines[: room - 1], last.rstrip() + "…"]), size


def _wrapped(text: str, width: float) -> Iterator[str]:
    """Lines of at most ``width`` times the font size, broken between words, or inside one that is longer."""
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if text_width(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        line = ""
        for letter in word:
            if line and text_width(line + letter) > width:
                yield line
                line = ""
            line += letter
    if line:
        yield line


def text_width(text: str) -> float:
    """Width of a text in units of its font size.

    >>> text_width("mm") == 2 * text_width("m")
    True
    """
    return sum(_letter_width(letter) for letter in text)


@lru_cache(maxsize=4096)
def _letter_width(letter: str) -> float:
    font = get_font(findfont("DejaVu Sans"))
    if not font.get_char_index(ord(letter)):
        return 1.0  # as wide as the letters of Chinese, which are the widest there are
    font.set_size(100, POINTS_PER_INCH)
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


def draw_portrait(axes: Axes, seen: Portrait, theme: Theme, *, size: tuple[float, float]) -> None:
    """Draw a sample into axes of its own, without ticks.

    Args:
        axes: Empty.
        seen: The sample.
        theme: The theme of the picture.
        size: Width and height of the axes in inches.
    """
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(theme.rule)
        spine.set_linewidth(0.6)
    if seen.pixels is not None:
        axes.imshow(seen.pixels)
        return
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_facecolor(theme.raised)
    width, height = size
    below = 0.0
    if seen.strip is not None:
        below = 0.4
        strip = axes.inset_axes((0.06, 0.12, 0.88, below - 0.12))
        strip.imshow(strip_pixels(seen.strip, theme), aspect="auto", interpolation="nearest")
        strip.set_axis_off()
    words, points = fitted(seen.text, 0.9 * width, (0.92 - below) * height)
    axes.text(
        0.5,
        (1 + below) / 2,
        words,
        ha="center",
        va="center",
        fontsize=points,
        linespacing=1.1,
        color=theme.ink,
    )
