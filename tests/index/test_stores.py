"""What every store must do, whatever it is; a new one is a line in ``STORES``.

Those on servers are slow: the tests start real ones. Where their packages are absent they are skipped.
"""

from __future__ import annotations

import uuid

import pytest
import torch
from torch.nn.functional import normalize

from nearkin.index import NewItem
from nearkin.index.embedded import EmbeddedStore
from nearkin.index.filters import conditions
from nearkin.index.milvus import MilvusStore
from nearkin.index.postgres import PostgresStore

DIMENSION = 6
STORES = {
    "float32": lambda folder: EmbeddedStore.create(folder, dimension=DIMENSION),
    "int8": lambda folder: EmbeddedStore.create(folder, dimension=DIMENSION, precision="int8"),
}
SERVERS = {
    "postgres": ("postgres", {}),
    "postgres-float16": ("postgres", {"precision": "float16"}),
    "milvus": ("milvus", {}),
}


@pytest.fixture(params=[*STORES, *(pytest.param(name, marks=pytest.mark.slow) for name in SERVERS)])
def store(request, tmp_path):
    if request.param in STORES:
        made = STORES[request.param](tmp_path / "store")
        yield made
        made.close()
        return
    kind, options = SERVERS[request.param]
    server = request.getfixturevalue(f"{kind}_server")
    address = server.address(f"t{uuid.uuid4().hex}")
    made = type_of(kind).create(address, dimension=DIMENSION, **options)
    yield made
    made.drop()


def type_of(kind: str):
    return {"postgres": PostgresStore, "milvus": MilvusStore}[kind]


def exactness(store) -> dict[str, float]:
    """How far similarities may be from those of the vectors that were given."""
    return {"atol": 2e-3, "rtol": 0} if store.precision == "float16" else {"atol": 1e-5, "rtol": 1.3e-6}


def vectors(count: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(count, DIMENSION, generator=torch.Generator().manual_seed(seed)))


def new_items(count: int, start: int = 0) -> list[NewItem]:
    return [
        NewItem(
            f"item{n}",
            f"content{n}",
            label=None if n % 5 == 4 else "abc"[n % 3],
            metadata={"price": n, "colour": ["red", "blue"][n % 2], "new": n % 2 == 0},
        )
        for n in range(start, start + count)
    ]


def test_an_empty_store_finds_nothing(store):
    assert store.count() == 0
    assert store.labels() == {}
    assert store.items() == []
    found = store.search(vectors(2), 3)
    assert found.ids.tolist() == [[-1] * 3] * 2
    assert found.similarities.isneginf().all()


@pytest.mark.parametrize("queries", [1, 40])
def test_search_finds_what_a_plain_product_finds(store, queries):
    rows, asked = vectors(300), vectors(queries, seed=1)
    assert store.add(new_items(300), rows) == ["new"] * 300
    expected = (asked @ rows.T).topk(7)
    found = store.search(asked, 7)
    torch.testing.assert_close(found.similarities, expected.values, **exactness(store))
    if store.precision == "float16":  # two that are nearly as near may change places
        return
    known = store.by_id(found.ids.flatten().tolist())
    names = [[known[one].name for one in ids] for ids in found.ids.tolist()]
    assert names == [[f"item{n}" for n in row] for row in expected.indices.tolist()]


FILTERS = [
    {"label": "a"},
    {"label": ["a", "b"]},
    {"label": None},
    {"label": {"!=": "a"}},
    {"price": {"<": 20}},
    {"price": {">=": 10, "<": 30}},
    {"price": {">": 10**9}},
    {"colour": "red", "label": "a"},
    {"colour": {">": "c"}},
    {"new": True},
    {"price": {">": "a"}},
    {"nothing": 3},
    {"nothing": {"!=": 3}},
    {"label": []},
    {"name": "item7"},
    {},
]


def fits(item, where) -> bool:
    """The same in Python."""
    for key, operator, value in conditions(where):
        own = getattr(item, key) if key in ("name", "label") else item.metadata.get(key)
        if operator == "=":
            right = own in value
        elif operator == "!=":
            right = own not in value
        else:
            alike = isinstance(own, str) == isinstance(value, str) and own is not None
            right = alike and {"<": own < value, ">": own > value, ">=": own >= value}[operator]
        if not right:
            return False
    return True


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_a_filter_narrows_search_items_ids_and_count(store, where):
    rows = vectors(60)
    store.add(new_items(60), rows)
    expected = [item.name for item in store.items() if fits(item, where)]
    assert [item.name for item in store.items(where)] == expected
    assert [item.name for item in store.by_id(store.ids(where).tolist()).values()] == expected
    assert store.count(where) == len(expected)
    for asked in (vectors(1, seed=2), vectors(12, seed=3)):
        found = store.search(asked, 60, where=where)
        there = [{*ids} - {-1} for ids in found.ids.tolist()]
        assert there == [{*store.ids(where).tolist()}] * len(asked)
        own = store.vectors(store.ids(where))
        torch.testing.assert_close(
            found.similarities[:, : len(own)], (asked @ own.T).sort(descending=True).values
        )


ODD = [
    "",
    " ",
    "O'Brien",
    'a "quote"',
    "back\\slash",
    "50 %s",
    "100%",
    "{items}",
    "; DROP TABLE items",
    "žába\n🐸",
]


def test_texts_of_any_kind_are_kept_and_found(store):
    items = [
        NewItem(f"name {text}", f"content {text}", label=text, metadata={f"k{text}".replace('"', "'"): text})
        for text in ODD
    ]
    store.add(items, vectors(len(ODD)))
    assert [item.label for item in store.items()] == ODD
    assert {*store.by_name([item.name for item in items])} == {item.name for item in items}
    assert {*store.by_content([item.content for item in items])} == {item.content for item in items}
    for text in ODD[:: 1 if store.precision == "int8" else 3]:
        assert [item.label for item in store.items({"label": text})] == [text]
        key = f"k{text}".replace('"', "'")
        assert [item.label for item in store.items({key: text})] == [text]
        assert store.count({key: {"!=": text}}) == len(ODD) - 1
    assert store.count({"label": ["' OR 1=1 --", '" or key != "']}) == 0
    assert [*store.labels()] == sorted(ODD, key=str.encode)


def test_values_compare_with_what_they_are(store):
    """Labels given as numbers are texts; true is 1; a text never equals a number; ids may be texts."""
    items = [
        NewItem("a", "a", label="3", metadata={"x": 1}),
        NewItem("b", "b", metadata={"x": "1", "y": True}),
    ]
    store.add(items, vectors(2))
    first = store.ids().tolist()[0]
    names = lambda where: [item.name for item in store.items(where)]  # noqa: E731
    assert names({"label": 3}) == ["a"]
    assert names({"x": 1}) == names({"x": 1.0}) == names({"x": True}) == ["a"]
    assert names({"x": "1"}) == ["b"]
    assert names({"y": 1}) == ["b"]
    assert names({"y": {">": 0.5}}) == ["b"]
    assert names({"id": first}) == names({"id": [str(first), "no id"]}) == ["a"]
    assert names({"id": {">": first}}) == ["b"]
    assert names({"name": {">=": "b"}}) == ["b"]
    assert names({"label": {"<": 5}}) == []


def test_excluded_and_removed_items_are_not_found(store):
    rows = vectors(50)
    store.add(new_items(50), rows)
    ids = store.ids().tolist()
    assert store.remove(ids[:10]) == 10
    assert store.remove(ids[:10]) == 0
    assert store.count() == 40
    for asked in (rows[:1], rows[:20]):
        found = store.search(asked, 50, exclude=ids[10:15])
        assert all({*row} - {-1} == {*ids[15:]} for row in found.ids.tolist())
    assert store.by_id(ids[8:12]).keys() == {*ids[10:12]}
    with pytest.raises(KeyError, match=f"there is no item {ids[0]}"):
        store.vectors(ids[:1])


def test_ids_are_never_given_twice(store):
    store.add(new_items(3), vectors(3))
    last = store.ids().tolist()[-1]
    store.remove([last])
    store.add(new_items(1, start=7), vectors(1))
    assert store.ids().tolist()[-1] > last


def test_an_item_that_is_there_is_known_or_changed(store):
    items, rows = new_items(4), vectors(5)
    store.add(items, rows[:4])
    ids = store.ids().tolist()
    version = store.version()
    assert store.add(items[:2], rows[:2]) == ["known", "known"]
    assert store.version() == version
    changed = NewItem("item1", "another content", label="z")
    assert store.add([items[0], changed], rows[[0, 4]]) == ["known", "changed"]
    assert store.version() != version
    assert store.ids().tolist() == ids
    found = store.by_id([ids[1]])[ids[1]]
    assert (found.content, found.label, found.metadata) == ("another content", "z", {})
    torch.testing.assert_close(store.vectors([ids[1]]), rows[4:], **exactness(store))
    assert store.search(rows[4:], 1).ids.tolist() == [[ids[1]]]
    near = store.search(rows[1:2], 4)
    assert near.similarities[0, 0] < 0.9999  # the old vector is gone
    assert store.count() == 4


def test_items_are_found_by_name_and_content_and_can_be_relabelled(store):
    items = new_items(3)
    store.add(items, vectors(3))
    found = store.by_name(["item2", "unknown", "item0"])
    assert {*found} == {"item0", "item2"}
    assert found["item2"].metadata == {"price": 2, "colour": "red", "new": True}
    assert store.by_content(["content1", "?"]) == {"content1": store.by_name(["item1"])["item1"].id}
    from dataclasses import replace  # noqa: PLC0415

    store.update([replace(found["item0"], label="other", metadata={"price": 99})])
    assert store.labels() == {"b": 1, "c": 1, "other": 1}
    assert store.items({"price": 99})[0].name == "item0"


def test_pages_of_items(store):
    store.add(new_items(10), vectors(10))
    names = [item.name for item in store.items()]
    assert [item.name for item in store.items(offset=3, limit=4)] == names[3:7]
    assert [item.name for item in store.items({"colour": "red"}, offset=1, limit=2)] == ["item2", "item4"]


def test_what_a_store_cannot_take_is_refused_and_leaves_nothing(store):
    rows = vectors(2)
    with pytest.raises(ValueError, match=r"need vectors \(3, 6\), not \(2, 6\)"):
        store.add(new_items(3), rows)
    with pytest.raises(ValueError, match="length 1"):
        store.add(new_items(2), rows * 2)
    with pytest.raises(ValueError, match="same name"):
        store.add(new_items(1) * 2, rows)
    with pytest.raises(ValueError, match="k=0"):
        store.search(rows, 0)
    with pytest.raises(ValueError, match=r"queries must be \(n, 6\)"):
        store.search(rows[:, :4], 1)
    assert store.count() == 0


def test_many_removals_write_the_files_anew_and_change_no_answer(store, monkeypatch):
    monkeypatch.setattr("nearkin.index.embedded._FEWEST_REMOVED", 5)
    rows = vectors(40)
    store.add(new_items(40), rows)
    ids = store.ids().tolist()
    before = store.vectors(ids[20:])
    store.remove(ids[:20:2])
    store.remove(ids[1:20:2])
    assert store.count() == 20
    torch.testing.assert_close(store.vectors(ids[20:]), before)
    found = store.search(rows[30:31], 3)
    expected = (rows[30] @ rows[20:].T).topk(3)
    assert found.ids.tolist() == [[ids[20 + n] for n in expected.indices.tolist()]]
    store.add(new_items(5, start=100), vectors(5, seed=9))
    assert store.count() == 25
    torch.testing.assert_close(store.vectors(store.ids()[-5:]), vectors(5, seed=9), **exactness(store))


def test_vectors_are_close_to_those_given(store):
    rows = vectors(20)
    store.add(new_items(20), rows)
    kept = store.vectors(store.ids())
    if store.precision == "float16":
        torch.testing.assert_close(kept, rows, **exactness(store))
    else:
        assert torch.equal(kept, rows)
    assert store.damaged() == []
