from __future__ import annotations

import json

import pytest

from nearkin.atomic import atomic_path, is_unfinished, remove_unfinished, write_json, write_text


def test_the_file_appears_whole(tmp_path):
    target = tmp_path / "deep" / "file.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        assert not target.exists()
    assert target.read_text() == "half"
    assert list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_the_old_file(tmp_path):
    target = tmp_path / "file.txt"
    write_text(target, "old")
    with pytest.raises(RuntimeError, match="disk"), atomic_path(target) as temporary:
        temporary.write_text("new")
        raise RuntimeError("disk")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_killed_process_was_writing_can_be_told_and_removed(tmp_path):
    keep = tmp_path / ".unfinished"
    keep.write_text("")
    with atomic_path(tmp_path / "deep" / "file.txt") as temporary:
        assert is_unfinished(temporary)
        assert temporary.suffix == ".txt"
        remove_unfinished(tmp_path)
        assert not temporary.exists()
        temporary.write_text("again")
    assert not is_unfinished(tmp_path / "deep" / "file.txt")
    assert keep.exists()


def test_json_refuses_nan_and_keeps_the_old_file(tmp_path):
    target = tmp_path / "result.json"
    write_json(target, {"recall": 0.5})
    with pytest.raises(ValueError, match="JSON"):
        write_json(target, {"recall": float("nan")})
    assert json.loads(target.read_text()) == {"recall": 0.5}
