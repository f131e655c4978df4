from __future__ import annotations

import pytest

from nearkin.registry import Registry, nearest_name


@pytest.fixture
def registry() -> Registry[dict]:
    registry: Registry[dict] = Registry("thing")

    @registry.register("one")
    def one(*, size: int = 1) -> dict:
        return {"size": size}

    @registry.register("open")
    def open_ended(**anything: int) -> dict:
        return dict(anything)

    return registry


def test_builds_by_name_with_keywords(registry):
    assert registry.build("one", size=4) == {"size": 4}
    assert registry.build("open", a=1) == {"a": 1}


def test_names_are_sorted_and_iterable(registry):
    assert registry.names() == list(registry) == ["one", "open"]
    assert "one" in registry
    assert "two" not in registry


def test_unknown_name_names_the_nearest(registry):
    with pytest.raises(ValueError, match="unknown thing 'on': did you mean one?"):
        registry.build("on")


def test_hopeless_name_lists_all(registry):
    with pytest.raises(ValueError, match="known: one, open"):
        registry.get("zzzzzz")


def test_unknown_keyword_names_the_nearest(registry):
    with pytest.raises(ValueError, match="thing 'one' has no keyword 'sise': did you mean size?"):
        registry.build("one", sise=2)


def test_a_name_is_taken_once(registry):
    with pytest.raises(ValueError, match="registered already"):
        registry.register("one")(dict)
    registry.unregister("one")
    registry.register("one")(dict)
    assert registry.get("one") is dict


def test_nearest_name_of_nothing_similar_lists_everything():
    assert nearest_name("q", ["b", "a"]) == "known: a, b"
