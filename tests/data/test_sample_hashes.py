from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from other_peoples_data import Pairs

from nearkin import data
from nearkin.data import content_hashes, fingerprint


@pytest.fixture
def files(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(bytes([number]) * 100)
    return data.ImageFiles([f"{number}.jpg" for number in range(4)], tmp_path)


def test_files_count_by_content(files):
    before = fingerprint(files)
    path = files.path(2)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    assert fingerprint(files) == before  # touched, not changed
    path.write_bytes(b"x" * 100)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 2 * 10**9))
    assert fingerprint(files) != before


def test_a_copy_of_the_folder_has_the_same_fingerprint(files, tmp_path):
    (tmp_path / "copy").mkdir()
    for index in range(4):
        (tmp_path / "copy" / files.name(index)).write_bytes(files.path(index).read_bytes())
    assert fingerprint(data.ImageFiles([f"{i}.jpg" for i in range(4)], tmp_path / "copy")) == fingerprint(
        files
    )


def test_the_second_time_no_file_is_read(files, monkeypatch):
    seen = []
    before = fingerprint(files, progress=lambda *step: seen.append(step))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    monkeypatch.setattr(content_hashes, "content_hash", lambda name: pytest.fail(f"{name} was read"))
    assert fingerprint(files) == before
    assert fingerprint(files.select([1, 3])) != before


def test_a_broken_memory_is_made_anew(files, tmp_path):
    cache = tmp_path / "hashes.json"
    paths = [files.path(index) for index in range(4)]
    first = content_hashes.content_hashes(paths, cache=cache)
    cache.write_text("[not json")
    assert content_hashes.content_hashes(paths, cache=cache) == first


def test_every_kind_of_content_counts():
    contents = [
        torch.zeros(2),
        torch.zeros(2, 1),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.tensor(0.0),
        np.zeros(2),
        "ab",
        b"ab",
        ("a", "b"),
        0,
        0.0,
        None,
        {"a": 1},
        {"a": 2},
        [["a"], "b"],
    ]
    prints = [fingerprint(data.DatasetSamples(Pairs([(content, 0)]))) for content in contents]
    assert len(set(prints)) == len(contents)
    assert prints == [fingerprint(data.DatasetSamples(Pairs([(content, 0)]))) for content in contents]


def test_unknown_objects_count_by_number_with_a_warning():
    class Thing:
        pass

    samples = data.DatasetSamples(Pairs([(Thing(), 0)] * 3))
    with pytest.warns(UserWarning, match="samples of type Thing cannot be hashed"):
        three = fingerprint(samples)
    assert three.startswith("count-")
    with pytest.warns(UserWarning, match="only their number"):
        assert fingerprint(samples.select([0, 1])) != three


def test_random_transforms_do_not_change_a_fingerprint():
    class Random(Pairs):
        def __getitem__(self, index):
            return torch.rand(2), index

    samples = data.DatasetSamples(Random([0] * 4))
    before = torch.get_rng_state()
    assert fingerprint(samples) == fingerprint(samples)
    assert torch.get_rng_state().equal(before)


def test_a_set_counts_with_labels_and_names():
    texts = data.Texts(["a", "b"])
    prints = {
        data.SampleSet(texts, labels, names).fingerprint()
        for labels, names in [([0, 1], None), ([1, 0], None), ([0, 1], ["x", "y"]), ([0, 1], ["x", "z"])]
    }
    assert len(prints) == 4
