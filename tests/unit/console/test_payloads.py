"""Payloads as texts."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from escapement.console.text.payloads import shown


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_json_is_indented_and_the_same(value: object) -> None:
    found = shown(json.dumps(value).encode())
    assert found.kind == "JSON"
    assert json.loads(found.text) == value


def test_text_stays_as_it_is() -> None:
    assert shown("Grüße,\nKasse 3".encode()) == ("text", "Grüße,\nKasse 3")


def test_bytes_are_a_hex_dump() -> None:
    found = shown(bytes(range(20)) + b"abc")
    assert found.kind == "bytes"
    first, second = found.text.splitlines()
    assert first.startswith("000000  00 01 02")
    assert second.startswith("000010  10 11 12 13 61 62 63")
    assert second.endswith("....abc")


def test_text_that_is_cut_inside_a_character_is_text() -> None:
    payload = "x €".encode()
    for cut in (1, 2):
        assert shown(payload[:-cut], len(payload)) == ("text", "x ")
    assert shown(payload[:-1]).kind == "bytes"  # the whole payload: it is not UTF-8


def test_deep_json_and_halves_of_characters_are_no_failure() -> None:
    assert shown(b"[" * 100_000).kind == "text"
    assert shown(b'"\\ud800"') == ("JSON", '"\\ud800"')


@given(st.binary(max_size=200))
def test_any_payload_can_be_shown(payload: bytes) -> None:
    assert shown(payload, len(payload)).kind in ("JSON", "text", "bytes")
