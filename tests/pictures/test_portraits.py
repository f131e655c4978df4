from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from samples_of_any_kind import AnySamples, samples_of_kind

from nearkin.data import SampleSet
from nearkin.pictures.samples import fitted, pixels, portrait, shown, strip_pixels, text_width
from nearkin.pictures.style import DARK, LIGHT, POINTS_PER_INCH, styled


def test_what_is_shown_of_each_kind():
    image = torch.zeros(3, 4, 5, dtype=torch.uint8)
    kinds = AnySamples([image, "a text", torch.randn(8), object(), torch.zeros(4, 5, dtype=torch.uint8)])
    assert shown(kinds, 0) is image
    assert [shown(kinds, index) for index in range(1, 5)] == ["a text", "sample 2", "sample 3", "sample 4"]


def test_pixels_of_any_number_of_channels():
    image = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    assert (pixels(image) == image.permute(1, 2, 0).numpy()).all()
    assert (pixels(image[:1]) == image[:1].expand(3, -1, -1).permute(1, 2, 0).numpy()).all()
    for channels in (2, 5, 12):
        many = torch.randint(0, 256, (channels, 4, 5), dtype=torch.uint8)
        expected = many.double().mean(dim=0).round().numpy()
        assert np.abs(pixels(many) - expected[..., None]).max() <= 1


def test_what_is_transparent_is_white():
    image = torch.zeros(4, 1, 3, dtype=torch.uint8)
    image[3, 0] = torch.tensor([0, 51, 255])
    assert pixels(image)[0].tolist() == [[255] * 3, [204] * 3, [0] * 3]


def test_a_vector_is_a_strip_of_its_numbers():
    vector = torch.tensor([4.0, 0.0, -2.0, float("nan")])
    seen = portrait(SampleSet(AnySamples([vector, vector]), [0, 1]), 1)
    assert seen.text == "sample 1"
    assert seen.strip.tolist() == [1.0, 0.0, -0.5, 0.0]
    for theme in (LIGHT, DARK):
        colours = [f"#{bytes(pixel).hex()}" for pixel in strip_pixels(seen.strip, theme)[0]]
        assert colours[:2] == [theme.positive, theme.paper]
        assert colours[2] not in {theme.positive, theme.negative, theme.paper}


def test_a_long_vector_is_shortened_to_means():
    seen = portrait(samples_of_kind("vectors"), 0)
    assert seen.strip.shape == (64,)
    assert np.abs(seen.strip).max() == 1


@pytest.mark.parametrize(
    "text", ["The quick brown fox jumps", "ÄÖÜ éèê ñ", "iiiiiiiiii", "WWWWWW", "Она играет"]
)
def test_widths_are_those_of_the_renderer(text):
    with styled():
        figure = Figure(dpi=POINTS_PER_INCH)
        written = figure.text(0, 0, text, fontsize=100)
        measured = written.get_window_extent(FigureCanvasAgg(figure).get_renderer()).width / 100
    assert text_width(text) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("text", ["word " * 200, "x" * 500, "short", "東京" * 100, "ab " * 20 + "c" * 60])
@pytest.mark.parametrize("size", [(1.6, 0.7), (0.9, 0.9), (0.3, 0.1)])
def test_a_text_fits_its_box(text, size):
    words, points = fitted(text.strip(), *size)
    lines = words.split("\n")
    assert all(text_width(line) * points / POINTS_PER_INCH <= size[0] + 1e-9 for line in lines)
    assert len(lines) == 1 or 1.2 * len(lines) * points / POINTS_PER_INCH <= size[1] + 1e-9
    kept = words.replace("\n", "").replace(" ", "")
    whole = text.replace(" ", "")
    assert kept == whole or (kept.endswith("…") and whole.startswith(kept[:-1]))


def test_samples_that_stand_for_others_show_the_others():
    activations = AnySamples([torch.randn(8), torch.randn(8)])
    activations.samples = AnySamples(["a text", "another"])
    seen = portrait(SampleSet(activations, [0, 1]), 1)
    assert seen.text == "another"
    assert seen.strip is None
