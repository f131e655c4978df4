"""Key, host, sizes, numbers, time, and what is logged and counted."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving_indexes import open_index
from starlette.requests import Request

from nearkin.serving import ApiKey, Limits, find_key
from nearkin.serving.errors import RequestError
from nearkin.serving.gate import HEADERS
from nearkin.serving.keys import VARIABLE
from nearkin.serving.uploads import Buffers

SEARCH = "/api/indexes/shop/search"
SECRET = "a secret of some length"


# The key.


@pytest.fixture
def locked(start):
    return start(key=ApiKey(SECRET))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": "wrong"},
        {"x-api-key": SECRET[:-1]},
        {"x-api-key": SECRET + "x"},
        {"authorization": f"Basic {SECRET}"},
        {"authorization": "Bearer"},
        {"cookie": "nearkin_session=wrong"},
        {"cookie": f"nearkin_session={SECRET}"},
        {"cookie": 'a="'},
    ],
)
def test_without_the_key_nothing_is_told(locked, headers, one_photo):
    for answer in (
        locked.get("/api/indexes", headers=headers),
        locked.get("/metrics", headers=headers),
        locked.get("/openapi.json", headers=headers),
        locked.get("/api/indexes/shop/items/1/thumbnail", headers=headers),
        locked.get("/nothing", headers=headers),
        locked.post(SEARCH, content=one_photo.read_bytes(), headers=headers),
    ):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "no_key"


@pytest.mark.parametrize("headers", [{"x-api-key": SECRET}, {"authorization": f"bearer {SECRET}"}])
def test_the_key_opens(locked, headers):
    assert locked.get("/api/indexes", headers=headers).status_code == 200


def test_health_and_the_page_need_no_key(locked):
    for address in ("/health", "/", "/page/main.js"):
        assert locked.get(address).status_code == 200


def test_the_page_changes_the_key_for_a_cookie(locked):
    assert locked.post("/api/session", json={"key": "wrong"}).status_code == 401
    answer = locked.post("/api/session", json={"key": SECRET})
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert SECRET not in cookie
    assert locked.get("/api/indexes").status_code == 200  # the client has the cookie now


def test_keys_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(
        "nearkin.serving.keys.hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b
    )
    key = ApiKey(SECRET)
    assert not key.admits({"x-api-key": "wrong"})
    assert [one[1] for one in compared] == [SECRET.encode(), key.session.encode()]  # both, always
    assert key.matches(SECRET)


def test_a_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_key() is None
    monkeypatch.setenv(VARIABLE, SECRET)
    assert find_key().matches(SECRET)
    (tmp_path / "key").write_text("another secret of length\n")
    assert find_key(tmp_path / "key").matches("another secret of length")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="is empty, and should hold the API key"):
        find_key(tmp_path / "empty")
    with pytest.raises(ValueError, match="has 5 characters"):
        ApiKey("short")
    assert SECRET not in repr(ApiKey(SECRET))


# The host.


def test_without_a_key_only_known_names_are_answered(start):
    client = start(hosts=("localhost", "127.0.0.1", "shop.example"))
    for host in ("localhost:8765", "127.0.0.1", "Shop.example:80"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "", "[::2]:80"):
        answer = client.get("/api/indexes", headers={"host": host})
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")


# Sizes.


def test_a_large_body_is_refused_by_its_announcement_and_by_its_bytes(start, one_photo):
    client = start(limits=Limits(upload_bytes=5_000))
    assert client.post(SEARCH, content=one_photo.read_bytes()).status_code == 200

    def in_parts():
        for _ in range(10):
            yield bytes(1_000)

    for content in (bytes(5_001), in_parts()):
        answer = client.post(SEARCH, content=content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert "5,000 bytes" in answer.json()["error"]["message"]


def test_all_uploads_together_are_bounded(start, one_photo):
    client = start(limits=Limits(buffered_bytes=100))
    answer = client.post(SEARCH, content=one_photo.read_bytes())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"


def request(*messages: dict, delay: float = 0.0) -> Request:
    left = list(messages)

    async def receive():
        await asyncio.sleep(delay)
        return left.pop(0)

    return Request({"type": "http", "headers": [], "method": "POST", "path": "/"}, receive)


def body(buffers: Buffers, asked: Request) -> bytes:
    async def read() -> bytes:
        async with buffers.body(asked) as found:
            return found

    return asyncio.run(read())


def test_slow_and_broken_bodies_end_and_are_forgotten():
    buffers = Buffers(Limits(seconds=0.05, buffered_bytes=20))
    part = {"type": "http.request", "body": b"0123456789", "more_body": True}
    with pytest.raises(RequestError, match="did not arrive within 0.05 seconds") as slow:
        body(buffers, request(part, part, delay=0.04))
    assert slow.value.status == 408
    with pytest.raises(RequestError, match="went away"):
        body(buffers, request(part, {"type": "http.disconnect"}))
    whole = {"type": "http.request", "body": b"0123456789" * 2, "more_body": False}
    assert body(buffers, request(whole)) == b"0123456789" * 2  # nothing is held any more


# Numbers and time.


def test_more_requests_than_allowed_are_told_to_come_back(start, shop):
    index = open_index(shop)
    go, busy = threading.Event(), threading.Event()
    labels = index.labels

    def slow():
        busy.set()
        assert go.wait(10)
        return labels()

    index.labels = slow
    client = start({"shop": index}, limits=Limits(waiting=1))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.get, "/api/indexes/shop/labels")
        assert busy.wait(10)
        second = client.get("/api/indexes/shop/labels")
        assert client.get("/health").status_code == 200  # whoever watches the server is answered
        go.set()
        assert first.result().status_code == 200
    assert (second.status_code, second.json()["error"]["code"]) == (503, "busy")
    assert client.get("/api/indexes/shop/labels").status_code == 200


def test_an_answer_that_takes_too_long_is_given_up(start, shop, monkeypatch):
    monkeypatch.setattr("nearkin.serving.gate._SPARE", 0.0)
    index = open_index(shop)
    index.labels = lambda: time.sleep(0.5)
    client = start({"shop": index}, limits=Limits(seconds=0.1))
    answer = client.get("/api/indexes/shop/labels")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "too_slow")
    assert answer.json()["error"]["message"] == "the answer took longer than 0.1 seconds"


def test_requests_that_come_together_share_a_call_of_the_network(start, shop, photos):
    index = open_index(shop)
    embed, sizes = index.model.embed, []

    def slow(inputs):
        sizes.append(len(inputs))
        time.sleep(0.05)
        return embed(inputs)

    index.model.embed = slow
    client = start({"shop": index})
    sizes.clear()  # the first one is made at the start
    files = sorted(photos.rglob("*.png"))

    def search(file):
        answer = client.post(SEARCH, content=file.read_bytes(), params={"k": 1})
        return answer.json()["hits"][0]["name"]

    with ThreadPoolExecutor(len(files)) as pool:
        found = list(pool.map(search, files))
    assert found == [str(file.relative_to(photos)) for file in files]  # everybody got their own
    assert sum(sizes) == len(files)
    assert len(sizes) < len(files) / 2


# Headers, metrics, log.


def test_every_answer_has_the_strict_headers(client):
    for address in ("/", "/health", "/nothing", "/api/indexes/shop/items/1/thumbnail"):
        answer = client.get(address)
        assert HEADERS.items() <= dict(answer.headers).items()
    assert "default-src 'none'" in HEADERS["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_metrics_count_requests_batches_and_memory(start, one_photo):
    client = start()
    client.post(SEARCH, content=one_photo.read_bytes())
    client.post(SEARCH, content=b"no picture")
    client.get("/invented/address")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    route = 'route="/api/indexes/{index}/search",method="POST"'
    assert f'nearkin_request_seconds_count{{{route},status="200"}} 1' in lines
    assert f'nearkin_request_seconds_count{{{route},status="415"}} 1' in lines
    assert 'nearkin_request_seconds_count{route="other",method="GET",status="404"} 1' in lines
    assert 'nearkin_batch_size_count{index="shop"} 1' in lines
    assert 'nearkin_waiting{index="shop"} 0' in lines
    memory = next(line for line in lines if line.startswith("nearkin_resident_memory_bytes "))
    assert float(memory.split()[1]) > 1e7
    for line in lines:
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0


def test_one_line_per_request_without_what_was_asked(start, one_photo, caplog):
    client = start(key=ApiKey(SECRET))
    with caplog.at_level(logging.INFO, logger="nearkin.serving"):
        headers = {"x-api-key": SECRET}
        params = {"where": "label=secretlabel"}
        client.post(SEARCH, content=one_photo.read_bytes(), params=params, headers=headers)
        client.get("/api/indexes/shop/items/1/similar", headers=headers)
        client.get("/secretaddress?text=secrettext")
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("nearkin")]
    assert len(lines) == 3
    assert lines[0].startswith("POST /api/indexes/{index}/search 200 ")
    assert lines[1].startswith("GET /api/indexes/{index}/items/{item}/similar 200 ")
    assert lines[2].startswith("GET other 401 ")
    assert "secret" not in "".join(lines)
