"""What the pages about serving tell a reader to do: requests, Python, files of other programs."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from indexed import picture_model, write_pictures
from PIL import Image
from server_process import serving
from typer.main import get_command

from nearkin.cli.app import app
from nearkin.index import Index
from nearkin.serving import Limits
from nearkin.serving.metrics import Metrics
from test_documents import ROOT, python_blocks

DEPLOY = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
PLACE = "http://127.0.0.1:8765/"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", DEPLOY, flags=re.DOTALL | re.MULTILINE)


CURLS = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("curl ")]


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A folder with what the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    photos = write_pictures(folder / "photos", classes=4, each=4)
    for number in range(4):
        (photos / f"class{number}").rename(photos / f"bird{number:02}")
    Index.build(picture_model(), photos, folder / "birds.index").close()
    for name, source in (("photo.jpg", "bird03/1.png"), ("other.jpg", "bird00/2.png")):
        Image.open(photos / source).save(folder / name, quality=95)
    return folder


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_requests_are_answered(desk):
    assert len(CURLS) == 7
    with serving(desk / "birds.index", log=desk / "log") as server:
        answers = []
        for line in CURLS:
            assert PLACE in line
            command = line.replace(PLACE, server.address)
            done = subprocess.run(
                ["bash", "-c", command], cwd=desk, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, line
            answers.append(done.stdout)
    search, filtered, region, similar, verified, health, metrics = answers
    assert len(json.loads(search)["hits"]) == 5
    assert {hit["label"] for hit in json.loads(filtered)["hits"]} == {"bird03"}
    assert json.loads(region)["hits"]
    assert json.loads(similar)["hits"]
    assert set(json.loads(verified)) == {"similarity", "threshold", "same"}
    assert json.loads(health)["status"] == "ok"
    assert "nearkin_request_seconds_bucket" in metrics


def test_the_python_makes_an_application(desk, monkeypatch):
    monkeypatch.chdir(desk)
    (code,) = python_blocks("docs/search_page.md")
    names: dict = {}
    exec(compile(code, "docs/search_page.md", "exec"), names)
    assert callable(names["app"])
    names["index"].close()


def test_the_unit_is_one_and_starts_a_command_that_exists():
    (unit,) = blocks("ini")
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str
    parsed.read_string(unit)
    words = parsed["Service"]["ExecStart"].split()
    assert words[1] == "serve"
    options = {name for one in get_command(app).commands["serve"].params for name in one.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_tables_name_what_is_there():
    command = get_command(app).commands["serve"]
    defaults = {name: one.default for one in command.params for name in one.opts}
    limits = Limits()
    for option, default in re.findall(r"^\| `(--[\w-]+)` \| (\d+)", DEPLOY, flags=re.MULTILINE):
        assert defaults[option] == float(default), option
    assert (limits.upload_bytes, limits.pixels, limits.seconds) == (20e6, 50e6, 30)
    assert (limits.waiting, limits.batch, limits.buffered_bytes) == (512, 32, 512e6)
    text = Metrics().text() + (ROOT / "src/nearkin/serving/app.py").read_text(encoding="utf-8")
    text += (ROOT / "src/nearkin/serving/gate.py").read_text(encoding="utf-8")
    for metric in re.findall(r"`(nearkin_\w+)`", DEPLOY):
        assert metric in text, metric


def test_the_pages_pictures_are_there_and_small():
    shown = re.findall(
        r"\]\((pictures/[\w.]+)\)", (ROOT / "docs" / "search_page.md").read_text(encoding="utf-8")
    )
    assert len(shown) == 5
    for name in shown:
        assert 5_000 < (ROOT / "docs" / name).stat().st_size < 250_000, name


@pytest.mark.slow
def test_the_pictures_are_made_by_their_script(tmp_path):
    if shutil.which("chromium") is None:
        pytest.skip("needs Chromium on the PATH to open the page in")
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        import search_page_pictures  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    search_page_pictures.main(tmp_path, epochs=1, classes=60, shown=6)
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {f"search_page_{name}.png" for name in search_page_pictures.PICTURES}
    for name in made:
        with Image.open(tmp_path / name) as new, Image.open(ROOT / "docs" / "pictures" / name) as kept:
            assert new.size == kept.size
