"""A model and pictures become an index that is searched, grows and shrinks, and embeds nothing twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from indexed import picture_model, write_pictures
from PIL import Image

import nearkin
from nearkin.data import SampleSet
from nearkin.index import Index


@pytest.fixture
def embedded(model, monkeypatch) -> list[int]:
    """How many samples each call to the model embedded."""
    counts: list[int] = []
    embed = type(model).embed

    def counting(self, inputs, **options):
        rows = embed(self, inputs, **options)
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(type(model), "embed", counting)
    return counts


def test_it_is_a_name_of_the_library():
    assert nearkin.Index is Index


def test_a_folder_gives_names_and_labels(index, photos):
    assert len(index) == 20
    assert index.labels() == {f"class{n}": 5 for n in range(4)}
    first = index.items()[0]
    assert (first.name, first.label) == ("class0/0.png", "class0")
    assert first.path == photos / "class0" / "0.png"
    assert len(first.content) == 64


def test_search_agrees_with_the_model(index, model, photos):
    query = photos / "class2" / "3.png"
    files = sorted(photos.rglob("*.png"))
    similarities = (model.embed(query) @ model.embed(files).T)[0]
    hits = index.search(query, k=6)
    assert [hit.item.path for hit in hits] == [files[n] for n in similarities.topk(6).indices.tolist()]
    assert [hit.similarity for hit in hits] == pytest.approx(similarities.topk(6).values.tolist(), abs=1e-5)
    assert hits[0].item.name == "class2/3.png"
    assert hits[0].same is None  # the model has no threshold


def test_queries_of_every_kind_and_number(index, photos):
    path = photos / "class1" / "1.png"
    picture = Image.open(path)
    pixels = np.array(picture)
    names = [hit.item.name for hit in index.search(path, 3)]
    for one in (str(path), picture, pixels, torch.from_numpy(pixels.copy())):
        assert [hit.item.name for hit in index.search(one, 3)] == names
    for several, count in (([path], 1), ([path, path], 2), (pixels[None], 1), (photos / "class1", 5)):
        found = index.search(several, 3)
        assert len(found) == count
        assert all(isinstance(hits, list) for hits in found)


def test_a_search_is_narrowed_and_leaves_out(index, photos):
    query = photos / "class1" / "1.png"
    own = index.search(query, 1)[0].item
    assert own.name == "class1/1.png"
    assert index.search(query, 1, exclude=[own.id])[0].item != own
    hits = index.search(query, 20, where={"label": "class3"})
    assert {hit.item.label for hit in hits} == {"class3"}
    assert len(hits) == 5


def test_nothing_is_embedded_twice(index, model, photos, embedded):
    added = index.add(photos)
    assert (added.new, added.known, added.changed, added.skipped) == (0, 20, 0, ())
    assert embedded == []
    (photos / "class0" / "0.png").rename(photos / "class0" / "copy.png")
    added = index.add(photos)
    assert (added.new, added.known) == (1, 19)
    assert embedded == []  # the content is known under another name
    one, two = index.store.by_name(["class0/0.png", "class0/copy.png"]).values()
    assert torch.equal(index.vectors([one.id]), index.vectors([two.id]))


def test_a_changed_file_is_embedded_again_under_its_name(index, model, photos, embedded):
    path = photos / "class0" / "0.png"
    before = index.store.by_name(["class0/0.png"])["class0/0.png"]
    Image.fromarray(np.zeros((20, 20, 3), dtype=np.uint8)).save(path)
    added = index.add(photos)
    assert (added.new, added.known, added.changed) == (0, 19, 1)
    assert embedded == [1]
    after = index.item(before.id)
    assert after.name == before.name
    assert after.content != before.content
    torch.testing.assert_close(index.vectors([after.id]), model.embed(path))


def test_broken_files_are_skipped_and_named(model, photos, tmp_path):
    (photos / "class0" / "1.png").write_bytes(b"not an image")
    (photos / "class3" / "2.png").write_bytes(b"")
    seen = []
    with Index.build(model, photos, tmp_path / "i", progress=lambda *now: seen.append(now)) as index:
        assert len(index) == 18
        added = index.add(photos)
    assert [name for name, _ in added.skipped] == ["class0/1.png", "class3/2.png"]
    assert "1.png" in added.skipped[0][1]
    assert seen[-1] == (20, 20)


def test_names_labels_and_metadata_are_given(model, photos, tmp_path):
    files = sorted((photos / "class0").glob("*.png"))[:2]
    with Index.build(
        model,
        files,
        tmp_path / "i",
        names=["one", "two"],
        labels=["x", 3],
        metadata=[{"price": 5}, {"price": 15, "new": True}],
    ) as index:
        assert [(item.name, item.label) for item in index.items()] == [("one", "x"), ("two", "3")]
        assert [item.name for item in index.items({"price": {"<": 10}})] == ["one"]
        index.add(files, names=["one", "two"], labels={"two": "y"}, metadata={"two": {"price": 1}})
        assert [(item.label, item.metadata) for item in index.items()] == [(None, {}), ("y", {"price": 1})]
        index.add(files, names=["one", "two"], labels=["v", "w"])
        assert [(item.label, item.metadata) for item in index.items()] == [("v", {}), ("w", {"price": 1})]


def test_pictures_arrays_and_sample_sets_are_known_by_their_content(model, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), dtype=np.uint8)
    pictures = [Image.fromarray(one) for one in pixels]
    with Index.build(model, pictures, tmp_path / "i") as index:
        assert index.add(pictures[:2]).known == 2
        assert index.add([pictures[0], pictures[0]]).known == 2
        assert len({item.name for item in index.items()}) == 3
        samples = nearkin.data.as_samples(pixels)
        added = index.add(SampleSet(samples, ["a", "b", "a"]))
        assert index.labels() == {"a": 2, "b": 1}
        assert added.new == 3


def test_files_of_two_folders_with_one_name_are_told_apart(index, model, tmp_path):
    other = write_pictures(tmp_path / "other", seed=7)
    with pytest.raises(ValueError, match=r"'class0/0.png' is in the index already, from .*photos.* prefix"):
        index.add(other)
    assert index.add(other, prefix="other/").new == 20
    assert len(index) == 40


def test_items_are_removed_by_id_and_by_name(index, photos):
    first = index.items()[0]
    assert index.remove(first.id) == 1
    assert index.remove(["class1/0.png"]) == 1
    assert index.remove(Path("class1", "1.png")) == 1
    assert len(index) == 17
    with pytest.raises(KeyError, match="no item 'class1/0.png'"):
        index.remove("class1/0.png")
    with pytest.raises(KeyError, match=f"no item {first.id}"):
        index.item(first.id)
    assert index.add(photos).new == 3


def test_it_opens_without_the_model_and_with_it(index, model, photos):
    query = photos / "class1" / "1.png"
    expected = [hit.item for hit in index.search(query)]
    with Index.open(index.path) as again:
        assert [hit.item for hit in again.search(query)] == expected
    with Index.open(index.path, model=model) as again:
        assert again.model is model


def test_another_model_is_refused_by_name(index, photos):
    other = picture_model(seed=1)
    told = r"shop.index was built with Model\(convnet.* of fingerprint .* another index"
    with pytest.raises(ValueError, match=told):
        Index.open(index.path, model=other)
    with pytest.raises(ValueError, match=told):
        Index.build(other, photos, index.path)


def test_a_reader_sees_what_another_adds(index, photos, tmp_path):
    with Index.open(index.path) as reader:
        assert len(reader.search(photos / "class1" / "1.png", 50)) == 20
        index.add(write_pictures(tmp_path / "more", seed=3), prefix="more/")
        assert len(reader.search(photos / "class1" / "1.png", 50)) == 40
        index.remove([item.id for item in index.items()[:10]])
        assert len(reader.search(photos / "class1" / "1.png", 50)) == 30


def test_int8_finds_the_same(model, photos, tmp_path):
    with Index.build(model, photos, tmp_path / "a") as exact:
        with Index.build(model, photos, tmp_path / "b", precision="int8") as small:
            assert small.precision == "int8"
            ours, theirs = small.search(photos, 5), exact.search(photos, 5)
            assert [[hit.item.name for hit in hits] for hits in ours] == [
                [hit.item.name for hit in hits] for hits in theirs
            ]
        with pytest.raises(ValueError, match="searched in int8, not in float32"):
            Index.build(model, photos, tmp_path / "b")
        with pytest.raises(ValueError, match="precision='int4'"):
            Index.build(model, photos, tmp_path / "c", precision="int4")


def test_what_is_no_index_is_told(model, photos, tmp_path):
    with pytest.raises(ValueError, match="nowhere is no index: it has no index.sqlite"):
        Index.open(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="photos holds other files"):
        Index.build(model, photos, photos)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file: an index is a folder"):
        Index.build(model, photos, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no image"):
        Index.build(model, tmp_path / "empty", tmp_path / "i")


def test_a_tar_shard_is_indexed_as_its_files_are(model, photos, tmp_path):
    import tarfile  # noqa: PLC0415

    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        for number, file in enumerate(sorted(photos.rglob("*.png"))):
            archive.add(file, f"{number:04d}.png")
            (tmp_path / "label").write_text(file.parent.name)
            archive.add(tmp_path / "label", f"{number:04d}.cls")
    with (
        Index.build(model, tmp_path / "shard.tar", tmp_path / "packed") as packed,
        Index.build(model, photos, tmp_path / "files") as files,
    ):
        assert packed.labels() == files.labels()
        assert packed.items()[7].name == "shard.tar/0007.png"
        ids = [item.id for item in packed.items()]
        torch.testing.assert_close(
            packed.vectors(ids), files.vectors([item.id for item in files.items()]), atol=1e-5, rtol=0
        )
        assert packed.add(tmp_path / "shard.tar").known == 20
