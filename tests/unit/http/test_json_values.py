"""Bytes travel in JSON as base64, in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import InvalidRequest
from escapement.http.json_values import decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), PLAIN))
def test_values_survive_a_round_trip(values: dict[str, Any]) -> None:
    """O4: arguments and results keep their bytes."""
    if values.keys() != {"base64"}:
        assert decode(encode({"in": values}))["in"] == values or "base64" in encode(values).decode()


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b'{"a": {"base64": "?"}}', b"[" * 100_000])
def test_wrong_body_is_an_invalid_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode(body)


@given(st.binary())
def test_any_body_is_an_object_or_an_invalid_request(body: bytes) -> None:
    try:
        found = decode(body)
    except InvalidRequest:
        return
    assert isinstance(found, dict)


def test_numbers_that_json_does_not_have_become_text() -> None:
    """O4: a property of a message cannot make an answer unreadable."""
    found = json.loads(
        encode({"a": [float("nan"), 1.5], "b": {"c": float("-inf")}, "d": b"x"}),
        parse_constant=pytest.fail,
    )
    assert found == {"a": ["nan", 1.5], "b": {"c": "-inf"}, "d": {"base64": "eA=="}}
