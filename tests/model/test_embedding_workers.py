"""Shards embedded by workers: in order, equal to one process, and whole where workers are lost."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import torch
from deadly_samples import deadly_images
from indexed import picture_model

from nearkin.data import Texts
from nearkin.model.embedding_workers import _in_order, embedding_workers
from nearkin.model.model import Chunk


class Reversed:
    """Workers that finish the last shard first, and note how many are on their way."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.at_work: list[tuple[int, object]] = []
        self.most = 0

    def start(self, number, samples) -> None:
        self.at_work.append((number, samples))
        self.most = max(self.most, len(self.at_work))

    def finished(self):
        number, samples = self.at_work.pop()
        return {number: Chunk(range(1), torch.tensor([[float(samples.texts[0])]]), [])}


@pytest.mark.parametrize("room", [1, 3, 50])
@pytest.mark.parametrize("count", [0, 1, 10])
def test_chunks_come_in_the_order_of_their_shards_and_few_are_begun(room, count):
    workers, begun = Reversed(room), []
    shards = (begun.append(n) or Texts([str(n)]) for n in range(count))
    found = []
    for chunk in _in_order(workers, shards):
        assert len(begun) - len(found) <= room
        found.append(int(chunk.embeddings))
    assert found == list(range(count))
    assert workers.most == min(room, count)


def test_one_process_leaves_the_work_to_the_caller():
    samples = deadly_images(4, deadly=9)
    with embedding_workers(picture_model(), processes=1) as embed:
        assert list(embed([samples, samples])) == [None, None]
    with (
        pytest.raises(ValueError, match="processes=0 must be at least 1"),
        embedding_workers(picture_model(), processes=0),
    ):
        pass


def shards_of(samples, size: int = 3):
    return [samples.select(range(start, start + size)) for start in range(0, len(samples), size)]


def check_equal(model, samples, chunks) -> None:
    assert [list(chunk.indices) for chunk in chunks] == [[0, 1, 2]] * len(chunks)
    torch.testing.assert_close(
        torch.cat([chunk.embeddings for chunk in chunks]), model.embed(samples), atol=1e-6, rtol=0
    )


@pytest.mark.slow
def test_the_shard_of_a_process_that_is_lost_goes_to_another(tmp_path):
    model, samples = picture_model(), deadly_images(18, deadly=7, survived=tmp_path / "survived")
    with embedding_workers(model, processes=2) as embed:
        with pytest.warns(UserWarning, match=r"ended with signal 9 \(SIGKILL\): another one goes on"):
            chunks = list(embed(shards_of(samples)))
        mine = [child for child in psutil.Process().children() if "embedding_worker" in str(child.cmdline())]
        assert len(mine) == 2
    check_equal(model, samples, chunks)
    assert not any(child.is_running() for child in mine)


class Unsendable(Texts):
    def __reduce__(self):
        raise TypeError("these stay here")


def test_what_cannot_be_sent_is_told():
    with (
        embedding_workers(picture_model(), processes=2) as embed,
        pytest.raises(ValueError, match="cannot be sent these samples: these stay here; embed with one"),
    ):
        next(embed([Unsendable(["a"])]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a process that embedded ended")
def test_samples_that_end_every_process_are_told():
    with (
        embedding_workers(picture_model(), processes=2) as embed,
        pytest.raises(RuntimeError, match=r"ended 4 times, at last with signal 9 \(SIGKILL\): fewer"),
    ):
        list(embed(shards_of(deadly_images(18, deadly=7))))


@pytest.mark.slow
def test_a_model_that_no_process_can_read_is_told(monkeypatch):
    model = picture_model()
    monkeypatch.setattr(type(model), "fingerprint", property(lambda _: "0" * 64))
    with (
        embedding_workers(model, processes=2) as embed,
        pytest.raises(ValueError, match="cannot read this model: it is another model when it is read"),
    ):
        list(embed(shards_of(deadly_images(6, deadly=9))))


# On Ray.


def test_without_ray_the_command_to_install_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ValueError, match=r"pip install 'nearkin\[ray\]'"),
        embedding_workers(picture_model(), ray="local"),
    ):
        pass


@pytest.fixture
def cluster(monkeypatch):
    """A head that embeds nothing, and two nodes with a core each."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs the extra ray")
    import ray  # noqa: PLC0415

    monkeypatch.setenv("RAY_worker_niceness", "0")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)  # pytest's folders have names too long for Ray's sockets
        made = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        made.add_node(num_cpus=1)
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made
        with contextlib.suppress(Exception):
            ray.shutdown()
        made.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_embeds_what_one_process_does_and_a_lost_worker_is_replaced(cluster, tmp_path):
    model, samples = picture_model(), deadly_images(18, deadly=7, survived=tmp_path / "survived")
    with embedding_workers(model, ray=cluster.address) as embed:
        chunks = list(embed(shards_of(samples)))
    assert (tmp_path / "survived").exists()
    check_equal(model, samples, chunks)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_shards_of_a_lost_node_go_to_another(cluster):
    model, samples = picture_model(), deadly_images(30, deadly=99, pause=0.2)
    with embedding_workers(model, ray=cluster.address) as embed:
        chunks = embed(shards_of(samples))
        found = [next(chunks), next(chunks)]
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        found += chunks
    check_equal(model, samples, found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_commands_embed_and_index_on_a_cluster_of_their_own(nearkin, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs the extra ray")
    import numpy as np  # noqa: PLC0415
    from indexed import write_pictures  # noqa: PLC0415

    from nearkin.index import Index  # noqa: PLC0415

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    picture_model().save("model")
    write_pictures(Path("photos"))
    for arguments in (
        ("embed", "model", "photos", "-o", "one.npy"),
        ("embed", "model", "photos", "-o", "ray.npy", "--ray", "local"),
        ("index", "model", "photos", "-o", "one.index"),
        ("index", "model", "photos", "-o", "ray.index", "--ray", "local", "-j", "2"),
    ):
        code, _, error = nearkin(*arguments)
        assert code == 0, error
    assert np.allclose(np.load("one.npy"), np.load("ray.npy"), atol=1e-6)
    with Index.open("one.index") as one, Index.open("ray.index") as other:
        assert one.items() == other.items()
        torch.testing.assert_close(one.vectors(one.store.ids()), other.vectors(other.store.ids()))
