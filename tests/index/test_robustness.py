"""Killed, crowded, full, damaged: an index loses nothing that it reported, and says what is wrong."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import threading
import time
import warnings
from pathlib import Path

import psutil
import pytest
import torch
from indexed import picture_model, write_pictures
from torch.nn.functional import normalize

from nearkin.index import Index, NewItem, embedded
from nearkin.index import index as index_module
from nearkin.index.embedded import EmbeddedStore
from nearkin.index.vector_file import VectorFile


def in_process(function, *arguments) -> multiprocessing.Process:
    """A process with everything imported, so that kills hit the work and not the start of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that may have threads
        process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
        process.start()
    return process


def build(photos: Path, path: Path, reported: Path, prefix: str = "", pause: float = 0.0) -> None:
    """Build or add; what is reported as done is written to a file, as a user would see it."""
    torch.set_num_threads(1)
    index_module._AT_A_TIME = 4  # many transactions
    with reported.open("a") as file:

        def tell(done: int, _total: int) -> None:
            file.write(f"{done}\n")
            file.flush()
            time.sleep(pause)

        index = Index.create(picture_model(), path)
        index.add(photos, prefix=prefix, progress=tell)
    os._exit(0)


def check(path: Path, photos: Path, expected: int | None = None) -> int:
    """Every item is whole, and there once: its vector is that of its file."""
    with Index.open(path) as index:
        items = index.items()
        assert len({item.name for item in items}) == len(items) == len(index)
        assert index.damaged() == []
        assert expected is None or len(items) == expected
        if items:
            torch.testing.assert_close(
                index.vectors([item.id for item in items]),
                index.model.embed([item.path for item in items]),
                atol=1e-5,
                rtol=0,
            )
            hits = index.search(items[0].path, len(items) + 5)
            assert len(hits) == len(items)
        return len(items)


def kill_at(photos: Path, path: Path, reported: Path, seconds: float) -> tuple[bool, int]:
    """Start, kill after some time: whether it was still at work, and what it had reported."""
    reported.unlink(missing_ok=True)
    process = in_process(build, photos, path, reported)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    told = reported.read_text().split() if reported.exists() else []
    return process.exitcode == -signal.SIGKILL, int(told[-1]) if told else 0


def finish(photos: Path, path: Path, reported: Path) -> None:
    process = in_process(build, photos, path, reported)
    process.join()
    assert process.exitcode == 0


def kills(photos: Path, tmp_path: Path, wanted: int, seed: int, most: int) -> int:
    """So many kills at random moments of one index after the other; each goes on to the end."""
    moments, hit, whole = random.Random(seed), 0, 0
    Index.build(picture_model(), photos, tmp_path / "here").close()  # everything is imported
    check(tmp_path / "here", photos, expected=20)
    begin = time.perf_counter()
    finish(photos, tmp_path / "whole", tmp_path / "reported")
    duration = time.perf_counter() - begin
    for number in range(most):
        path = tmp_path / f"killed{number // 4}"  # several kills of the same index
        killed, done = kill_at(photos, path, tmp_path / "reported", moments.uniform(0, duration))
        hit += killed
        if EmbeddedStore.exists(path):
            assert check(path, photos) >= done
        else:
            assert done == 0
        if number % 4 == 3 or hit == wanted:
            finish(photos, path, tmp_path / "reported")
            check(path, photos, expected=20)
            whole += 1
        if hit == wanted:
            break
    assert whole
    return hit


def test_two_kills_lose_nothing(photos, tmp_path):
    assert kills(photos, tmp_path, wanted=2, seed=0, most=40) == 2


@pytest.mark.slow
def test_twenty_kills_lose_nothing(photos, tmp_path):
    assert kills(photos, tmp_path, wanted=20, seed=1, most=80) == 20


def test_a_write_that_was_broken_off_is_nobodys(tmp_path):
    """What a killed writer left behind the last row is overwritten, whole rows and half ones."""
    vectors = normalize(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))
    store = EmbeddedStore.create(tmp_path / "i", dimension=5)
    store.add([NewItem("a", "a"), NewItem("b", "b")], vectors[:2])
    file = tmp_path / "i" / "vectors-1.float32"
    with file.open("ab") as open_file:
        open_file.write(b"\x01" * 33)
    assert store.count() == 2
    assert store.search(vectors[:1], 5).ids.tolist()[0][2:] == [-1, -1, -1]
    store.add([NewItem("c", "c")], vectors[2:3])
    torch.testing.assert_close(store.vectors(store.ids()), vectors[:3])
    assert store.damaged() == []
    store.close()


def test_two_processes_add_at_once(photos, tmp_path):
    """Half of what they add is the same."""
    more = write_pictures(tmp_path / "more", seed=3)
    path = tmp_path / "i"
    jobs = [(photos, ""), (photos, ""), (more, "more/")]
    processes = [
        in_process(build, folder, path, tmp_path / f"reported{number}", prefix, 0.01)
        for number, (folder, prefix) in enumerate(jobs)
    ]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    check(path, photos, expected=40)


def test_threads_search_while_others_add_and_remove(index, photos, tmp_path):
    more = write_pictures(tmp_path / "more", seed=3)
    queries = index.vectors([item.id for item in index.items()])
    stop, errors, counts = threading.Event(), [], []

    def search() -> None:
        try:
            while not stop.is_set():
                counts.append(sum(map(len, index.search_vectors(queries[:2], 100))))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    with Index.open(index.path, model=index.model) as writer:
        for _ in range(4):
            writer.add(more, prefix="more/")
            writer.remove([item.id for item in writer.items({"name": {">": "more"}})])
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {40} <= {*counts}


def _add_on_a_full_disk(path: Path, more: Path, result: Path) -> None:
    torch.set_num_threads(1)
    index_module._AT_A_TIME = 4
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Index.open(path) as index:
        index.model  # noqa: B018  (read before there is no space)
        largest = max(file.stat().st_size for file in path.iterdir() if file.is_file())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 8192, resource.RLIM_INFINITY))
        done = [0]
        try:
            index.add(more, prefix="more/", progress=lambda now, _: done.append(now))
            told = ["", ""]
        except OSError as error:
            told = [str(error), errno.errorcode[error.errno]]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        result.write_text(json.dumps([*told, done[-1], len(index)]))
    os._exit(0)


def test_a_full_disk_is_told_and_what_was_added_stays(index, photos, tmp_path):
    """The system refuses to let files grow, as it does on a full disk."""
    more = write_pictures(tmp_path / "more", classes=10, each=8, seed=3)
    index.close()
    process = in_process(_add_on_a_full_disk, index.path, more, tmp_path / "result")
    process.join()
    assert process.exitcode == 0
    told, code, done, length = json.loads((tmp_path / "result").read_text())
    assert "there is no space left for" in told
    assert "everything that was reported as added is kept" in told
    assert code == "ENOSPC"
    assert length == 20 + done < 100
    check(index.path, photos)
    with Index.open(index.path) as again:
        assert again.add(more, prefix="more/").new == 80 - done


def test_vectors_that_cannot_be_written_leave_no_item(index, photos, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    more = write_pictures(tmp_path / "more", seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(VectorFile, "write", full)
        with pytest.raises(OSError, match="there is no space left for .*shop.index"):
            index.add(more, prefix="more/")
    assert len(index) == 20
    assert index.add(more, prefix="more/").new == 20


def test_a_deleted_image_is_told_and_still_found(index, photos):
    path = photos / "class1" / "1.png"
    query = index.vectors([index.store.by_name(["class1/1.png"])["class1/1.png"].id])
    path.unlink()
    assert [item.name for item in index.missing()] == ["class1/1.png"]
    assert index.search_vectors(query, 1)[0][0].item.name == "class1/1.png"
    with pytest.raises(FileNotFoundError, match="there is no file .*1.png"):
        index.search(path)
    assert index.add(photos).known == 19


def test_an_image_that_vanishes_while_it_is_added_is_skipped(index, photos, monkeypatch, tmp_path):
    more = write_pictures(tmp_path / "more", seed=3)
    gone = more / "class2" / "2.png"
    hashes = index_module.gather

    def and_then_delete(*arguments, **options):
        found = hashes(*arguments, **options)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(index_module, "gather", and_then_delete)
    added = index.add(more, prefix="more/")
    assert added.new == 19
    assert [name for name, _ in added.skipped] == ["more/class2/2.png"]


@pytest.mark.parametrize("what", ["garbage", "cut", "empty"])
def test_a_damaged_database_is_told(what, index):
    index.close()
    file = index.path / "index.sqlite"
    data = file.read_bytes()
    for journal in index.path.glob("index.sqlite-*"):
        journal.unlink()
    file.write_bytes({"garbage": b"x" * len(data), "cut": data[: len(data) // 2], "empty": b""}[what])
    with (
        pytest.raises(ValueError, match=r"index.sqlite (is damaged|cannot be read)"),
        Index.open(index.path) as opened,
    ):
        opened.items()


def test_missing_and_cut_vectors_are_told(index):
    index.close()
    file = index.path / "vectors-1.float32"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="vectors-1.float32 is damaged: it holds 10 vectors, and 20 were"):
        Index.open(index.path)
    file.unlink()
    with pytest.raises(ValueError, match="damaged: vectors-1.float32 is missing"):
        Index.open(index.path)


def test_a_changed_byte_is_found_by_its_checksum(index):
    file = index.path / "vectors-1.float32"
    data = bytearray(file.read_bytes())
    data[5 * 32 + 3] ^= 1
    file.write_bytes(data)
    with Index.open(index.path) as again:
        assert again.damaged() == ["class1/0.png"]


def test_a_newer_format_is_told(index):
    index.close()
    database = sqlite3.connect(index.path / "index.sqlite")
    with database:
        database.execute("UPDATE about SET value = '2' WHERE key = 'format'")
    database.close()
    with pytest.raises(
        ValueError, match="an index of format 2, and this nearkin reads format 1: use a newer"
    ):
        Index.open(index.path)


def test_a_model_that_is_lost_or_replaced_is_told(index, photos):
    index.close()
    picture_model(seed=5).save(index.path / "model")
    with (
        Index.open(index.path) as again,
        pytest.raises(ValueError, match="is not the model that .* built with"),
    ):
        again.search(photos / "class0" / "0.png")
    (index.path / "model" / "model.json").unlink()
    with Index.open(index.path) as again, pytest.raises(ValueError, match="the model of .* cannot be read"):
        again.search(photos / "class0" / "0.png")
    with Index.open(index.path, model=picture_model()) as again:
        assert again.search(photos / "class0" / "0.png", 1)[0].item.name == "class0/0.png"


def test_a_folder_that_was_left_half_made_is_made_again(photos, model, tmp_path):
    path = tmp_path / "i"
    path.mkdir()
    (path / "index.sqlite").touch()
    (path / ".unfinished-abc").mkdir()
    (path / ".unfinished-abc" / "weights.safetensors").write_bytes(b"half")
    with Index.build(model, photos, path) as index:
        assert len(index) == 20
    assert not list(path.glob(".unfinished-*"))


def test_very_many_items_open_at_once(tmp_path):
    """Opening makes no object per item: as quick with many as with few, but for the noise of the machine."""
    store = EmbeddedStore.create(tmp_path / "i", dimension=4)
    vectors = normalize(torch.randn(30_000, 4, generator=torch.Generator().manual_seed(0)))
    store.add([NewItem(str(n), str(n)) for n in range(30_000)], vectors)
    store.close()
    queries = []
    connect = sqlite3.connect

    def tracing(*arguments, **options):
        database = connect(*arguments, **options)
        database.set_trace_callback(queries.append)
        return database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", tracing)
        EmbeddedStore(tmp_path / "i").close()
    assert queries
    assert not [query for query in queries if "FROM items" in query or "FROM removed" in query]


def test_many_answers_have_the_ids_that_few_have(tmp_path, monkeypatch):
    store = EmbeddedStore.create(tmp_path / "store", dimension=4)
    rows = normalize(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)))
    for step in range(3):  # what was read of all ids is not used after a change
        some = rows[20 * step : 20 * step + 20]
        store.add([NewItem(f"{step}-{n}", f"{step}-{n}") for n in range(20)], some)
        store.remove(store.ids().tolist()[:3])
        few = [store.search(one[None], 60).ids[0] for one in rows]
        with monkeypatch.context() as patch:
            patch.setattr(embedded, "_MANY_ROWS", 1)
            many = store.search(rows, 60).ids
        assert torch.equal(many, torch.stack(few))
        assert (many == -1).any()


@pytest.mark.slow
def test_a_kill_of_several_processes_loses_nothing_and_leaves_nobody_behind(photos, tmp_path):
    """SIGKILL to the process that adds: its workers end by themselves, and what was told is there."""
    write_pictures(photos, each=25)
    reported = tmp_path / "reported"
    process = in_process(build_by_two, photos, tmp_path / "shop.index", reported)
    while not (reported.exists() and len(reported.read_text().split()) >= 3):
        assert process.is_alive()
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    told = int(reported.read_text().split()[-1])
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    there = check(tmp_path / "shop.index", photos)
    assert told <= there < 100
    with Index.open(tmp_path / "shop.index") as index:
        added = index.add(photos, processes=2)
    assert (added.known, added.new) == (there, 100 - there)
    check(tmp_path / "shop.index", photos, expected=100)


def build_by_two(photos: Path, path: Path, reported: Path) -> None:
    torch.set_num_threads(1)
    index_module._AT_A_TIME = 4
    with reported.open("a") as file:

        def tell(done: int, _total: int) -> None:
            file.write(f"{done}\n")
            file.flush()
            time.sleep(0.1)

        Index.build(picture_model(), photos, path, processes=2, progress=tell)
    os._exit(0)
