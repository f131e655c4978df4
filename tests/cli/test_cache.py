from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache with renderings, activations and something that nobody knows."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("nearkin.cache.user_cache_dir", lambda _: str(folder))
    (folder / "activations" / "abc").mkdir(parents=True)
    (folder / "activations" / "abc" / "rows.bin").write_bytes(bytes(2_500_000))
    (folder / "glyphs-1-ff.safetensors").write_bytes(bytes(1000))
    (folder / "notes.txt").write_bytes(bytes(10))
    old = time.time() - 10 * 86_400
    os.utime(folder / "glyphs-1-ff.safetensors", (old, old))
    return folder


def test_what_lies_there_is_shown(nearkin, cache):
    code, out, err = nearkin("cache")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:5] == ["activations", "1", "2.5", "MB", "today"]
    assert out.splitlines()[2].split()[:7] == ["glyphs", "1", "1.0", "kB", "10", "days", "ago"]
    assert "other" in out
    assert str(cache) in out
    told = json.loads(nearkin("cache", "--json")[1])
    assert told["kinds"]["activations"]["bytes"] == 2_500_000


def test_one_kind_is_cleared_and_the_others_stay(nearkin, cache):
    assert nearkin("cache", "clear", "activations", "--yes")[:2] == (0, "removed 2.5 MB\n")
    assert not (cache / "activations").exists()
    assert (cache / "notes.txt").exists()
    assert nearkin("cache", "clear", "activations", "--yes")[1] == "there is nothing to clear\n"
    assert nearkin("cache", "clear", "-y")[0] == 0
    assert list(cache.iterdir()) == []
    assert "is empty" in nearkin("cache")[1]


def test_nothing_is_cleared_without_a_word(nearkin, cache, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, out, err = nearkin("cache", "clear")
    assert (code, out) == (2, "")
    assert "say --yes" in err
    code, _, err = nearkin("cache", "clear", "activation", "--yes")
    assert code == 2
    assert "did you mean activations?" in err
    assert len(list(cache.iterdir())) == 3


def test_a_person_is_asked(nearkin, cache, monkeypatch):
    class Terminal:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self, *_: int) -> str:
            return self.answer

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    code, _, err = nearkin("cache", "clear")
    assert (code, err) == (2, "nearkin: nothing was done\n")
    assert len(list(cache.iterdir())) == 3
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert nearkin("cache", "clear")[0] == 0
    assert list(cache.iterdir()) == []


def test_a_link_is_removed_and_not_what_it_points_to(nearkin, cache, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (cache / "texts").symlink_to(tmp_path / "precious")
    assert nearkin("cache", "clear", "texts", "--yes")[0] == 0
    assert (tmp_path / "precious" / "file").exists()
