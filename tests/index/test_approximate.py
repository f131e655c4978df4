"""Approximate search: close to exact, kept up to date, thrown away without harm, and measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from indexed import picture_model
from torch.nn.functional import normalize

from nearkin.index import Index, NewItem
from nearkin.index.embedded import EmbeddedStore

COUNT, DIMENSION = 1500, 16


def vectors(count: int, seed: int) -> torch.Tensor:
    return normalize(torch.randn(count, DIMENSION, generator=torch.Generator().manual_seed(seed)))


def new_items(count: int, start: int = 0) -> list[NewItem]:
    return [NewItem(str(n), str(n), label=str(n % 7)) for n in range(start, start + count)]


@pytest.fixture
def store(tmp_path):
    made = EmbeddedStore.create(tmp_path / "store", dimension=DIMENSION)
    made.add(new_items(COUNT), vectors(COUNT, 0))
    yield made
    made.close()


def recall(store: EmbeddedStore, queries: torch.Tensor, k: int = 10, **options) -> float:
    exact, near = (store.search(queries, k, approximate=a, **options).ids for a in (False, True))
    return sum(len({*a} & {*b}) for a, b in zip(exact.tolist(), near.tolist(), strict=True)) / exact.numel()


def test_it_finds_nearly_all_and_says_true_similarities(store):
    queries = vectors(50, 1)
    assert recall(store, queries) > 0.95
    found = store.search(queries[:1], 5, approximate=True)
    torch.testing.assert_close(found.similarities[0], store.vectors(found.ids[0]) @ queries[0])


def test_it_follows_what_is_added_changed_and_removed(store):
    queries = vectors(40, 2)
    recall(store, queries)
    store.add(new_items(300, start=COUNT), vectors(300, 3))
    ids = store.ids().tolist()
    store.remove(ids[:200])
    store.add([NewItem("900", "changed")], queries[:1])
    assert recall(store, queries) > 0.95
    found = store.search(queries[:1], 5, approximate=True)
    assert store.by_id(found.ids[0, :1].tolist())[int(found.ids[0, 0])].name == "900"
    assert not {*store.search(queries, 10, approximate=True).ids.flatten().tolist()} & {*ids[:200]}
    assert recall(store, queries, exclude=ids[300:310]) > 0.95
    assert recall(store, queries, where={"label": "3"}) == 1  # which is exact


def test_making_the_graph_tells_how_far_it_is_and_is_not_repeated(store):
    told = []
    store.make_graph(lambda done, total: told.append((done, total)))
    assert told[-1] == (COUNT, COUNT)
    store.make_graph(lambda done, total: told.append("again"))
    assert "again" not in told
    assert recall(store, vectors(20, 1)) > 0.95


class NoRows:
    """NumPy for a graph to which no row may be added."""

    def __getattr__(self, name: str) -> object:
        if name == "arange":
            pytest.fail("a row is added")
        return getattr(np, name)


def test_the_graph_is_kept_for_the_next_process_and_may_be_lost_or_broken(store, monkeypatch):
    queries = vectors(20, 4)
    recall(store, queries)
    graph = store.folder / "graph.usearch"
    assert graph.exists()
    again = EmbeddedStore(store.folder)
    with monkeypatch.context() as patch:
        patch.setattr("nearkin.index.graph.np", NoRows())
        assert recall(again, queries) > 0.95
    again.close()
    graph.write_bytes(b"broken")
    for _ in range(2):
        again = EmbeddedStore(store.folder)
        assert recall(again, queries) > 0.95
        again.close()
        graph.unlink()


def test_after_files_are_written_anew_so_is_the_graph(store, monkeypatch):
    monkeypatch.setattr("nearkin.index.embedded._FEWEST_REMOVED", 10)
    queries = vectors(20, 5)
    recall(store, queries)
    store.remove(store.ids().tolist()[: COUNT // 2])
    assert recall(store, queries) > 0.95


def test_an_index_is_measured(tmp_path):
    with Index.create(picture_model(), tmp_path / "i", precision="int8") as index:
        with pytest.raises(ValueError, match="has 0 items: there is nothing to find"):
            index.evaluate()
        generator = torch.Generator().manual_seed(0)
        rows = normalize(torch.randn(7, 8, generator=generator).repeat(60, 1) + 0.3)
        rows = normalize(rows + 0.2 * torch.randn(420, 8, generator=generator))
        index.store.add(new_items(420), rows)
        found = index.evaluate(queries=50, k=5)
        assert (found.items, found.dimension, found.queries, found.k) == (420, 8, 50, 5)
        assert found.float32.recall == 1
        for quality in (found.exact, found.float32, found.approximate):
            assert quality.recall > 0.9
            assert quality.queries_per_second > 0
        similarities = rows @ rows.T
        similarities.fill_diagonal_(-2)
        nearest = similarities.argmax(dim=1) % 7 == torch.arange(420) % 7
        everyone = index.evaluate(queries=420, approximate=False)
        assert everyone.float32.recall_at_1 == pytest.approx(nearest.float().mean().item())
        assert everyone.approximate is None
        assert everyone.to_dict()["exact"]["recall_at_1"] == everyone.exact.recall_at_1
