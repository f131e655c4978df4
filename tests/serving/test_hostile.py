"""Whatever is sent, the answer is a sentence, and nothing is written anywhere."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hostile_uploads import png, uploads
from PIL import Image

from nearkin.serving.errors import RequestError
from nearkin.serving.metrics import memory
from nearkin.serving.pictures import decode

SEARCH = "/api/indexes/shop/search"
TELLTALE = ("Traceback", 'File "', ".py", "site-packages", "/tmp", "PIL.", "Error(")


def every_file(*folders: Path) -> dict[Path, int]:
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                found[path] = path.stat().st_mtime_ns
    return found


def check_answer(answer, what: str) -> None:
    assert answer.status_code in (200, 400, 413, 415, 422), (
        f"{what}: {answer.status_code} {answer.text[:200]}"
    )
    assert not [sign for sign in TELLTALE if sign in answer.text], f"{what}: {answer.text[:300]}"
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"code", "message"}
        assert 10 < len(error["message"]) < 400
        assert "\n" not in error["message"], what


def send_all(client, monkeypatch, tmp_path, photos, shop, count: int, seed: int = 0) -> list[int]:
    """Statuses; meanwhile the temporary and the working folder are empty ones that are looked into."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = every_file(photos, shop, tmp_path)
    statuses = []
    for what, body, content_type in uploads(seed, count):
        answer = client.post(SEARCH, content=body, headers={"content-type": content_type})
        check_answer(answer, what)
        statuses.append(answer.status_code)
    after = every_file(photos, tmp_path)
    assert after == {path: time for path, time in before.items() if path in after}
    assert list(tmp_path.iterdir()) == []
    assert {path.name for path in every_file(shop)} - {path.name for path in before} <= {
        "index.sqlite-shm",
        "index.sqlite-wal",
    }
    assert client.get("/health").status_code == 200
    return statuses


def test_hostile_uploads_get_a_sentence(client, monkeypatch, tmp_path, photos, shop, one_photo):
    statuses = send_all(client, monkeypatch, tmp_path, photos, shop, count=60)
    assert set(statuses) >= {200, 400, 413, 415, 422}  # every way of refusing, and the pictures among them
    assert client.post(SEARCH, content=one_photo.read_bytes()).status_code == 200


@pytest.mark.slow
def test_300_hostile_uploads_and_two_at_a_time(client, monkeypatch, tmp_path, photos, shop):
    for seed in range(4):
        send_all(client, monkeypatch, tmp_path, photos, shop, count=300, seed=seed)
    for what, body, _ in uploads(9, 300):
        answer = client.post("/api/indexes/shop/verify", files={"a": body, "b": body})
        check_answer(answer, what)


def test_what_is_expected_of_some(client):
    statuses = {}
    for what, body, content_type in uploads(0, 40):
        answer = client.post(SEARCH, content=body, headers={"content-type": content_type})
        statuses[what] = (answer.status_code, answer.json().get("error", {}).get("code"))
    assert statuses["nothing"] == (400, "empty")
    for what in ("svg", "svg as png", "html", "zip", "pdf", "postscript"):
        assert statuses[what] == (415, "not_a_picture"), what
    for what in (
        "huge png",
        "huge png with pixels",
        "huge bmp",
        "huge webp",
        "huge gif",
        "ppm that says too much",
    ):
        assert statuses[what] == (413, "too_many_pixels"), what
    for what in ("png that is too short", "half a jpeg"):
        assert statuses[what] == (422, "broken_picture"), what
    for what in ("deep json", "json that is no text"):
        assert statuses[what] == (400, "bad_json"), what
    for what in ("form without boundary", "form of headers"):
        assert statuses[what] == (400, "bad_form"), what


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    def decoded(*_):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(Image.Image, "load", decoded)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    before = memory()
    for width, height in ((8_000, 8_000), (100_000, 600), (30_000, 30_000)):
        with pytest.raises(RequestError) as refused:
            decode(png(width, height, bytes(1000)), pixels=50_000_000)
        assert refused.value.code == "too_many_pixels"
    assert memory() - before < 50e6


def test_a_large_picture_waits_at_a_moderate_size():
    large = decode(png(3000, 2000, bytes((3000 * 3 + 1) * 2000)), pixels=50_000_000)
    assert 3_900_000 < large.width * large.height < 4_100_000
    assert large.width / large.height == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "INVENTED"])
def test_other_methods_change_nothing(client, method):
    for address in (SEARCH, "/api/indexes/shop/items/1", "/", "/page/main.js"):
        answer = client.request(method, address)
        assert answer.status_code == 405
        assert answer.json()["error"]["message"] == "this address does not take this method"


@pytest.mark.parametrize("value", ["' OR 1=1 --", "\0", "../../", "%00", "{{7*7}}", "a" * 5000, "😀"])
def test_hostile_values_are_only_values(client, value):
    for address, params in (
        ("/api/indexes/shop/items", {"where": f"label={value}"}),
        ("/api/indexes/shop/items", {"where": json.dumps({value or "a": 1})}),
        ("/api/indexes/shop/items/1/similar", {"of": value}),
        ("/api/indexes/shop/items/1/similar", {"crop": value}),
    ):
        answer = client.get(address, params=params)
        assert answer.status_code in (200, 404, 422), answer.text
        assert answer.status_code != 200 or answer.json()["items"] == []
        assert "Traceback" not in answer.text
