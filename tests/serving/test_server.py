"""The command: what it refuses, how it starts, what it logs, how it ends."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import time
from urllib.parse import urlsplit

import pytest
from PIL import Image
from server_process import load, serving

from nearkin.serving import ApiKey, open_indexes
from nearkin.serving.server import check_reachable

SECRET = "a secret of some length"


# What it refuses.


def test_others_are_not_let_in_by_mistake(nearkin, shop, monkeypatch):
    monkeypatch.delenv("NEARKIN_API_KEY", raising=False)
    code, _, error = nearkin("serve", shop, "--host", "0.0.0.0")
    assert code == 2
    assert "others can reach 0.0.0.0: set NEARKIN_API_KEY or --api-key-file" in error
    check_reachable("0.0.0.0", ApiKey(SECRET), without_key=False)
    check_reachable("0.0.0.0", None, without_key=True)
    for host in ("127.0.0.1", "127.5.5.5", "::1", "localhost"):
        check_reachable(host, None, without_key=False)
    for host in ("::", "192.168.1.5", "example.com", "127.0.0.1.example.com"):
        with pytest.raises(ValueError, match="others can reach"):
            check_reachable(host, None, without_key=False)


def test_mistakes_are_one_line(nearkin, shop, tmp_path):
    code, _, error = nearkin("serve", tmp_path / "nothing.index")
    assert code == 2
    assert error.count("\n") == 1
    (tmp_path / "shop").symlink_to(shop.parent)
    code, _, error = nearkin("serve", shop, tmp_path / "other" / ".." / ".." / shop)
    assert code == 2
    assert "two indexes are called shop: rename one of the folders" in error
    with pytest.raises(ValueError, match="nothing to serve"):
        open_indexes([])


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(nearkin, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, error = nearkin("serve", tmp_path / "nothing.index", "--port", port)
    assert code == 2
    assert f"cannot listen on 127.0.0.1, port {port}: address already in use" in error


def test_a_missing_package_is_named(nearkin, shop, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("nearkin.serving")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    code, _, error = nearkin("serve", shop)
    assert code == 2
    assert "serving an index needs the package fastapi, which is not installed" in error
    assert "pip install 'nearkin[serve]'" in error


# A server that runs.


@pytest.fixture(scope="module")
def server(shop, older, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with serving(shop, older, log=folder / "log") as running:
        yield running


def test_it_listens_on_this_machine_only_and_answers(server):
    assert urlsplit(server.address).hostname == "127.0.0.1"
    assert '"status":"ok"' in server.get("health")
    assert "<!doctype html>" in server.get("")
    assert '"name":"older"' in server.get("api/indexes")


def send(address: str, data: bytes) -> bytes:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.makefile("rb").read()
        except OSError:  # it did not read to the end
            return b""


POST = b"POST /api/indexes/shop/search HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
        POST + b"content-length: -5\r\n\r\n",
        POST + b"content-length: 99999999999999\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET http://example.com/ HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=["tls", "huge header", "negative length", "huge length", "bad chunk", "traversal", "other host"],
)
def test_raw_nonsense_is_refused_and_the_server_stays(server, data):
    answer = send(server.address, data)
    assert b"Traceback" not in answer
    assert b"root:" not in answer
    assert answer[:12] in (b"", *(b"HTTP/1.1 %d" % status for status in (400, 404, 413, 421)))
    assert '"status":"ok"' in server.get("health")


def test_many_clients_at_once_are_answered_and_the_log_has_a_line_each(server, photos):
    bodies = [file.read_bytes() for file in sorted(photos.rglob("*.png"))]
    found = load(server.address, "/api/indexes/shop/search?k=5", bodies, clients=40, seconds=1.5)
    assert found.failures == []
    assert len(found.seconds) >= 40
    wanted = len(found.seconds)
    for _ in range(50):
        lines = server.log.read_text().splitlines()
        searches = [line for line in lines if "POST /api/indexes/{index}/search 200 " in line]
        if len(searches) >= wanted:
            break
        time.sleep(0.1)
    assert len(searches) == wanted
    assert not [line for line in lines if "Traceback" in line]


# The end.


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_request_that_has_begun_is_answered_before_the_end(shop, tmp_path, how):
    (tmp_path / "key").write_text(SECRET)
    with serving(shop, "--api-key-file", tmp_path / "key", log=tmp_path / "log") as running:
        place = urlsplit(running.address)
        picture = io.BytesIO()
        Image.new("RGB", (30, 30), "red").save(picture, "PNG")
        body = picture.getvalue()
        with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
            head = (
                f"POST /api/indexes/shop/search HTTP/1.1\r\nhost: x\r\nx-api-key: {SECRET}\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body[:20])
            time.sleep(0.5)
            os.kill(running.process.pid, how)
            time.sleep(0.5)
            connection.sendall(body[20:])
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"hits":' in answer
        assert running.process.wait(20) in (0, -how)
    logged = (tmp_path / "log").read_text()
    assert "Traceback" not in logged
    assert SECRET not in logged


# Load.


@pytest.mark.slow
def test_200_clients_for_two_minutes(server, photos, capsys):
    """No error and no growth; ``NEARKIN_LOAD_SECONDS`` makes it shorter."""
    seconds = float(os.environ.get("NEARKIN_LOAD_SECONDS", "120"))
    bodies = [file.read_bytes() for file in sorted(photos.rglob("*.png"))]
    path = "/api/indexes/shop/search?k=10"
    load(server.address, path, bodies, clients=200, seconds=seconds / 6)  # threads and buffers are there now
    before = server.memory()
    found = load(server.address, path, bodies, clients=200, seconds=seconds)
    after = server.memory()
    with capsys.disabled():
        print(
            f"\n200 clients, {seconds:g} s: {len(found.seconds)} answers, median "
            f"{1e3 * found.percentile(0.5):.0f} ms, p99 {1e3 * found.percentile(0.99):.0f} ms, "
            f"memory {before / 1e6:.0f} MB, then {after / 1e6:.0f} MB"
        )
    assert found.failures == []
    assert after - before < 0.05 * before
