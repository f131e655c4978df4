"""The model of an index on a server: its files come back as they were, and nothing else does."""

from __future__ import annotations

import pytest
from indexed import picture_model

from nearkin.index.model_files import Part, fetched, parts_of
from nearkin.model import Model


def test_a_model_comes_back_in_parts_of_any_size(model):
    for size in (100, 10**6):
        parts = list(parts_of(model, size))
        assert max(len(part.data) for part in parts) <= size
    folder = fetched(model.fingerprint, lambda: parts)
    assert Model.read(folder).fingerprint == model.fingerprint


def test_what_the_cache_has_is_not_fetched_again():
    own = picture_model(seed=3)
    asked = []

    def fetch():
        asked.append(1)
        return parts_of(own, 1000)

    assert fetched(own.fingerprint, fetch) == fetched(own.fingerprint, fetch)
    assert asked == [1]


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/passwd", "a/../../b", "a/b/c", "", ".", "..", "a\\b", "~/x"]
)
def test_a_strangers_server_writes_nowhere_else(name):
    with pytest.raises(ValueError, match="no file of a model"):
        fetched("e" * 64, lambda: [Part(name, 0, b"evil"), Part("card.json", 0, b"{}")])


def test_a_half_model_and_a_fingerprint_that_is_none_are_told(tmp_path):
    with pytest.raises(ValueError, match="no whole model of fingerprint dddd"):
        fetched("d" * 64, lambda: [Part("model.json", 0, b"{}")])
    with pytest.raises(ValueError, match="no fingerprint"):
        fetched("../../x", list)
