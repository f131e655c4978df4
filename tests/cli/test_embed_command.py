"""``nearkin embed``: the command around :func:`nearkin.model.write_vectors`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nearkin import data, networks
from nearkin.model import Model
from nearkin.networks import Embedder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    network = networks.build("convnet", channels=3, size=16, width=4, embedding_dim=8)
    seen = data.transforms.build("resized_crop", preprocessing=network.preprocessing, train=False)
    made = Model([Embedder(network.eval(), seen, seen, transform_spec={"name": "resized_crop"})])
    return made.save(tmp_path_factory.mktemp("models") / "model")


def test_a_folder_is_embedded_into_a_file(nearkin, model, photos, tmp_path):
    code, out, err = nearkin("embed", model, photos, "-o", tmp_path / "v.npy")
    assert code == 0
    assert out.startswith("72 vectors of 8 numbers: ")
    assert err.startswith("embedding")  # progress stays out of the result
    vectors = np.load(tmp_path / "v.npy")
    np.testing.assert_allclose(vectors, Model.read(model).embed(photos).numpy(), atol=1e-5)
    _, out, _ = nearkin("embed", model, photos, "-o", tmp_path / "v.npy")
    assert out.startswith("72 vectors of 8 numbers, 72 of them embedded before: ")


def test_the_summary_as_json(nearkin, model, photos, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    some = sorted(photos.rglob("*.png"))[:3]
    arguments = ("embed", model, *some, broken, "-o", tmp_path / "v.parquet", "--json")
    code, out, err = nearkin(*arguments)
    assert code == 2
    assert "broken.jpg" in err
    code, out, _ = nearkin(*arguments, "--skip-bad")
    told = json.loads(out)
    assert (code, told["samples"], told["dimensions"]) == (0, 3, 8)
    assert told["skipped"][0]["name"].endswith("broken.jpg")
    assert told["fingerprint"] == Model.read(model).fingerprint


def test_a_link_to_nothing_is_a_file_that_cannot_be_read(nearkin, model, photos, tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "link.png").symlink_to(tmp_path / "gone.png")
    (folder / "._there.png").write_bytes(b"what a Mac writes beside a file")
    (folder / "there.png").write_bytes(min(photos.rglob("*.png")).read_bytes())
    arguments = ("embed", model, folder, "-o", tmp_path / "v.npy")
    code, _, err = nearkin(*arguments)
    assert code == 2
    assert "link.png: no such file or directory" in err
    code, out, _ = nearkin(*arguments, "--skip-bad", "--json")
    assert (code, json.loads(out)["samples"]) == (0, 1)


def test_mistakes_are_one_line(nearkin, model, photos, tmp_path):
    for arguments, message in [
        ((model, photos), "issing option"),
        ((model, "nowhere", "-o", tmp_path / "v.npy"), "there is no file nowhere"),
        ((model, photos, "-o", tmp_path / "v.txt"), "vectors are written as .parquet or .npy"),
        ((tmp_path / "nothing", photos, "-o", tmp_path / "v.npy"), "nothing does not exist"),
    ]:
        code, _, err = nearkin("embed", *arguments)
        assert code == 2, arguments
        assert message in err
        assert "Traceback" not in err
