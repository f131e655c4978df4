"""Filters for servers: no text of the user's stands in a statement, and comparisons of texts are Python's."""

from __future__ import annotations

import re

import pytest

from nearkin.index.milvus_filters import EVERYTHING, NOTHING, filter_to_expression, fits, one_of
from nearkin.index.postgres_filters import filter_to_sql

HOSTILE = "x' OR 1=1; DROP TABLE nearkin.indexes; --"


@pytest.mark.parametrize(
    "where", [{"label": HOSTILE}, {HOSTILE: 3}, {HOSTILE: {">": HOSTILE}}, {HOSTILE: None}]
)
def test_values_and_keys_are_parameters(where):
    statement, values = filter_to_sql(where)
    assert "DROP" not in statement
    assert HOSTILE in values
    assert statement.count("%s") == len(values)
    expression = filter_to_expression(where)
    assert "DROP" not in expression.text


def test_expressions_are_made_of_hashes_numbers_and_names_of_fields():
    where = {"a": 'b" or "', "price": {"<": -1.5, ">=": 2}, "label": ["x", None], "id": {">": 2.5}, "c": None}
    text = filter_to_expression(where).text
    assert re.fullmatch(r'[a-z_]*(?:[a-z_ ()=!<>.,\-0-9\[\]]|"[nt]?[0-9a-f]*")*', text), text


def test_what_can_never_hold_matches_nothing():
    assert filter_to_expression({"label": []}).text == f"({NOTHING})"
    assert filter_to_expression({"x": float("nan")}).text == f"({NOTHING})"
    assert filter_to_expression({"label": {"<": 3}}).text == f"({NOTHING})"
    assert filter_to_sql({"x": {"<": float("nan")}})[0] == "WHERE (FALSE)"
    assert filter_to_sql({"id": "seven"})[0] == "WHERE (FALSE)"
    assert one_of("key", []) == NOTHING
    assert filter_to_expression(None).text == EVERYTHING


def test_texts_are_compared_byte_by_byte():
    assert fits({"x": "é"}, [("x", ">", "z")])
    assert not fits({"x": "a"}, [("x", ">", "a")])
    assert fits({"x": "a"}, [("x", ">=", "a"), ("x", "<=", "a"), ("x", "<", "b")])
    assert not fits({}, [("x", "<", "b")])
