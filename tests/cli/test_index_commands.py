"""``nearkin index``, ``search``, ``duplicates`` and ``clusters``, as a user types them."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import torch
from indexed import picture_model, write_pictures
from PIL import Image

from nearkin.index import Index
from nearkin.index.watching import watch


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with a saved model and pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    picture_model().save("model")
    write_pictures(tmp_path / "photos")
    return tmp_path


def ran(nearkin, *arguments) -> str:
    code, out, error = nearkin(*arguments)
    assert code == 0, error
    return out


def test_a_folder_is_indexed_searched_and_added_to(desk, nearkin):
    out = ran(nearkin, "index", "model", "photos", "-o", "shop.index")
    assert "added     20 new, 0 changed, 0 known already" in out
    assert "shop.index: 20 items, 4 labels, float32" in out
    assert "0 new, 0 changed, 20 known" in ran(nearkin, "index", "model", "photos", "-o", "shop.index")
    out = ran(nearkin, "search", "shop.index", "photos/class1/0.png", "-k", "3")
    assert "1.0000" in out
    assert "class1/0.png" in out
    write_pictures(desk / "more", seed=5)
    out = ran(nearkin, "index", "shop.index", "more", "--prefix", "more/")
    assert "added     20 new" in out
    assert "40 items" in ran(nearkin, "index", "shop.index")


def test_several_processes_make_the_index_that_one_makes(desk, nearkin, monkeypatch):
    monkeypatch.setattr("nearkin.index.index._AT_A_TIME", 3)
    (desk / "photos/class0/copy.png").write_bytes((desk / "photos/class3/2.png").read_bytes())
    (desk / "photos/class2/1.png").write_bytes(b"broken")
    ran(nearkin, "index", "model", "photos/class1", "--prefix", "class1/", "-o", "two.index")
    ran(nearkin, "index", "model", "photos/class1", "--prefix", "class1/", "-o", "one.index")
    for output, options in (("one.index", ()), ("two.index", ("-j", "2"))):
        out = ran(nearkin, "index", "model", "photos", "-o", output, *options)
        assert "added     15 new, 0 changed, 5 known already" in out
        assert "skipped   class2/1.png: " in out
    with Index.open("one.index") as one, Index.open("two.index") as two:
        assert one.items() == two.items()
        ours, theirs = one.vectors(one.store.ids()), two.vectors(two.store.ids())
        beside_the_broken_one = [one.store.by_name([f"class2/{n}.png"])[f"class2/{n}.png"].id for n in (2, 3)]
        same = torch.tensor([number not in beside_the_broken_one for number in one.store.ids().tolist()])
        assert torch.equal(ours[same], theirs[same])
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_json_is_the_same_as_python_says(desk, nearkin):
    told = json.loads(ran(nearkin, "index", "model", "photos", "--precision", "int8", "--json"))
    assert told["items"] == 20
    assert told["precision"] == "int8"
    assert told["added"] == {"new": 20, "known": 0, "changed": 0, "skipped": []}
    query = "photos/class2/1.png"
    options = ("-k", "4", "--where", "label=class1|class2", "--json")
    (found,) = json.loads(ran(nearkin, "search", "photos.index", query, *options))
    assert found["query"] == query
    with Index.open("photos.index") as index:
        hits = index.search(query, 4, where={"label": ["class1", "class2"]})
    assert [hit["name"] for hit in found["hits"]] == [hit.item.name for hit in hits]
    assert found["hits"][0]["similarity"] == pytest.approx(hits[0].similarity)
    several = json.loads(ran(nearkin, "search", "photos.index", query, query, "--approximate", "--json"))
    assert len(several) == 2
    (graph,) = [*(desk / "photos.index").rglob("graph.usearch")]
    graph.unlink()
    assert "making the graph of approximate search" in ran(
        nearkin, "search", "photos.index", query, "--approximate"
    )
    assert "making the graph" not in ran(nearkin, "search", "photos.index", query, "--approximate")
    groups = json.loads(ran(nearkin, "clusters", "photos.index", "-n", "3", "--least", "1", "--json"))
    assert sum(len(group["items"]) for group in groups) == 20


def test_files_that_changed_or_are_gone_or_broken(desk, nearkin):
    ran(nearkin, "index", "model", "photos")
    Image.fromarray(np.zeros((20, 20, 3), dtype=np.uint8)).save("photos/class0/0.png")
    (desk / "photos/class0/1.png").unlink()
    (desk / "photos/class0/2.png").write_bytes(b"broken")
    out = ran(nearkin, "index", "photos.index", "photos")
    assert "0 new, 1 changed, 17 known already" in out
    assert "skipped   class0/2.png: " in out
    assert "missing   the files of 1 items are gone; --prune removes these items" in out
    out = ran(nearkin, "index", "photos.index", "--prune", "--check")
    assert "removed   1 items" in out
    assert "19 items" in out
    assert "0 vectors are damaged" in out


def test_duplicates_and_clusters_for_people(desk, nearkin):
    Image.open("photos/class1/0.png").save("photos/class1/again.bmp")
    ran(nearkin, "index", "model", "photos")
    out = ran(nearkin, "duplicates", "photos.index", "--threshold", "0.999999")
    assert "class1/again.bmp" in out
    assert "groups of duplicates" in out
    out = ran(nearkin, "clusters", "photos.index", "--threshold", "0.9")
    assert "mean cosine with their centre" in out


def test_lists_and_measurements(desk, nearkin):
    ran(nearkin, "index", "model", "photos")
    assert ran(nearkin, "index", "photos.index", "--list", "outliers").count(".png") == 20
    assert ran(nearkin, "index", "photos.index", "--list", "representatives").count(".png") == 10
    ran(nearkin, "index", "photos.index", "--list", "label_errors")
    out = ran(nearkin, "index", "photos.index", "--evaluate")
    assert "queries per second, finds 100.00% of the 10 nearest, Recall@1" in out
    told = json.loads(ran(nearkin, "index", "photos.index", "--evaluate", "--list", "outliers", "--json"))
    assert told["evaluation"]["float32"]["recall"] == 1
    assert len(told["outliers"]) == 20


def test_a_contact_sheet_holds_everything_it_shows(desk, nearkin, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("TMPDIR", str(desk))
    monkeypatch.setattr("tempfile.tempdir", str(desk))
    (desk / "photos/class0/0.png").rename(desk / "photos/class0/<b>&.png")
    ran(nearkin, "index", "model", "photos")
    (desk / "photos/class3/4.png").unlink()
    ran(nearkin, "search", "photos.index", "photos/class1/0.png", "-k", "20", "--open")
    ran(nearkin, "duplicates", "photos.index", "--threshold", "0.5", "--open")
    ran(nearkin, "clusters", "photos.index", "-n", "2", "--open")
    assert len(opened) == 3
    page = next(path for path in desk.glob("nearkin-*/photos.index.html") if "Search" in path.read_text())
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") == 20  # the query and nineteen hits
    assert text.count("the file is gone") == 1
    assert "&lt;b&gt;&amp;.png" in text
    assert "<b>" not in text
    assert "http" not in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("index", "nowhere"), "nowhere is no index: give a FOLDER"),
        (("index", "nowhere", "photos"), "nowhere"),
        (("index", "model", "nothing"), "nothing is not a folder"),
        (("index", "photos.index", "photos", "-o", "x"), "--output is for a new index"),
        (("index", "photos.index", "--list", "outlier"), "did you mean outliers?"),
        (("index", "photos.index", "--watch"), "--watch needs a FOLDER"),
        (("search", "nowhere", "photos/class0/0.png"), "nowhere is no index"),
        (("search", "photos.index", "gone.png"), "there is no file gone.png"),
        (("search", "photos.index", "photos/class0/0.png", "--where", "label"), "'label' is no condition"),
        (("duplicates", "photos"), "photos is no index: it has no index.sqlite"),
        (("clusters", "photos.index", "--threshold", "3"), "threshold"),
    ],
)
def test_a_mistake_is_one_line(arguments, told, desk, nearkin):
    with Index.build(picture_model(), desk / "photos", desk / "photos.index"):
        pass
    code, _, error = nearkin(*arguments)
    assert code == 2
    assert told in error
    assert len(error.strip().splitlines()) == 1


def test_watching_ends_with_a_count(desk, nearkin, monkeypatch):
    looks = iter(range(4))

    def sleep(_seconds):
        look = next(looks)
        if look == 3:
            raise KeyboardInterrupt
        if look == 0:
            write_pictures(desk / "photos" / "new", classes=1, each=2, seed=9)

    monkeypatch.setattr("nearkin.index.index.watch", functools.partial(watch, sleep=sleep))
    out = ran(nearkin, "index", "model", "photos", "--watch", "--every", "0.1")
    assert "watching  photos, every 0.1 s" in out
    assert "2 new" in out
    assert out.strip().endswith("22 items")
