"""A map of an embedding in two dimensions, with the samples themselves on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.pictures.galleries import some_of_each_class
from nearkin.pictures.samples import (
    LabelledSamples,
    Pixels,
    Portrait,
    one_line,
    portrait,
    shortened,
    text_width,
)
from nearkin.pictures.style import (
    DPI,
    LIGHT,
    NORMAL,
    POINTS_PER_INCH,
    Path,
    Theme,
    check_format,
    colour_of,
    marker_of,
    save,
    styled,
    two_colours_of,
)

_OUTER, _INNER = 3, 2
"""Pixels of the two parts of a frame."""

_MARKER, _LABEL = 6.0, 6.5
"""Points: size of a mark, and of the words beside it."""

_WORDS = 32
_NAME, _IN_A_ROW, _ROW = 24, 4, 44
"""Legend: letters of a name, names in a row, and pixels from row to row."""


class _Placed(NamedTuple):
    """A sample, the number of its class among those drawn, and its place in pixels."""

    seen: Portrait
    group: int
    x: float
    y: float


def embedding_map(
    samples: LabelledSamples,
    embeddings: Tensor,
    path: Path,
    *,
    classes: int = 40,
    samples_per_class: int = 12,
    side: int = 1800,
    thumbnail: int = 36,
    seed: int = 0,
    theme: Theme = LIGHT,
) -> None:
    """Draw a 2-D map of the embedding (t-SNE) with the samples themselves.

    Images are thumbnails in a frame whose one or two colours say the class. Other samples are marks whose
    colour and shape say it, with their words or names beside those that have room for them.

    Args:
        samples: The samples that were embedded.
        embeddings: Embeddings of all samples ``(N, D)``.
        path: A PNG, SVG or PDF.
        classes: Largest number of classes, chosen at random.
        samples_per_class: Largest number of samples of each.
        side: Width and height of the map in pixels; where there are marks, their legend is below it.
        thumbnail: Longer side of an image in pixels.
        seed: Seed of the random choice of classes and of t-SNE.
        theme: Colours of the picture.
    """
    check_format(path)
    chosen = some_of_each_class(samples.labels, classes, samples_per_class, seed)
    labels = samples.labels[chosen].tolist()
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    places = _places(embeddings[chosen.to(embeddings.device)], side, 1.5 * thumbnail, seed)
    placed = [
        _Placed(portrait(samples, index), numbers[label], float(x), float(y))
        for index, label, (x, y) in zip(chosen.tolist(), labels, places, strict=True)
    ]
    worded = [one for one in placed if one.seen.pixels is None]
    legend = [
        (number, samples.class_names[label])
        for label, number in numbers.items()
        if any(one.group == number for one in worded)
    ]
    below = _ROW * ceil(len(legend) / _IN_A_ROW)
    with styled(theme):
        figure = Figure(figsize=(side / DPI, (side + below) / DPI))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, side), ylim=(side + below, 0))
        axes.set_axis_off()
        if len(worded) < len(placed):
            sheet = _collage(placed, side, thumbnail, theme)
            axes.imshow(sheet, interpolation="nearest", extent=(0, side, side, 0), aspect="auto")
        _draw_words(axes, worded, side, theme)
        _draw_legend(axes, legend, side, theme)
        save(figure, path)


def _places(embeddings: Tensor, side: int, margin: float, seed: int) -> NDArray[np.float64]:
    """Where each embedding lies on the map, in pixels from its upper left corner."""
    points = normalize(embeddings, dim=1).double().cpu().numpy()
    if len(points) < 3:  # too few to be laid out
        return np.linspace(margin, side - margin, len(points) + 2)[1:-1, None].repeat(2, axis=1)
    perplexity = min(20.0, max(1.0, (len(points) - 1) / 3))
    found = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(points)
    low, high = found.min(axis=0), found.max(axis=0)
    placed: NDArray[np.float64] = (found - low) / np.maximum(high - low, 1e-9) * (side - 2 * margin) + margin
    return placed


def _collage(placed: Sequence[_Placed], side: int, thumbnail: int, theme: Theme) -> Pixels:
    """All thumbnails on one sheet of paper, pixel for pixel."""
    sheet = Image.new("RGB", (side, side), theme.paper)
    for one in placed:
        if one.seen.pixels is not None:
            tile = _framed(one.seen.pixels, thumbnail, two_colours_of(one.group, theme))
            sheet.paste(tile, (round(one.x - tile.width / 2), round(one.y - tile.height / 2)))
    return np.asarray(sheet)


def _framed(pixels: Pixels, thumbnail: int, colours: tuple[str, str]) -> Image.Image:
    picture = Image.fromarray(pixels)
    scale = thumbnail / max(picture.size)
    picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    for colour, width in zip(reversed(colours), (_INNER, _OUTER), strict=True):
        red, green, blue = (round(255 * part) for part in to_rgb(colour))
        framed = Image.new("RGB", (picture.width + 2 * width, picture.height + 2 * width), (red, green, blue))
        framed.paste(picture, (width, width))
        picture = framed
    return picture


def _draw_words(axes: Axes, placed: Sequence[_Placed], side: int, theme: Theme) -> None:
    """A mark for every sample, and its words where they hide nothing."""
    pixels = DPI / POINTS_PER_INCH
    reach = _MARKER / 2 * pixels
    taken = [(one.x - reach, one.y - reach, one.x + reach, one.y + reach) for one in placed]
    for one in placed:
        _mark(axes, one.x, one.y, one.group, theme)
        words = shortened(one.seen.text, _WORDS)
        size = (text_width(words) * _LABEL * pixels, 1.2 * _LABEL * pixels)
        for box in _beside(one.x, one.y, reach + 4, size):
            if min(box) >= 0 and max(box) <= side and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                middle = (box[1] + box[3]) / 2
                axes.text(box[0], middle, words, fontsize=_LABEL, va="center", color=theme.ink)
                break


def _mark(axes: Axes, x: float, y: float, group: int, theme: Theme) -> None:
    """The mark of a class: eight colours of one shape, then of the next."""
    axes.plot(
        x,
        y,
        marker=marker_of(group // len(theme.series)),
        markersize=_MARKER,
        color=colour_of(group, theme),
        markeredgecolor=theme.paper,
        markeredgewidth=0.5,
    )


def _draw_legend(axes: Axes, names: Sequence[tuple[int, str]], side: int, theme: Theme) -> None:
    """The marks of the classes with their names, below the map."""
    for number, (group, name) in enumerate(names):
        row, column = divmod(number, _IN_A_ROW)
        x, y = side * (column + 0.1) / _IN_A_ROW, side + (row + 0.3) * _ROW
        _mark(axes, x, y, group, theme)
        words = shortened(one_line(name), _NAME)
        axes.text(x + 18, y, words, fontsize=NORMAL, va="center", color=theme.ink)


Box = tuple[float, float, float, float]


def _beside(x: float, y: float, gap: float, size: tuple[float, float]) -> Iterator[Box]:
    """Boxes right, left, below and above a place."""
    width, height = size
    for left, top in (
        (x + gap, y - height / 2),
        (x - gap - width, y - height / 2),
        (x - width / 2, y + gap),
        (x - width / 2, y - gap - height),
    ):
        yield left, top, left + width, top + height


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]
