from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image
from samples_of_any_kind import KINDS, SENTENCES, samples_of_kind

from nearkin.pictures.samples import portrait, strip_pixels
from nearkin.pictures.style import DARK, LIGHT
from nearkin.tournament.report.looks import Gallery, thumbnail
from nearkin.tournament.report.writing import _environment


def picture_of(uri: str) -> np.ndarray:
    with Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2]))) as picture:
        return np.asarray(picture.convert("RGB"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_thumbnail_is_the_image_or_the_words_or_the_strip_and_name(kind):
    samples = samples_of_kind(kind)
    found = thumbnail(samples, 5, right=True)
    seen = portrait(samples, 5)
    assert found.name == samples.class_names[int(samples.labels[5])]
    assert found.text == seen.text
    if kind.startswith("images"):
        assert (picture_of(found.uri) == seen.pixels).all()
    elif kind == "vectors":
        assert (picture_of(found.uri) == strip_pixels(seen.strip)).all()
    else:
        assert found.uri == ""
    gallery = Gallery("a loss", "", "", [(found, [found])], "")
    assert gallery.has_words == (not kind.startswith("images"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_writes_words_as_words(kind):
    samples = samples_of_kind(kind)
    parts = _environment().get_template("parts.html.j2").module
    page = "".join(str(parts.thumb(thumbnail(samples, index, right=True))) for index in range(len(samples)))
    assert page.count("✓") == len(samples)
    assert page.count("<img") == (0 if kind in {"texts", "things"} else len(samples))
    assert all(re.findall(r'<img [^>]*alt="([^"]+)"', page)) or "<img" not in page
    if kind == "texts":
        assert "&lt;b&gt;bold&lt;/b&gt;" in page
        assert "<b>bold" not in page
        assert all(sentences[0].split()[0] in page for sentences in SENTENCES.values())


def test_the_page_has_the_colours_of_both_modes():
    css = _environment().globals["style"]
    assert "COLOURS" not in css
    for name, colour in LIGHT.css().items():
        assert f"--{name}: light-dark({colour}, {DARK.css()[name]});" in css
