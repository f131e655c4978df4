"""Images in tar shards and Parquet tables are those that were packed, and nothing in them is unpickled."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from nearkin.data.decoding import BrokenImageError
from nearkin.data.packed import packed_images


def pictures(count: int = 5) -> list[bytes]:
    numbers = np.random.default_rng(0)
    found = []
    for _ in range(count):
        file = io.BytesIO()
        Image.fromarray(numbers.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(file, "PNG")
        found.append(file.getvalue())
    return found


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return path


def decoded(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)))).permute(2, 0, 1)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def test_a_tar_shard_gives_its_images_and_labels(tmp_path):
    data = pictures()
    members = {"0000.pyd": pickle.dumps(Bomb()), "0000.json": b"{}"}
    for number, one in enumerate(data):
        members |= {f"train/{number:04d}.png": one}
        members |= {f"train/{number:04d}.cls": str(number % 2).encode()} if number != 3 else {}
    images, labels = packed_images(write_tar(tmp_path / "shard.tar", members))
    assert labels == ["0", "1", "0", None, "0"]
    assert [images.name(n).rpartition("shard.tar/")[2] for n in range(5)] == [
        f"train/{n:04d}.png" for n in range(5)
    ]
    for number in range(5):
        assert torch.equal(images[number], decoded(data[number]))
    assert torch.equal(images.select([4, 1])[0], decoded(data[4]))


@pytest.mark.parametrize("kind", ["bytes", "struct"])
def test_a_table_gives_its_images_and_labels(kind, tmp_path):
    data = pictures()
    images = data if kind == "bytes" else [{"bytes": one, "path": None} for one in data]
    table = pyarrow.table({"image": images, "label": [0, 1, 0, None, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    found, labels = packed_images(tmp_path / "t.parquet")
    assert labels == ["0", "1", "0", None, "2"]
    for number in (4, 0, 3):
        assert torch.equal(found[number], decoded(data[number]))


def test_what_cannot_be_read_is_told(tmp_path):
    broken, _ = packed_images(write_tar(tmp_path / "a.tar", {"1.jpg": b"no image"}))
    with pytest.raises(BrokenImageError, match="a.tar/1.jpg"):
        broken[0]
    with pytest.raises(ValueError, match="unpack compressed ones"):
        packed_images(write_tar(tmp_path / "b.tar", {"1.png": pictures(1)[0]}, mode="w:gz"))
    with pytest.raises(ValueError, match="holds no image"):
        packed_images(write_tar(tmp_path / "c.tar", {"1.cls": b"3"}))
    pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "d.parquet")
    with pytest.raises(ValueError, match="no column of images"):
        packed_images(tmp_path / "d.parquet")
    (tmp_path / "e.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match="cannot be read as a Parquet table"):
        packed_images(tmp_path / "e.parquet")
