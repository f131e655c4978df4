"""What the API answers, against the index itself."""

from __future__ import annotations

import io
import socket

import pytest
import torch
from indexed import picture_model, write_pictures
from PIL import Image, ImageOps
from serving_indexes import THRESHOLD, build_index, open_index
from torch import nn

from nearkin.data import AsIs
from nearkin.index import Index
from nearkin.model import Model
from nearkin.networks import Embedder, WrappedNetwork
from nearkin.serving.pictures import Crop

SEARCH = "/api/indexes/shop/search"


def names(answer) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["name"] for hit in answer.json()["hits"]]


def png(picture: Image.Image) -> bytes:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()


# Search.


def test_an_upload_finds_what_the_index_finds(client, shop, one_photo):
    expected = open_index(shop).search(one_photo, k=7)
    answer = client.post(SEARCH, params={"k": 7}, content=one_photo.read_bytes())
    assert names(answer) == [hit.item.name for hit in expected]
    assert names(answer)[0] == "class2/3.png"
    found = [hit["similarity"] for hit in answer.json()["hits"]]
    assert found == pytest.approx([hit.similarity for hit in expected], abs=1e-5)
    assert answer.json()["threshold"] == THRESHOLD.similarity
    assert [hit["same"] for hit in answer.json()["hits"]] == [one >= 0.9 for one in found]


def test_a_form_is_an_upload_too(client, one_photo):
    raw = client.post(SEARCH, content=one_photo.read_bytes())
    form = client.post(SEARCH, files={"image": ("photo.png", one_photo.read_bytes(), "image/png")})
    assert names(form) == names(raw)


def test_what_the_client_calls_the_bytes_does_not_matter(client, one_photo):
    for kind in ("image/jpeg", "text/html", "application/x-www-form-urlencoded", "nonsense"):
        answer = client.post(SEARCH, content=one_photo.read_bytes(), headers={"content-type": kind})
        assert names(answer)[0] == "class2/3.png"


def test_an_item_finds_its_neighbours_and_not_itself(client, shop):
    index = open_index(shop)
    item = index.items()[8]
    expected = index.search_vectors(index.vectors([item.id]), k=5, exclude=[item.id])[0]
    answer = client.get(f"/api/indexes/shop/items/{item.id}/similar", params={"k": 5})
    assert names(answer) == [hit.item.name for hit in expected]
    assert item.name not in names(answer)


def test_a_crop_searches_by_that_part(client, shop, one_photo):
    part = Image.open(one_photo).convert("RGB")
    part = part.crop((6, 5, 18, 15))
    expected = [hit.item.name for hit in open_index(shop).search(part, k=4)]
    crop = "0.25,0.25,0.5,0.5"
    assert (
        names(client.post(SEARCH, params={"k": 4, "crop": crop}, content=one_photo.read_bytes())) == expected
    )
    item = next(one for one in open_index(shop).items() if one.name == "class2/3.png")
    found = names(client.get(f"/api/indexes/shop/items/{item.id}/similar", params={"k": 36, "crop": crop}))
    assert item.name not in found  # it is the query
    assert found[:3] == [name for name in expected if name != item.name][:3]


@pytest.mark.parametrize(
    "crop", ["", "a,b,c,d", "0,0,1", "0,0,0,1", "0.5,0.5,0.6,0.2", "-0.1,0,1,1", "nan,0,1,1", "0,0,1e400,1"]
)
def test_a_crop_that_is_none_is_named(client, one_photo, crop):
    answer = client.post(SEARCH, params={"crop": crop}, content=one_photo.read_bytes())
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "bad_crop"


def test_a_crop_has_at_least_one_pixel():
    picture = Image.new("RGB", (3, 2))
    assert Crop(0.99, 0.99, 0.001, 0.001).of(picture).size == (1, 1)
    assert Crop(0.0, 0.0, 1.0, 1.0).of(picture).size == (3, 2)


def test_filters_leave_only_what_fits(client, one_photo):
    def search(*where):
        return client.post(SEARCH, params={"k": 50, "where": list(where)}, content=one_photo.read_bytes())

    assert {name.partition("/")[0] for name in names(search("label=class1"))} == {"class1"}
    both = search('{"label": ["class1", "class4"]}')
    assert {name.partition("/")[0] for name in names(both)} == {"class1", "class4"}
    assert len(names(search("label=class1|class4"))) == 12
    cheap = search("label=class1", "price<8").json()["hits"]
    assert [hit["metadata"]["price"] for hit in cheap]
    assert all(6 <= hit["metadata"]["price"] < 8 for hit in cheap)
    assert names(search("label=nothing")) == []


@pytest.mark.parametrize(
    "where",
    [
        "label",
        "{",
        "[1]",
        '{"label": {"~": 1}}',
        '{"label": {"a": {"b": 1}}}',
        "path=/etc/passwd",
        '{"path": "/"}',
    ],
)
def test_a_filter_that_is_none_is_named(client, one_photo, where):
    for answer in (
        client.post(SEARCH, params={"where": where}, content=one_photo.read_bytes()),
        client.get("/api/indexes/shop/items", params={"where": where}),
    ):
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == "bad_filter"
        assert answer.json()["error"]["message"].startswith("where: ")


def test_a_turned_photo_is_searched_upright(client, photos, tmp_path):
    turned = Image.open(photos / "class1" / "0.png").transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it back: clockwise by 90 degrees
    turned.save(tmp_path / "turned.png", exif=exif)
    assert ImageOps.exif_transpose(Image.open(tmp_path / "turned.png")).size == (24, 20)
    assert names(client.post(SEARCH, content=(tmp_path / "turned.png").read_bytes()))[0] == "class1/0.png"


def test_two_uploads_are_verified(client, shop, photos):
    a, b = photos / "class0" / "0.png", photos / "class5" / "1.png"
    similarity = open_index(shop).model.similarity(a, b).item()
    answer = client.post("/api/indexes/shop/verify", files={"a": a.read_bytes(), "b": b.read_bytes()}).json()
    assert answer["similarity"] == pytest.approx(similarity, abs=1e-5)
    assert answer["same"] is (similarity >= 0.9)
    assert answer["threshold"] == 0.9
    missing = client.post("/api/indexes/shop/verify", files={"a": a.read_bytes()})
    assert missing.status_code == 400
    assert missing.json()["error"]["message"] == "the form has no file named b"


def test_a_model_without_a_threshold_decides_nothing(start, shop, one_photo):
    client = start({"shop": open_index(shop, threshold=None)})
    answer = client.post(SEARCH, content=one_photo.read_bytes()).json()
    assert answer["threshold"] is None
    assert {hit["same"] for hit in answer["hits"]} == {None}
    assert client.get("/api/indexes").json()["indexes"][0]["threshold"] is None


def test_an_item_of_one_index_searches_another(start, shop, older):
    client = start({"shop": open_index(shop), "older": open_index(older)})
    item = open_index(shop).items()[5]
    expected = [hit.item.name for hit in open_index(older).search(item.path, k=6)]
    assert expected[0] == item.name
    found = names(client.get(f"/api/indexes/older/items/{item.id}/similar", params={"k": 5, "of": "shop"}))
    assert found == expected[1:]


def test_an_item_that_is_removed_meanwhile_is_not_a_fault(start, shop, one_photo):
    index = open_index(shop)
    search, calls = index.search_vectors, []

    def racing(*arguments, **keywords):
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("there is no item 3")
        return search(*arguments, **keywords)

    index.search_vectors = racing
    assert names(start({"shop": index}).post(SEARCH, content=one_photo.read_bytes()))[0] == "class2/3.png"


# Browsing.


def test_indexes_are_told_with_their_models(start, shop, older):
    client = start({"shop": open_index(shop), "older": open_index(older)})
    told = client.get("/api/indexes").json()["indexes"]
    assert [one["name"] for one in told] == ["shop", "older"]
    assert told[0]["items"] == 36
    assert told[0]["takes"] == "images"
    assert told[0]["embedding_dim"] == 8
    assert told[0]["threshold"]["similarity"] == 0.9
    assert told[0]["fingerprint"] == open_index(shop).model.fingerprint != told[1]["fingerprint"]


def test_items_are_listed_in_parts(client, shop):
    every = [item.name for item in open_index(shop).items()]
    first = client.get("/api/indexes/shop/items", params={"limit": 20}).json()
    second = client.get("/api/indexes/shop/items", params={"limit": 20, "offset": 20}).json()
    assert [item["name"] for item in first["items"] + second["items"]] == every
    assert (first["more"], second["more"]) == (True, False)


def test_labels_are_counted(client):
    labels = client.get("/api/indexes/shop/labels").json()["labels"]
    assert labels == [{"label": f"class{number}", "count": 6} for number in range(6)]


def test_the_map_has_a_place_for_every_item(client, shop):
    found = client.get("/api/indexes/shop/map").json()
    items = open_index(shop).items()
    assert found["ids"] == [item.id for item in items]
    assert [found["names"][number] for number in found["labels"]] == [item.label for item in items]
    for axis in ("x", "y"):
        assert (min(found[axis]), max(found[axis])) == (0.0, 1.0)


def test_clusters_hold_items_that_lie_together(client):
    found = client.get("/api/indexes/shop/clusters").json()["clusters"]
    assert found
    assert [one["size"] for one in found] == sorted((one["size"] for one in found), reverse=True)
    for cluster in found:
        assert len({item["id"] for item in cluster["items"]}) == min(cluster["size"], 12)
        assert sum(one["count"] for one in cluster["labels"]) <= cluster["size"]


def test_a_thumbnail_is_a_small_jpeg_and_is_not_sent_twice(client, shop):
    item = open_index(shop).items()[0]
    address = f"/api/indexes/shop/items/{item.id}/thumbnail"
    answer = client.get(address, params={"size": 16})
    assert answer.headers["content-type"] == "image/jpeg"
    assert max(Image.open(io.BytesIO(answer.content)).size) == 16
    again = client.get(address, params={"size": 16}, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_picture_that_is_gone_is_said(start, tmp_path):

    photos = write_pictures(tmp_path / "photos", classes=2, each=2)
    client = start({"shop": open_index(build_index(photos, tmp_path / "shop.index"))})
    (photos / "class0" / "0.png").unlink()
    gone = client.get("/api/indexes/shop/items/1/thumbnail")
    assert gone.status_code == 404
    assert gone.json()["error"]["code"] == "no_picture"
    assert client.get("/api/indexes/shop/items/1/similar").status_code == 200  # the index has its embedding
    assert client.get("/api/indexes/shop/items/1/similar", params={"crop": "0,0,.5,.5"}).status_code == 404


def test_what_is_added_later_is_found(start, tmp_path, one_photo):

    folder = build_index(write_pictures(tmp_path / "photos", classes=2, each=2), tmp_path / "shop.index")
    client = start({"shop": open_index(folder)})
    assert len(client.get("/api/indexes/shop/map").json()["ids"]) == 4
    with Index.open(folder, model=picture_model()) as writer:
        writer.add([one_photo], names=["new"])
    assert names(client.post(SEARCH, content=one_photo.read_bytes()))[0] == "new"
    assert len(client.get("/api/indexes/shop/map").json()["ids"]) == 5


# Mistakes.


@pytest.mark.parametrize(
    ("address", "status", "code"),
    [
        ("/api/indexes/other/labels", 404, "no_index"),
        ("/api/indexes/shop/items/999", 404, "no_item"),
        ("/api/indexes/shop/items/999/thumbnail", 404, "no_item"),
        ("/api/indexes/shop/items/999/similar", 404, "no_item"),
        ("/api/indexes/shop/items/-1", 422, "bad_value"),
        ("/api/indexes/shop/items/99999999999999999999", 422, "bad_value"),
        ("/api/indexes/shop/items/..%2f..%2fetc%2fpasswd", 404, "bad_request"),
        ("/api/indexes/shop/items/1/similar?k=0", 422, "bad_value"),
        ("/api/indexes/shop/items/1/similar?k=1000", 422, "bad_value"),
        ("/api/indexes/shop/items/1/similar?of=other", 404, "no_index"),
        ("/api/indexes/shop/items/1/thumbnail?size=100000", 422, "bad_value"),
        ("/api/indexes/shop/items?offset=-1", 422, "bad_value"),
        ("/page/../app.py", 404, "bad_request"),
        ("/page/..%2fapp.py", 404, "bad_request"),
        ("/page/app.py", 404, "no_file"),
        ("/etc/passwd", 404, "bad_request"),
    ],
)
def test_wrong_addresses_and_values_get_one_sentence(client, address, status, code):
    answer = client.get(address)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "\n" not in answer.json()["error"]["message"]


def test_a_fault_of_ours_is_not_shown(start, shop, caplog):
    index = open_index(shop)
    client = start({"shop": index})
    index.labels = lambda: 1 / 0
    answer = client.get("/api/indexes/shop/labels")
    assert answer.status_code == 500
    assert answer.json() == {
        "error": {"code": "internal", "message": "the server failed to answer: see its log"}
    }
    assert "ZeroDivisionError" in caplog.text


def test_no_answer_tells_where_pictures_lie(client, photos, one_photo):
    texts = [
        client.get(f"/api/indexes/shop/{what}").text
        for what in ("items", "items/1", "clusters", "map", "items/1/similar")
    ]
    texts += [client.get("/api/indexes").text, client.post(SEARCH, content=one_photo.read_bytes()).text]
    assert not [text for text in texts if str(photos) in text or "path" in text]


def test_addresses_are_never_fetched(client, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket, "create_connection", refused)
    for body in (b"http://localhost/secret.png", b"file:///etc/passwd", b'{"url": "http://localhost/"}'):
        assert client.post(SEARCH, content=body).status_code == 415
    answer = client.post(SEARCH, json={"url": "http://localhost/"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "no_text")


# Texts.


def test_a_model_of_texts_is_searched_by_text(start, tmp_path):

    class Letters(nn.Module):
        def forward(self, texts: list[str]) -> torch.Tensor:
            return torch.stack([torch.tensor([1.0 + text.count(c) for c in "abcde"]) for text in texts])

    model = Model([Embedder(WrappedNetwork(Letters(), 5).eval(), AsIs(), AsIs())])
    index = Index.build(model, ["aaa", "bbb", "ccc", "abc"], tmp_path / "words.index")
    index.model.threshold = None
    client = start({"words": index})
    assert client.get("/api/indexes").json()["indexes"][0]["takes"] == "texts"
    found = client.post("/api/indexes/words/search", json={"text": "bbbb"}, params={"k": 2})
    assert names(found)[0] == "bbb"
    assert names(client.get("/api/indexes/words/items/4/similar", params={"k": 3}))
    picture = client.post("/api/indexes/words/search", content=png(Image.new("RGB", (4, 4))))
    assert (picture.status_code, picture.json()["error"]["code"]) == (422, "wrong_kind")
    for body in ({"text": ""}, {"text": 3}, ["a"], {"text": "a" * 2001}):
        assert client.post("/api/indexes/words/search", json=body).status_code in (413, 422)


# The description.


def test_the_api_describes_itself(client):
    described = client.get("/openapi.json").json()
    assert {"/health", "/metrics", "/api/indexes/{index}/search"} <= set(described["paths"])
    for path, methods in described["paths"].items():
        for method, about in methods.items():
            assert about["summary"], f"{method} {path}"
            assert all(one.get("description") for one in about.get("parameters", ())), f"{method} {path}"
    kinds = described["paths"]["/api/indexes/{index}/search"]["post"]["requestBody"]["content"]
    assert {"image/jpeg", "multipart/form-data", "application/json"} <= set(kinds)
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
