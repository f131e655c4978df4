"""Indexes on real servers: as in a folder, after restarts, cuts and kills, with two writers; all slow."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from indexed import picture_model
from PIL import Image
from server_process import serving
from torch.nn.functional import normalize

from nearkin.index import Index, NewItem
from nearkin.index.milvus import MilvusStore
from nearkin.index.postgres import PostgresStore
from nearkin.index.stores import open_store

pytestmark = pytest.mark.slow
TYPES = {"postgres": PostgresStore, "milvus": MilvusStore}
MANY = 50_000
DIMENSION = 8


@pytest.fixture(params=["postgres", "milvus"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def address(server):
    return server.address(f"t{uuid.uuid4().hex}")


def unit(count: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(count, DIMENSION, generator=torch.Generator().manual_seed(seed)))


def some(start: int, stop: int) -> list[NewItem]:
    return [NewItem(f"item{n}", f"content{n}", label=str(n % 7)) for n in range(start, stop)]


def create(server, address, **options):
    return TYPES[server.kind].create(address, dimension=DIMENSION, **options)


def check_whole(store, expected: int) -> None:
    items = store.items()
    assert len(items) == store.count() == expected
    assert len({item.name for item in items}) == len({item.id for item in items}) == expected
    assert store.damaged() == []


# As in a folder.


def test_an_index_on_a_server_answers_as_one_in_a_folder(model, photos, tmp_path, address):
    with (
        Index.build(model, photos, tmp_path / "here") as here,
        Index.build(model, photos, address) as there,
    ):
        assert len(there) == len(here) == 20
        assert there.labels() == here.labels()
        names = lambda found: [[hit.item.name for hit in hits] for hits in found]  # noqa: E731
        queries = sorted(photos.rglob("*.png"))
        ours, theirs = here.search(queries, 5), there.search(queries, 5)
        assert names(ours) == names(theirs)
        torch.testing.assert_close(
            torch.tensor([[hit.similarity for hit in hits] for hits in theirs]),
            torch.tensor([[hit.similarity for hit in hits] for hits in ours]),
        )
        where = {"label": ["class1", "class2"]}
        assert names(there.search(queries, 5, where)) == names(here.search(queries, 5, where))
        groups = lambda index: [[item.name for item in group] for group in index.duplicates(0.9)]  # noqa: E731
        assert groups(there) == groups(here)
        clusters = lambda index: [{item.name for item in group} for group in index.clusters(3)]  # noqa: E731
        assert clusters(there) == clusters(here)
        assert there.layout().shape == (20, 2)
        assert there.evaluate(queries=10, k=3).exact.recall == 1.0
        assert there.add(photos).known == 20
        assert there.remove("class1/0.png") == 1
        assert len(there) == 19
        there.store.drop()


def test_the_model_lies_in_the_store_and_another_one_is_refused(
    model, photos, tmp_path, server, address, monkeypatch
):
    Index.build(model, photos, address).close()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    with Index.open(address) as opened:
        assert opened.model.fingerprint == model.fingerprint
        assert opened.search(photos / "class1" / "0.png", 1)[0].item.name == "class1/0.png"
    with pytest.raises(ValueError, match="embeddings of two models cannot be compared"):
        Index.build(picture_model(seed=9), photos, address)
    with pytest.raises(ValueError, match="holds no index nothing"):
        Index.open(server.address("nothing"))
    Index.open(address).store.drop()


def test_the_commands_take_addresses(photos, tmp_path, address, nearkin, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("MILVUS_TOKEN", "root:hunter2")
    picture_model().save("model")
    log = []

    def run(*command):
        code, out, error = nearkin(*command)
        log.append(out + error)
        assert code == 0, error
        return out

    assert "added     20 new" in run("index", "model", "photos", "-o", address, "-j", "2")
    assert "0 new, 0 changed, 20 known" in run("index", "model", "photos", "-o", address)
    assert "0 vectors are damaged" in run("index", address, "photos", "--check")
    assert "class1/0.png" in run(
        "search", address, "photos/class1/0.png", "-k", "2", "--where", "label=class1"
    )
    alone = [group["items"] for group in json.loads(run("duplicates", address, "--threshold", "1", "--json"))]
    assert alone == []
    assert (
        sum(len(group["items"]) for group in json.loads(run("clusters", address, "-n", "3", "--json"))) >= 18
    )
    with serving(address, log=tmp_path / "log") as page:
        (served,) = json.loads(page.get("api/indexes"))["indexes"]
        assert served["items"] == 20
    assert "hunter2" not in "".join(log) + (tmp_path / "log").read_text()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if b"hunter2" in path.read_bytes()]
    open_store(address).drop()


# Gone and back.


def test_what_was_added_is_there_after_a_restart(server, address):
    store = create(server, address)
    rows = unit(300)
    store.add(some(0, 300), rows)
    before = store.search(rows[:20], 5)
    server.kill()
    server.start()
    check_whole(store, 300)
    assert torch.equal(store.search(rows[:20], 5).ids, before.ids)
    store.close()
    with_another = open_store(address)
    assert torch.equal(with_another.vectors(with_another.ids()), rows)
    with_another.add(some(300, 310), unit(10, seed=5))
    assert with_another.count() == 310
    with_another.drop()


def test_cuts_in_the_middle_of_a_load_lose_nothing_and_add_nothing_twice(server):
    wire = server.wire()
    address = server.address_by(wire, f"t{uuid.uuid4().hex}")
    store = create(server, address)
    rows, loaded = unit(600), threading.Event()

    def cut() -> None:
        for pause in (0.1, 0.3, 0.5, 0.7, 1.1, 1.3):
            if not loaded.wait(pause):
                wire.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    changes = []
    for start in range(0, 600, 60):
        changes += store.add(some(start, start + 60), rows[start : start + 60])
    loaded.set()
    cutter.join()
    assert wire.cuts > 0
    assert changes == ["new"] * 600
    check_whole(store, 600)
    torch.testing.assert_close(store.vectors(store.ids()), rows)
    store.drop()
    wire.close()


def test_a_commit_whose_answer_was_lost_is_not_done_again(postgres_server):
    wire = postgres_server.wire()
    store = create(postgres_server, postgres_server.address_by(wire, f"t{uuid.uuid4().hex}"))
    version = store.version()
    wire.cut_after = b"COMMIT"
    assert store.add(some(0, 10), unit(10)) == ["new"] * 10
    assert wire.cut_after is None  # it was cut
    assert store.version() == version + 1
    gone = store.ids()[:4].tolist()
    wire.cut_after = b"COMMIT"
    assert store.remove(gone) == 4
    assert wire.cut_after is None
    assert store.version() == version + 2
    wire.cut_before = b"COMMIT"
    assert store.add(some(10, 15), unit(5)) == ["new"] * 5
    assert wire.cut_before is None
    assert store.version() == version + 3
    check_whole(store, 11)
    store.drop()
    wire.close()


def test_patience_ends_in_a_sentence(server):
    name = f"t{uuid.uuid4().hex}"
    address = server.address(name, patience="3")
    store = create(server, address)
    server.kill()
    begin = time.monotonic()
    with pytest.raises(ConnectionError, match=r"cannot be reached for 3 s: "):
        store.add(some(0, 2), unit(2))
    assert time.monotonic() - begin < 150
    with pytest.raises(ConnectionError, match="cannot be reached: "):  # whoever opens is told at once
        open_store(address)
    server.start()
    open_store(server.address(name)).close()  # Milvus loads what it holds first, on a busy machine for longer
    assert store.add(some(0, 2), unit(2)) == ["new", "new"]
    store.drop()


# Two writers.


def _write(address: str, start: int, stop: int, ready) -> None:
    torch.set_num_threads(1)
    store = open_store(address)
    rows = unit(400)
    ready.wait()
    for first in range(start, stop, 25):
        store.add(some(first, first + 25), rows[first : first + 25])
    store.close()


def test_two_processes_add_at_once_and_half_of_it_is_the_same(server, address):
    store = create(server, address)
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(2)
    writers = [
        context.Process(target=_write, args=(address, *span, ready)) for span in ((0, 300), (100, 400))
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    check_whole(store, 400)
    items = store.items()
    places = [int(item.name.removeprefix("item")) for item in items]
    torch.testing.assert_close(store.vectors([item.id for item in items]), unit(400)[places])
    store.drop()


def test_two_processes_create_at_once(server, model, photos):
    address = server.address(f"t{uuid.uuid4().hex}")
    errors = []

    def build() -> None:
        try:
            Index.build(model, photos, address).close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Index.open(address) as index:
        check_whole(index.store, 20)
        index.store.drop()


# Approximate search.


def test_the_graph_of_postgres_is_made_once_used_and_grows(postgres_server):
    store = create(postgres_server, postgres_server.address(f"t{uuid.uuid4().hex}"))
    rows, queries = unit(4000), unit(50, seed=3)
    store.add(some(0, 3000), rows[:3000])
    exact = store.search(queries, 10)
    near = store.search(queries, 10, approximate=True)
    shared = [len({*a} & {*b}) for a, b in zip(exact.ids.tolist(), near.ids.tolist(), strict=True)]
    assert sum(shared) / 500 > 0.9
    (plan,) = store._select(
        "EXPLAIN (FORMAT JSON) SELECT id FROM {items} ORDER BY embedding <#> %s LIMIT 5",
        values=[np.asarray(queries[0])],
    )[0]
    assert "graph_" in json.dumps(plan)
    store.add(some(3000, 4000), rows[3000:])
    found = store.search(rows[3500:3510], 1, approximate=True)
    names = {item.id: item.name for item in store.items()}
    assert [names[one] for (one,) in found.ids.tolist()] == [f"item{n}" for n in range(3500, 3510)]
    excluded = store.search(rows[3500:3501], 3, approximate=True, exclude=found.ids[0].tolist())
    assert found.ids[0, 0] not in excluded.ids
    store.drop()


def test_an_index_of_milvus_may_be_a_graph(milvus_server):
    address = milvus_server.address(f"t{uuid.uuid4().hex}", search="hnsw")
    store = create(milvus_server, address)
    rows, queries = unit(3000), unit(50, seed=3)
    store.add(some(0, 3000), rows)
    expected = (queries @ rows.T).topk(10)
    names = {item.id: int(item.name.removeprefix("item")) for item in store.items()}
    found = [[names[one] for one in ids] for ids in store.search(queries, 10).ids.tolist()]
    shared = [len({*a} & {*b}) for a, b in zip(found, expected.indices.tolist(), strict=True)]
    assert sum(shared) / 500 > 0.9
    with pytest.raises(ValueError, match="made with search=hnsw, which cannot be changed"):
        open_store(address.replace("hnsw", "exact"))
    store.drop()


# Kills.


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """A model, and a folder of very many very small pictures, each unlike the others."""
    folder = tmp_path_factory.mktemp("many")
    picture_model().save(folder / "model")
    numbers = np.random.default_rng(0).integers(0, 256, (MANY, 4, 4, 3), dtype=np.uint8)
    for place, pixels in enumerate(numbers):
        below = folder / "photos" / f"{place % 50:02d}"
        if place < 50:
            below.mkdir(parents=True)
        Image.fromarray(pixels).save(below / f"{place:05d}.bmp")
    return folder


def test_a_server_that_is_killed_during_a_load_ends_with_every_item_once(server, address, many):
    """SIGKILL to the server, twice, while ``nearkin index`` adds 50,000 pictures; nobody helps it."""
    command = [sys.executable, "-m", "nearkin", "index", "model", "photos", "-o", address]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    with subprocess.Popen(
        command, cwd=many, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as loading:
        for moment in (5_000, 30_000):
            _wait_for(server, address, moment, loading)
            server.kill()
            time.sleep(2)
            assert loading.poll() is None
            server.start()
        out, error = loading.communicate()
    assert loading.returncode == 0, error
    assert "Traceback" not in error
    assert f"added     {MANY:,} new, 0 changed, 0 known already" in out
    store = open_store(address)
    check_whole(store, MANY)
    store.drop()


def _wait_for(server, address: str, count: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        try:
            if TYPES[server.kind].exists(address):
                store = open_store(address)
                there = store.count()
                store.close()
                if there >= count:
                    return
        except (OSError, ValueError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"the load ended before the kill: {process.communicate()}")
