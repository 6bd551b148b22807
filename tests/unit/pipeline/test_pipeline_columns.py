"""Columns of messages as Arrow arrays."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgpack
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.message import Blobs
from escapement.pipeline import arrow
from escapement.pipeline.maps import decode_maps
from escapement.properties import pack_again, read_properties

PLAIN = st.dictionaries(st.text(max_size=300), st.text(max_size=300), max_size=20)
# Some of these are not UTF-8.
RAW = st.binary(max_size=4).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
STRANGE = st.dictionaries(RAW, RAW | st.none() | st.integers(0, 9), max_size=3)
VALUES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.lists(st.text(), max_size=2)
MIXED = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | VALUES, max_size=4)


@given(st.lists(st.none() | PLAIN | MIXED | st.binary(max_size=6), max_size=12))
def test_properties_of_any_type_become_maps_of_strings(given: list[Any]) -> None:
    """B7, N2: strings and None stay, other values become JSON, and a missing map is empty."""
    packed = [
        b"" if one is None else one if isinstance(one, bytes) else msgpack.packb(one)
        for one in given
    ]
    found = arrow.maps(decode_maps(Blobs.of(packed))).to_pylist()
    for one, pairs in zip(given, found, strict=True):
        if isinstance(one, dict):
            assert dict(pairs) == {
                name: value
                if value is None or isinstance(value, str)
                else json.dumps(value, ensure_ascii=False)
                for name, value in one.items()
            }
        elif one is None:
            assert pairs == []


@given(st.lists(PLAIN | STRANGE, max_size=12))
def test_properties_that_are_not_utf8_are_read_as_consumers_read_them(
    given: list[dict[str, Any]],
) -> None:
    """B7, N8: also together with other values. Archive files store the same strings."""
    packed = [pack_again(one) if one else b"" for one in given]
    found = arrow.maps(decode_maps(Blobs.of(packed)))
    found.validate(full=True)
    for one, pairs in zip(packed, found.to_pylist(), strict=True):
        assert dict(pairs) == {
            name: json.dumps(value) if isinstance(value, int) else value
            for name, value in read_properties(one).items()
        }


@given(st.lists(st.binary(max_size=20), max_size=40))
def test_byte_strings_become_a_column_unchanged(given: list[bytes]) -> None:
    """B7."""
    assert arrow.binaries(Blobs.of(given)).to_pylist() == given
    assert arrow.binaries(Blobs.of(given), empty_is_null=True).to_pylist() == [
        one or None for one in given
    ]


def test_numbers_become_columns_with_nulls() -> None:
    """B7."""
    values = np.array([3, -1, 7, 2**40])
    assert arrow.integers(values[:3], values[:3] >= 0).to_pylist() == [3, None, 7]
    assert arrow.longs(values).to_pylist() == values.tolist()
    assert arrow.instants(values).to_pylist() == [
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms) for ms in values.tolist()
    ]
