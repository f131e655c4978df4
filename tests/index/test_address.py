"""Addresses of indexes on servers, and that no password is ever taken from, or shown with, one."""

from __future__ import annotations

import pytest

from nearkin.index import Index
from nearkin.index.address import is_address, parse_address
from nearkin.index.milvus_server import _token

SECRETS = [
    "postgresql://anna:hunter2@localhost/shop/birds",
    "postgresql://localhost/shop/birds?password=hunter2",
    "postgresql://localhost/shop/birds?sslpassword=hunter2",
    "postgres://anna:hunter2@localhost:notaport/shop/birds",
    "milvus://root:hunter2@localhost/birds",
    "milvus://localhost/birds?token=hunter2",
]


def test_an_address_is_taken_apart_and_put_together_again():
    text = "postgresql://anna@db.example.com:5433/shop/birds?sslmode=require"
    found = parse_address(text)
    assert (found.user, found.host, found.port) == ("anna", "db.example.com", 5433)
    assert (found.database, found.name, found.options) == ("shop", "birds", {"sslmode": "require"})
    assert str(found) == text
    assert found.server == "postgresql://anna@db.example.com:5433/shop"
    socket = parse_address("postgres://postgres@/postgres/birds?host=/run/postgresql")
    assert str(socket) == "postgresql://postgres@/postgres/birds?host=/run/postgresql"
    assert str(parse_address("milvus://[::1]:19530/shop/birds")) == "milvus://[::1]:19530/shop/birds"
    assert str(parse_address("milvus://localhost/birds")) == "milvus://localhost/birds"


@pytest.mark.parametrize("text", SECRETS)
def test_a_password_is_refused_and_not_repeated(text, nearkin):
    with pytest.raises(ValueError, match=r"holds a password|no address") as caught:
        parse_address(text)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match="address") as caught:
        Index.open(text)
    assert "hunter2" not in str(caught.value)
    for command in (["index", "model", "photos", "-o", text], ["search", text, "x.png"], ["index", text]):
        code, out, error = nearkin(*command)
        assert code == 2
        assert "hunter2" not in out + error


def test_what_is_no_address_is_told():
    for text, told in {
        "mysql://localhost/shop/birds": "mysql:// is no kind of index",
        "postgresql://localhost/birds": "names no index",
        "postgresql://localhost/a/b/c": "names no index",
        "milvus://localhost": "names no index",
        "milvus://localhost/two words": "'two words' cannot be the name",
        "milvus://localhost/1st": "'1st' cannot be the name",
        "milvus://anna@localhost/birds": "takes no user: set MILVUS_TOKEN",
        "milvus://localhost/birds?colour=red": "has no option 'colour'",
        "milvus://localhost/birds?patience=long": "patience= must be a number of seconds",
    }.items():
        with pytest.raises(ValueError, match=told.replace("?", r"\?")):
            parse_address(text)


def test_folders_are_no_addresses(tmp_path):
    assert not is_address(tmp_path)
    assert not is_address(str(tmp_path))
    assert not is_address("birds.index")
    assert is_address("anything://else")


def test_the_token_comes_from_the_environment_or_a_file(tmp_path, monkeypatch):
    monkeypatch.delenv("MILVUS_TOKEN", raising=False)
    monkeypatch.delenv("MILVUS_TOKEN_FILE", raising=False)
    assert _token() == ""
    monkeypatch.setenv("MILVUS_TOKEN", "root:secret")
    assert _token() == "root:secret"
    (tmp_path / "token").write_text("key\n")
    monkeypatch.setenv("MILVUS_TOKEN_FILE", str(tmp_path / "token"))
    assert _token() == "key"
