"""Checkpoints whose large tensors are cut into files of their own."""

from __future__ import annotations

import pytest
import torch

from nearkin.tensor_files import DamagedFileError
from nearkin.training import shards
from nearkin.training.run import Checkpoint, Description, Run
from nearkin.training.shards import read_sharded, shards_of, write_sharded

SMALL, LARGE = torch.arange(5), torch.arange(7 * 3 * 50.0).view(7, 3, 50)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 3 * 50 * 4 * 2)  # two rows


def tensors() -> dict[str, torch.Tensor]:
    return {"small": SMALL, "large": LARGE, "half": LARGE.bfloat16(), "number": torch.tensor(3.0)}


def names(folder) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_large_tensors_are_read_as_they_were_written(tmp_path):
    file = tmp_path / "step-000000001.safetensors"
    write_sharded(file, tensors(), {"epoch": 3})
    assert len(shards_of(file)) == 4 + 2
    found, state = read_sharded(file)
    assert state == {"epoch": 3}
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_damaged_shard_is_noticed(tmp_path, harm):
    file = tmp_path / "step-000000001.safetensors"
    write_sharded(file, tensors(), {})
    shard = shards_of(file)[1]
    shard.write_bytes(shard.read_bytes()[:-3]) if harm == "cut" else shard.unlink()
    with pytest.raises(DamagedFileError):
        read_sharded(file)


def test_only_the_last_large_checkpoint_is_kept(tmp_path):
    run = Run(tmp_path, Description())
    for step in (1, 2, 3):
        run.write_checkpoint(step, Checkpoint({"large": LARGE + step}, {"step": step}))
    assert len(names(tmp_path / "checkpoint")) == 1 + 4
    last = run.last_checkpoint()
    assert last is not None
    assert last.state == {"step": 3}
    assert torch.equal(last.tensors["large"], LARGE + 3)


def test_small_checkpoints_are_what_they_were(tmp_path):
    run = Run(tmp_path, Description())
    for step in (1, 2, 3):
        run.write_checkpoint(step, Checkpoint({"small": SMALL}, {}))
    assert names(tmp_path / "checkpoint") == ["step-000000002.safetensors", "step-000000003.safetensors"]


def test_shards_of_a_process_that_was_killed_go(tmp_path):
    run = Run(tmp_path, Description())
    run.write_checkpoint(1, Checkpoint({"large": LARGE}, {}))
    run.write_checkpoint(2, Checkpoint({"large": LARGE}, {}))
    kept = names(tmp_path / "checkpoint")
    orphan = tmp_path / "checkpoint" / "shard-step-000000003-00000.safetensors"
    orphan.write_bytes(b"half")
    run.remove_leftovers()
    assert names(tmp_path / "checkpoint") == kept
    assert run.last_checkpoint() is not None
