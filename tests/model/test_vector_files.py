"""Vectors in files: what they hold, and that a kill costs one chunk at most."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import nn

from nearkin import data, networks
from nearkin.data import AsIs, ImageFiles
from nearkin.model import Model, embedding_workers, vector_files, vector_parts, write_vectors
from nearkin.model.vector_files import named_samples
from nearkin.networks import Embedder, WrappedNetwork


def image_model(seed: int = 0) -> Model:
    network = networks.build("convnet", channels=3, size=16, width=4, embedding_dim=8, seed=seed)
    seen = data.transforms.build("resized_crop", preprocessing=network.preprocessing, train=False)
    return Model([Embedder(network.eval(), seen, seen, transform_spec={"name": "resized_crop"})])


@pytest.fixture
def folder(tmp_path) -> Path:
    from PIL import Image  # noqa: PLC0415

    numbers = np.random.default_rng(0)
    for number in range(23):
        place = tmp_path / "photos" / f"class{number % 3}" / f"{number:02d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(place)
    return tmp_path / "photos"


def read_parquet(path: Path) -> tuple[list[str], list[str] | None, np.ndarray]:
    table = pyarrow.parquet.read_table(path)
    labels = table["label"].to_pylist() if "label" in table.column_names else None
    return table["name"].to_pylist(), labels, np.array(table["vector"].to_pylist(), dtype=np.float32)


def read_npy(path: Path) -> tuple[list[str], list[str] | None, np.ndarray]:
    rows = list(csv.DictReader(path.with_suffix(".csv").read_text().splitlines()))
    labels = [row["label"] for row in rows] if "label" in rows[0] else None
    return [row["name"] for row in rows], labels, np.load(path)


READERS = {".parquet": read_parquet, ".npy": read_npy}


@pytest.mark.parametrize("suffix", READERS)
def test_names_labels_and_vectors_are_in_the_file(suffix, folder, tmp_path):
    model = image_model()
    heard = []
    written = write_vectors(
        model,
        [folder],
        tmp_path / f"vectors{suffix}",
        chunk=7,
        batch_size=3,
        progress=lambda done, total: heard.append((done, total)),
    )
    names, labels, vectors = READERS[suffix](tmp_path / f"vectors{suffix}")
    files = sorted(folder.rglob("*.png"))
    assert names == [file.relative_to(folder).as_posix() for file in files]
    assert labels == [file.parent.name for file in files]
    np.testing.assert_allclose(vectors, model.embed(files).numpy(), atol=1e-5)
    assert (written.samples, written.dimensions, written.embedded, written.found) == (23, 8, 23, 0)
    assert heard[-1] == (23, 23)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    beside = {path.name for path in tmp_path.iterdir()}
    assert beside == {"photos", f"vectors{suffix}"} | (
        {"vectors.csv", "vectors.json"} if suffix == ".npy" else set()
    )


def test_the_vectors_of_a_parquet_file_are_lists_of_one_size(folder, tmp_path):
    write_vectors(image_model(), [folder], tmp_path / "v.parquet")
    field = pyarrow.parquet.read_schema(tmp_path / "v.parquet").field("vector")
    assert str(field.type).startswith("fixed_size_list<")
    assert field.type.list_size == 8


@pytest.mark.parametrize("suffix", READERS)
def test_what_is_finished_is_not_made_again(suffix, folder, tmp_path, monkeypatch):
    path = tmp_path / f"vectors{suffix}"
    model = image_model()
    first = write_vectors(model, [folder], path)
    before = path.stat()
    monkeypatch.setattr(Model, "embed_in_chunks", lambda *_, **__: pytest.fail("embedded again"))
    again = write_vectors(model, [folder], path)
    assert (again.embedded, again.found, again.samples) == (0, 23, first.samples)
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("suffix", READERS)
def test_another_model_or_other_files_do_not_replace_a_file_silently(suffix, folder, tmp_path):
    path = tmp_path / f"vectors{suffix}"
    write_vectors(image_model(), [folder], path)
    with pytest.raises(ValueError, match="choose another name, or overwrite it"):
        write_vectors(image_model(1), [folder], path)
    assert not (tmp_path / f"vectors{suffix}.parts").exists()
    (folder / "class0" / "00.png").unlink()
    with pytest.raises(ValueError, match="embeddings of another model or of other files"):
        write_vectors(image_model(), [folder], path)
    assert write_vectors(image_model(), [folder], path, overwrite=True).samples == 22
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="holds something else"):
        write_vectors(image_model(), [folder], path)


def leave_parts_only(monkeypatch, *arguments, **options) -> None:
    """What a process leaves that is killed just before it puts the file together."""
    with monkeypatch.context() as patch, pytest.raises(pytest.fail.Exception):
        patch.setattr(vector_files._Work, "put_together", lambda *_: pytest.fail("that far"))
        write_vectors(*arguments, **options)


@pytest.fixture
def embedded(monkeypatch) -> list[str]:
    """The names of all samples that a model embeds from now on."""
    names, embed = [], Model.embed_in_chunks

    def told(self, samples, **options):
        names.extend(Path(samples.name(index)).name for index in range(len(samples)))
        return embed(self, samples, **options)

    monkeypatch.setattr(Model, "embed_in_chunks", told)
    return names


def test_what_was_embedded_is_known_by_its_content(folder, tmp_path, monkeypatch, embedded):
    path, model = tmp_path / "v.npy", image_model()
    leave_parts_only(monkeypatch, model, [folder], path, chunk=5, batch_size=5)
    files = sorted(folder.rglob("*.png"))
    os.utime(files[0], (1, 1))
    files[1].rename(files[1].with_name("renamed.png"))
    (folder / "another.png").write_bytes(files[2].read_bytes())
    files[7].write_bytes(files[8].read_bytes() + b"changed")
    (tmp_path / "v.npy.parts" / "part-000003.safetensors").write_bytes(b"damaged")
    embedded.clear()
    written = write_vectors(model, [folder], path, chunk=5, batch_size=5)
    assert sorted(embedded) == sorted(file.name for file in (files[7], *files[15:20]))
    assert (written.embedded, written.found) == (6, 18)
    names, _, vectors = read_npy(path)
    assert {"another.png", "class0/renamed.png"} <= set(names)
    np.testing.assert_allclose(vectors, model.embed(folder).numpy(), atol=1e-5)


def test_parts_of_another_model_are_not_used(folder, tmp_path, monkeypatch):
    path = tmp_path / "v.npy"
    leave_parts_only(monkeypatch, image_model(1), [folder], path)
    written = write_vectors(image_model(), [folder], path)
    assert (written.embedded, written.found) == (23, 0)
    np.testing.assert_allclose(np.load(path), image_model().embed(folder).numpy(), atol=1e-5)


def test_equal_files_are_embedded_once(folder, tmp_path, embedded):
    model, files = image_model(), sorted(folder.rglob("*.png"))
    for file in files[:9]:
        (folder / f"copy-{file.name}").write_bytes(file.read_bytes())
    written = write_vectors(model, [folder], tmp_path / "v.parquet", chunk=4, batch_size=2)
    assert len(embedded) == 23
    assert (written.samples, written.embedded, written.found) == (32, 32, 0)
    np.testing.assert_allclose(
        read_parquet(tmp_path / "v.parquet")[2], model.embed(folder).numpy(), atol=1e-5
    )


def test_equal_files_that_cannot_be_read_are_listed_by_their_own_names(folder, tmp_path):
    bad = [folder / "class1" / "01.png", folder / "class2" / "02.png"]
    for file in bad:
        file.write_bytes(b"no image")
    skipped = write_vectors(image_model(), [folder], tmp_path / "v.npy", skip_bad=True).skipped
    assert [Path(name).name for name, _ in skipped] == ["01.png", "02.png"]
    assert all(str(file) in why for file, (_, why) in zip(bad, skipped, strict=True))


def test_files_are_read_when_their_shard_is_made_and_only_if_they_changed(folder, tmp_path, monkeypatch):
    read, hash_file = [], vector_files.content_hash
    monkeypatch.setattr(
        vector_files, "content_hash", lambda file: read.append(Path(file).name) or hash_file(file)
    )
    path, model, files = tmp_path / "v.npy", image_model(), sorted(folder.rglob("*.png"))
    heard = []

    def after_two_shards(done, _):
        heard.append((done, len(read)))
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_vectors(model, [folder], path, chunk=4, batch_size=4, progress=after_two_shards)
    assert all(hashed <= done + 4 for done, hashed in heard), "files were read before their shard was made"
    read.clear()
    os.utime(files[2], (1, 1))
    written = write_vectors(model, [folder], path, chunk=4, batch_size=4)
    assert written.found >= 4
    assert sorted(read) == sorted(file.name for file in (files[2], *files[written.found :]))
    read.clear()
    write_vectors(model, [folder], path)
    assert not read
    os.utime(files[2], (2, 2))
    assert write_vectors(model, [folder], path).embedded == 0
    assert len(read) == 23


def log_chunks_and_write(folder: Path, path: Path, log: Path, suffix: str) -> None:
    """What the killed processes do: slowly, and every shard that is written is logged."""
    add = vector_parts.Parts.add

    def logged(self, shard, chunk):
        add(self, shard, chunk)
        with log.open("a") as lines:
            lines.write(f"{shard.rows}\n")
        time.sleep(0.01)

    vector_parts.Parts.add = logged
    write_vectors(image_model(), [folder], path, chunk=1, batch_size=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process that may have threads
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("suffix", READERS)
def test_killed_at_any_moment_it_goes_on_and_embeds_nothing_twice(suffix, folder, tmp_path):
    path, log = tmp_path / f"v{suffix}", tmp_path / "log"
    log.touch()
    write_vectors(
        image_model(), [folder], tmp_path / f"first{suffix}"
    )  # what is imported then, is imported once
    moments = random.Random(0)
    started = multiprocessing.get_context("fork")
    kills = 0
    for _ in range(40):
        process = started.Process(target=log_chunks_and_write, args=(folder, path, log, suffix))
        process.start()
        process.join(moments.uniform(0.02, 0.15 + 0.05 * kills))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert process.exitcode == 0
    assert kills >= 2
    numbers = log.read_text().splitlines()
    assert len(numbers) == len(set(numbers))
    assert len(numbers) >= 23 - kills  # one may be written and not yet logged
    names, _, vectors = READERS[suffix](path)
    assert len(names) == len(set(names)) == 23
    np.testing.assert_allclose(vectors, image_model().embed(folder).numpy(), atol=1e-5)
    assert not list(tmp_path.glob("*.parts")), "the folder of chunks is left"
    assert not list(tmp_path.rglob(".unfinished-*"))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kill_between_the_files_of_an_array_is_gone_on_from(overwrite, folder, tmp_path, monkeypatch):
    path = tmp_path / "v.npy"
    if overwrite:
        np.save(path, np.zeros((23, image_model().embedding_dim), np.float32))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(vector_files, "write_json", killed)
        write_vectors(image_model(), [folder], path, overwrite=overwrite)
    assert write_vectors(image_model(), [folder], path).samples == 23
    np.testing.assert_allclose(np.load(path), image_model().embed(folder).numpy(), atol=1e-5)


def test_two_processes_do_not_write_one_file(folder, tmp_path):
    with (
        vector_files._alone(tmp_path / "v.npy.parts"),
        pytest.raises(ValueError, match="another process is writing into"),
    ):
        write_vectors(image_model(), [folder], tmp_path / "v.npy")
    assert write_vectors(image_model(), [folder], tmp_path / "v.npy").samples == 23


def test_bad_files_are_named_or_skipped_and_listed(folder, tmp_path):
    (folder / "class1" / "01.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"01\.png"):
        write_vectors(image_model(), [folder], tmp_path / "v.npy", chunk=4, batch_size=2)
    written = write_vectors(image_model(), [folder], tmp_path / "v.npy", chunk=4, batch_size=2, skip_bad=True)
    assert written.samples == 22
    assert [Path(name).name for name, _ in written.skipped] == ["01.png"]
    assert written.found > 0  # what stood before the bad one
    names, labels, vectors = read_npy(tmp_path / "v.npy")
    assert len(names) == len(labels) == len(vectors) == 22
    assert "class1/01.png" not in names
    json.dumps(written.to_dict())
    for file in folder.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="none of 23 files can be read"):
        write_vectors(image_model(), [folder], tmp_path / "none.npy", skip_bad=True)


def test_several_inputs_are_called_as_they_were_given(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    named = named_samples(["photos/class0", Path("photos/class1/01.png")])
    assert named.names[0] == "photos/class0/00.png"
    assert named.names[-1] == "photos/class1/01.png"
    assert set(named.labels) == {None}
    assert named_samples(["photos"]).names[0] == "class0/00.png"
    written = write_vectors(image_model(), ["photos/class0"], tmp_path / "v.parquet")
    assert read_parquet(tmp_path / "v.parquet")[1] is None
    assert written.samples == 8


def test_arrays_and_texts(tmp_path):
    model = Model([Embedder(WrappedNetwork(nn.Linear(6, 3), 3).eval(), AsIs(), AsIs())])
    rows = torch.randn(11, 6)
    np.save(tmp_path / "rows.npy", rows.numpy())
    write_vectors(model, [tmp_path / "rows.npy"], tmp_path / "v.npy", chunk=4, batch_size=2)
    names, labels, vectors = read_npy(tmp_path / "v.npy")
    assert names == [str(i) for i in range(11)]
    assert labels is None
    np.testing.assert_allclose(vectors, model.embed(rows).numpy(), atol=1e-6)
    (tmp_path / "texts.txt").write_text("a wren\na gull\n")
    assert [named_samples([tmp_path / "texts.txt"]).samples[i] for i in range(2)] == ["a wren", "a gull"]


@pytest.mark.parametrize(
    ("inputs", "output", "message"),
    [
        ([], "v.npy", "nothing to embed"),
        (["nowhere"], "v.npy", "there is no file nowhere"),
        (["photos", "rows.npy"], "v.npy", "rows.npy is embedded alone"),
        (["empty"], "v.npy", "empty holds no image"),
        (["photos"], "v.csv", "vectors are written as .parquet or .npy"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(folder, tmp_path, monkeypatch, inputs, output, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    np.save("rows.npy", np.zeros((2, 6)))
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        write_vectors(image_model(), inputs, output)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_without_pyarrow_the_command_to_install_it_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'nearkin\[parquet\]'"):
        write_vectors(image_model(), [folder], tmp_path / "v.parquet")
    assert write_vectors(image_model(), [folder], tmp_path / "v.npy").samples == 23


def test_memory_holds_a_chunk_and_not_the_folder(tmp_path):
    """Rows of the output are all that grows: what a stream keeps is the chunk at hand."""
    from live_memory import peak_bytes  # noqa: PLC0415

    model = image_model()
    peaks = []
    for count in (64, 512):
        pixels = torch.randint(0, 256, (count, 3, 20, 20), dtype=torch.uint8)
        chunks = model.embed_in_chunks(model.samples(pixels), batch_size=16, chunk=32)
        peaks.append(peak_bytes(lambda chunks=chunks: [len(chunk.embeddings) for chunk in chunks]))
    assert peaks[1] < 1.2 * peaks[0]


def test_several_processes_write_what_one_writes_and_one_that_is_lost_is_replaced(
    folder, tmp_path, monkeypatch
):
    model = image_model()
    write_vectors(model, [folder], tmp_path / "one.npy", chunk=4, batch_size=2)
    started, start = [], embedding_workers.start_worker

    def start_and_kill_the_first(*arguments, **options):
        started.append(start(*arguments, **options))
        if len(started) == 1:
            started[0].kill()
        return started[-1]

    monkeypatch.setattr(embedding_workers, "start_worker", start_and_kill_the_first)
    with pytest.warns(UserWarning, match="a process that embedded ended with signal 9"):
        written = write_vectors(model, [folder], tmp_path / "two.npy", chunk=4, batch_size=2, processes=2)
    assert len(started) == 3
    assert all(process.poll() is not None for process in started)
    assert (written.embedded, written.found) == (23, 0)
    assert np.array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()
    assert not (tmp_path / "two.npy.parts").exists()


def test_a_worker_leaves_a_shard_with_a_bad_file_to_whoever_tells_its_name(folder):
    """The index's command is tried with such a file and real processes."""
    samples, job = ImageFiles(sorted(folder.rglob("*.png")), folder), {"batch_size": 2, "skip_bad": False}
    assert len(embedding_workers.embed_shard(image_model(), samples, job).embeddings) == 23
    (folder / "class1" / "01.png").write_bytes(b"broken")
    assert embedding_workers.embed_shard(image_model(), samples, job) is None


def test_packed_images_are_embedded_as_files_are(folder, tmp_path):
    import tarfile  # noqa: PLC0415

    model, files = image_model(), sorted(folder.rglob("*.png"))
    for number, part in enumerate((files[:10], files[10:])):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            for file in part:
                archive.add(file, file.name)
    shards = [tmp_path / "0.tar", tmp_path / "1.tar"]
    write_vectors(model, shards, tmp_path / "packed.npy", chunk=4, batch_size=2)
    np.testing.assert_allclose(np.load(tmp_path / "packed.npy"), model.embed(files).numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="no other kind of input"):
        named_samples([shards[0], folder])
    whole = shards[0].read_bytes()
    start = whole.index(files[3].read_bytes())
    shards[0].write_bytes(whole[:start] + bytes(60) + whole[start + 60 :])
    written = write_vectors(model, shards, tmp_path / "most.npy", skip_bad=True)
    assert written.samples == 22
    assert [Path(name).name for name, _ in written.skipped] == [files[3].name]
