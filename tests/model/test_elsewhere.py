"""A saved model on another machine: no data, no network, no plug-in that it does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from running import execute, new_run

import nearkin
from nearkin.model import Model
from nearkin.recipe import Recipe

ROOT = Path(__file__).parents[2]

PLUG_IN = '''
"""A loss of somebody's own, which only training needs."""

def pull(embeddings, labels):
    same = labels[:, None] == labels
    return ((1 - embeddings @ embeddings.T) * same).mean()
'''

PROGRAM = """
import json, socket, sys

def refuse(*_, **__):
    raise AssertionError("the network is used")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse

import numpy as np
import nearkin

model = nearkin.load("model")
pixels = np.load("pixels.npy")
np.save("found.npy", model.embed(pixels, batch_size=3).numpy())
print(json.dumps({
    "file": nearkin.__file__,
    "modules": [name for name in sys.modules if name.startswith(("elsewhere_plug_in", "nearkin.losses"))],
    "fingerprint": model.fingerprint,
    "decision": model.same(pixels[0], pixels[1]).to_dict(),
}))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory, glyphs_root) -> Path:
    """A folder with a saved model, some samples and a program, from a training with somebody's own loss."""
    home = tmp_path_factory.mktemp("training")
    (home / "elsewhere_plug_in.py").write_text(PLUG_IN)
    size = {"num_classes": 60, "images_per_class": 8, "size": 16}
    recipe = {
        "imports": ["elsewhere_plug_in"],
        "loss": {"name": "elsewhere_plug_in:pull"},
        "data": {"name": "glyphs", "root": str(glyphs_root), **size},
        "network": {"name": "convnet", "size": 16, "width": 4, "embedding_dim": 16},
        "sampler": {"batch_size": 40},
        "training": {"epochs": 1},
        "protocol": {"name": "fixed_validation", "validation_share": 0.4},
    }
    sys.path.insert(0, str(home))
    try:
        run = execute(new_run(home / "run", Recipe.parse(recipe)))
        pixels = run.recipe.build().data.test.samples.pixels[:10].numpy()
    finally:
        sys.path.remove(str(home))
        sys.modules.pop("elsewhere_plug_in", None)
    there = tmp_path_factory.mktemp("machine")
    model = nearkin.load(run.path)
    model.save(there / "model")
    np.save(there / "pixels.npy", pixels)
    np.save(there / "expected.npy", model.embed(pixels).numpy())
    (there / "program.py").write_text(PROGRAM)
    return there


def told_there(python: Path | str, machine: Path) -> dict:
    """What the program says, in an environment with nothing of this one's."""
    clean = {"PATH": os.environ["PATH"], "HOME": str(machine / "home"), "OMP_NUM_THREADS": "1"}
    command = [str(python), "-I", str(machine / "program.py")]
    done = subprocess.run(command, cwd=machine, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(machine: Path, told: dict) -> None:
    model = Model.read(machine / "model")
    found, expected = np.load(machine / "found.npy"), np.load(machine / "expected.npy")
    assert np.abs(found - expected).max() <= 1e-5
    assert told["fingerprint"] == model.fingerprint
    assert told["decision"]["threshold"] == model.threshold.to_dict()
    assert told["decision"]["similarity"] == pytest.approx(float(expected[0] @ expected[1]), abs=1e-5)
    assert not [name for name in told["modules"] if name.startswith("elsewhere")]


def test_it_loads_in_a_process_without_data_network_and_plug_ins(machine):
    check(machine, told_there(sys.executable, machine))


@pytest.mark.slow
def test_it_loads_in_a_new_environment_from_a_wheel(machine, tmp_path):
    pytest.importorskip("hatchling")
    code = f"from hatchling import build; build.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "environment", with_pip=False)
    (own,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(own)
    # What nearkin needs is borrowed from here, after its own place: torch alone would take minutes.
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (own / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    told = told_there(tmp_path / "environment" / "bin" / "python", machine)
    assert Path(told["file"]).is_relative_to(own)
    check(machine, told)
