from __future__ import annotations

import itertools
import re
from importlib import resources
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import nearkin
from nearkin.pictures import style
from nearkin.pictures.style import DARK, LIGHT, Theme, light_dark_css, save, styled, two_colours_of

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
HEX = re.compile(r"#[0-9a-fA-F]{3,8}\b")
SOURCE = Path(nearkin.__file__).parent

# Machado, Oliveira and Fernandes (2009, IEEE TVCG), Table 1, severity 1, on linear RGB.
COLOUR_VISION = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(first: str, second: str) -> float:
    """WCAG 2.2's contrast ratio."""
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def cie_lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_the_contrast_is_wcags():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@THEMES
def test_words_stand_out_from_what_is_behind_them(theme: Theme):
    for words in (theme.ink, theme.soft, theme.accent, theme.positive, theme.negative):
        for behind in (theme.paper, theme.raised):
            assert contrast(words, behind) >= 4.5
    assert contrast(theme.warning_ink, theme.warning) >= 4.5
    for words in (theme.ink, theme.soft, theme.accent):
        assert contrast(words, theme.marked) >= 4.5


@THEMES
def test_marks_stand_out_from_the_paper(theme: Theme):
    assert all(contrast(colour, theme.paper) >= 3 for colour in theme.series)


@THEMES
@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_categories_are_told_apart_with_every_colour_vision(theme: Theme, vision: str):
    seen = {colour: cie_lab(np.array(COLOUR_VISION[vision]) @ linear(colour)) for colour in theme.series}
    for first, second in itertools.combinations(theme.series, 2):
        difference = float(np.linalg.norm(seen[first] - seen[second]))
        assert difference > 15, (first, second)  # a difference of 2.3 is just noticeable, side by side


def test_positives_and_negatives_are_told_apart_with_every_colour_vision():
    for theme, vision in itertools.product((LIGHT, DARK), COLOUR_VISION.values()):
        pair = [cie_lab(np.array(vision) @ linear(colour)) for colour in (theme.positive, theme.negative)]
        assert np.linalg.norm(pair[0] - pair[1]) > 35


def test_both_modes_have_the_same_names():
    assert LIGHT.css().keys() == DARK.css().keys()
    assert len(LIGHT.series) == len(DARK.series) == len(style.CLASS_MARKERS)


def test_every_variable_of_a_page_is_defined():
    defined = set(re.findall(r"--([\w-]+):", light_dark_css()))
    report = resources.files("nearkin.tournament.report") / "templates" / "report.css"
    animation = resources.files("nearkin.explain") / "animation.html"
    for page in (report, animation):
        text = page.read_text(encoding="utf-8")
        own = set(re.findall(r"--([\w-]+):", text)) | {"share"}
        assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= defined | own


def test_no_other_file_names_a_colour():
    """In Python only hexadecimal strings, pages anywhere; ``#`` also begins links and comments."""
    quoted = re.compile(
        r"""["']#[0-9a-fA-F]{3,8}["']|["'](?:white|black|red|green|blue|orange|gr[ae]y)["']"""
    )
    drawing = [
        *SOURCE.glob("pictures/*.py"),
        *SOURCE.glob("explain/*.py"),
        *SOURCE.glob("tournament/report/*.py"),
    ]
    for file in drawing:
        if file.name != "style.py":
            assert not quoted.findall(file.read_text(encoding="utf-8")), file
    for file in (
        SOURCE / "tournament/report/templates/report.css",
        SOURCE / "explain/animation.html",
    ):
        assert not HEX.findall(file.read_text(encoding="utf-8")), file


def drawn(path: Path) -> bytes:
    with styled():
        figure = Figure(figsize=(2, 2))
        axes = figure.subplots()
        axes.plot([0, 1], [1, 0])
        style.dress(axes, "a title")
        save(figure, path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", style.FORMATS)
def test_the_same_figure_is_the_same_file_whatever_the_callers_settings(kind, tmp_path):
    first = drawn(tmp_path / f"a.{kind}")
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red", "lines.linewidth": 9, "axes.grid": True}):
        assert drawn(tmp_path / f"b.{kind}") == first
        assert mpl.rcParams["font.size"] == 20
    assert b"atplotlib v" not in first
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_a_figure_that_cannot_be_drawn_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.png"
    before = drawn(path)

    class Broken(Figure):
        def draw(self, renderer):
            raise RuntimeError("no ink")

    with pytest.raises(RuntimeError, match="no ink"):
        save(Broken(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_words_stay_words_and_dollars_are_no_formulas(tmp_path):
    with styled():
        figure = Figure()
        figure.text(0.1, 0.5, "from $5 to $6_each")
        save(figure, tmp_path / "a.svg")
    assert "from $5 to $6_each" in (tmp_path / "a.svg").read_text(encoding="utf-8")


@THEMES
def test_sixty_four_classes_have_a_pair_of_colours_each(theme: Theme):
    assert len({two_colours_of(number, theme) for number in range(64)}) == 64
    assert all(len(set(two_colours_of(number, theme))) == 1 for number in range(8))
