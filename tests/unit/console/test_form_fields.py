"""Payloads and properties as fields of a form (B14)."""

from __future__ import annotations

import random

import pytest

from escapement.console.text.payload_fields import fields_of, payload_of
from escapement.console.text.property_fields import field_of, properties_of
from escapement.errors import InvalidRequest


def test_payload_comes_back_from_a_form() -> None:
    """A browser ends the lines of a text field with CR LF."""
    random_ = random.Random(3)
    pieces = [
        b"a",
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b"\x00",
        "ß€".encode(),
        b"\xff",
        b'{"a": 1}',
        b" ",
    ]
    for _ in range(2000):
        payload = b"".join(random_.choices(pieces, k=random_.randrange(6)))
        kind, text = fields_of(payload)
        assert payload_of(kind, text.replace("\n", "\r\n")) == payload


def test_kind_of_a_payload() -> None:
    assert fields_of(b'{"a":  1}') == ("json", '{"a":  1}')
    assert fields_of(b"pay me") == ("text", "pay me")
    assert fields_of(b"\x00\xff") == ("hex", "00 ff")
    assert fields_of(b"[" * 100_000)[0] == "text"
    assert fields_of(b"9" * 5000) == ("json", "9" * 5000)
    assert payload_of("json", "9" * 5000) == b"9" * 5000


def test_error_says_where_json_is_wrong() -> None:
    with pytest.raises(InvalidRequest, match="in line 2, column 1"):
        payload_of("json", '{"a": 1,\r\n}')


def test_properties_keep_their_types() -> None:
    properties = {"n": 3, "x": 1.5, "on": True, "none": None, "text": "3", "list": [1, {"a": "b"}]}
    text, left_out = field_of(properties)
    assert properties_of(text) == properties
    assert left_out == []
    assert field_of({"raw": b"\x00", "n": 1}) == ('{\n  "n": 1\n}', ["raw"])
    assert field_of({}) == ("", [])
    assert properties_of(" ") == {}
    with pytest.raises(InvalidRequest, match="not a JSON object"):
        properties_of("3")
