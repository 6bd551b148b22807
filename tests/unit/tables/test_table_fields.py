"""Values of fields: decoded from the text that MySQL writes, and from rows as payloads."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import RemoteProtocolError
from escapement.tables.columns import Column
from escapement.tables.fields import (
    _DECODERS,
    Field,
    column_expression,
    decode,
    fields_of,
    read_row,
)

TYPES = sorted(_DECODERS)


def column(name: str, data_type: str, column_type: str = "") -> Column:
    return Column(name, data_type, column_type or data_type, is_nullable=True, is_generated=False)


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        ("bigint", "-9223372036854775808", -(2**63)),
        ("bigint unsigned", "18446744073709551615", 2**64 - 1),
        ("int unsigned", "0000000042", 42),
        ("year", "0000", 0),
        ("bit", "5", 5),
        ("decimal", "-1.50", Decimal("-1.50")),
        ("float", "0.10000000149011612", 0.1),
        ("float", "16777216", 16777216.0),
        ("double", "1.7976931348623157e308", 1.7976931348623157e308),
        ("datetime", "2024-02-29 23:59:59", datetime(2024, 2, 29, 23, 59, 59)),
        ("timestamp", "2024-02-29 23:59:59.5", datetime(2024, 2, 29, 23, 59, 59, 500_000)),
        ("datetime", "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        ("date", "1000-01-01", date(1000, 1, 1)),
        ("date", "2024-00-00", "2024-00-00"),
        ("time", "-838:59:59", -timedelta(hours=838, minutes=59, seconds=59)),
        ("time", "00:00:00.05", timedelta(microseconds=50_000)),
        ("json", '{"a": [1, null, true]}', {"a": [1, None, True]}),
        ("json", "1.", "1."),
        ("set", "a,b", "a,b"),
        ("of_tomorrow", "x", "x"),
    ],
)
def test_text_of_the_database_becomes_a_typed_value(type: str, text: str, value: Any) -> None:
    """V11: columns of any type reach the consumer as typed values."""
    found = decode(type, text.encode())
    assert found == value
    assert found.__class__ is value.__class__


def test_bytes_stay_bytes_unless_they_are_text() -> None:
    assert decode("varbinary", b"text") == b"text"
    assert decode("point", b"text") == b"text"
    assert decode("of_tomorrow", b"\xff") == b"\xff"
    assert decode("varchar", b"\xff") == b"\xff"


@given(st.sampled_from([*TYPES, "varchar", "of_tomorrow"]))
def test_null_of_every_type_is_none(type: str) -> None:
    assert decode(type, None) is None


@given(st.datetimes())
def test_datetimes_arrive_to_the_microsecond(value: datetime) -> None:
    text = value.isoformat(" ").encode()
    assert decode("datetime", text) == value
    assert decode("date", text[:10]) == value.date()


@given(st.timedeltas(-timedelta(hours=838), timedelta(hours=838)), st.integers(0, 6))
def test_times_arrive_with_their_sign_and_fraction(value: timedelta, digits: int) -> None:
    step = timedelta(microseconds=10 ** (6 - digits))
    value -= value % step
    whole, fraction = divmod(abs(value), timedelta(seconds=1))
    text = f"{'-' * (value < timedelta(0))}{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
    if digits:
        text += "." + f"{fraction.microseconds:06}"[:digits]
    assert decode("time", text.encode()) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_is_the_shortest_number_for_its_32_bits(value: float) -> None:
    found = decode("float", repr(value).encode())
    assert np.float32(found) == np.float32(value)
    assert len(repr(found)) <= len(repr(value))


@given(st.decimals(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False))
def test_other_numbers_arrive_exactly(exact: Decimal, value: float) -> None:
    assert str(decode("decimal", str(exact).encode())) == str(exact)
    assert decode("double", repr(value).encode()) == value


@given(st.sampled_from(TYPES), st.binary(max_size=40))
def test_a_value_that_is_not_of_its_type_names_its_field(type: str, value: bytes) -> None:
    fields = [Field("a", type)]
    try:
        decode(type, value)
    except (ValueError, ArithmeticError):
        with pytest.raises(RemoteProtocolError, match=f"field a of a row .* not of type {type}"):
            read_row(fields, msgpack.packb([value]))
    else:
        assert list(read_row(fields, msgpack.packb([value]))) == ["a"]


@given(st.binary(max_size=60))
def test_garbage_raises_only_remote_protocol_error(payload: bytes) -> None:
    try:
        read_row([Field("a", "int"), Field("b", "text")], payload)
    except RemoteProtocolError:
        return
    assert msgpack.unpackb(payload) is not None


def test_deep_json_raises_remote_protocol_error() -> None:
    with pytest.raises(RemoteProtocolError, match="not of type json"):
        read_row([Field("a", "json")], msgpack.packb([b"[" * 100_000]))


@given(st.lists(st.none() | st.text(), max_size=20))
def test_a_row_has_its_values_by_name_in_order(values: list[str | None]) -> None:
    fields = [Field(f"c{i}", "varchar") for i in range(len(values))]
    payload = msgpack.packb([None if value is None else value.encode() for value in values])
    row = read_row(fields, payload)
    assert list(row.items()) == [(f"c{i}", value) for i, value in enumerate(values)]


@pytest.mark.parametrize("values", [[], [b"1", b"2"], {"a": b"1"}, None, [1], ["1"]], ids=repr)
def test_a_row_that_does_not_fit_its_fields_is_refused(values: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="row"):
        read_row([Field("a", "int")], msgpack.packb(values))


def test_only_unsigned_integers_say_so() -> None:
    columns = [
        column("a", "bigint", "bigint(20) unsigned"),
        column("b", "int", "int(10) unsigned zerofill"),
        column("c", "decimal", "decimal(9,2) unsigned"),
        column("d", "enum", "enum(' unsigned')"),
        column("e", "varchar", "varchar(10)"),
    ]
    assert [field.type for field in fields_of(columns)] == [
        "bigint unsigned",
        "int unsigned",
        "decimal",
        "enum",
        "varchar",
    ]


def test_names_of_columns_are_quoted_in_expressions() -> None:
    for kind in ("int", "varbinary", "point", "bit", "float"):
        assert "`a``b`" in column_expression(column("a`b", kind))


def test_json_numbers_keep_their_kind() -> None:
    found = decode("json", json.dumps([1, 1.5, 2**70]).encode())
    assert found == [1, 1.5, 2**70]
    assert math.isinf(decode("double", b"inf"))
