"""Conversion of DataFrame rows to messages, without Spark: shapes, columns, properties."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import DelayTooLong, InvalidRequest
from escapement.message import Blobs, MessageBatch
from escapement.pipeline.sink.packing import encode_maps
from escapement.pipeline.sink.rows import RowReader, Rows
from escapement.pipeline.sink.shape import NULL_IS_NOW, NULL_IS_REFUSED, Shape

START_MS = 1_700_000_000_000
MAX_DELAY_MS = 1 << 51
FIRST, LAST = -(1 << 63), (1 << 63) - 1
PROPERTIES = pa.map_(pa.string(), pa.string())
ONE = {"payload": pa.array([b"1"])}
LONG = st.sampled_from(["x" * n for n in (31, 32, 255, 256, 65_535, 65_536)])
TEXT = st.text(max_size=5) | LONG


@given(st.lists(st.dictionaries(TEXT, st.none() | TEXT, max_size=20), max_size=12))
def test_maps_are_packed_like_msgpack_does(maps: list[dict[str, str | None]]) -> None:
    """B7: byte for byte, except that an empty map takes no bytes."""
    names = [name.encode() for one in maps for name in one]
    values = [value for one in maps for value in one.values()]
    packed = encode_maps(
        np.array([len(one) for one in maps], np.int64),
        Blobs.of(names),
        Blobs.of([(value or "").encode() for value in values]),
        np.array([value is None for value in values], bool),
    )
    assert packed.to_list() == [msgpack.packb(one) if one else b"" for one in maps]


# -- shapes ------------------------------------------------------------------------


def shape_of(columns: dict[str, str]) -> Shape:
    return Shape.of(columns.items())


def test_columns_are_found_by_name_in_any_case_and_order() -> None:
    shape = shape_of({"Topic": "string", "PAYLOAD": "binary", "deliver_at": "timestamp"})
    assert shape.positions == {"topic": 0, "payload": 1, "deliver_at": 2}
    assert shape.when == "deliver_at"
    assert shape_of({"payload": "string"}).when is None
    shape_of({"payload": "string", "delay": "interval hour to minute"})
    shape_of({"payload": "string", "delay_ms": "int", "properties": "map<string,string>"})


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"deliver_at": "timestamp"}, "column 'payload' is missing"),
        ({"payload": "binary", "offset": "bigint"}, "'offset' is unknown"),
        ({"payload": "int"}, "must be binary or string"),
        ({"payload": "binary", "deliver_at": "timestamp_ntz"}, "must be TIMESTAMP_LTZ$"),
        ({"payload": "binary", "deliver_at": "string"}, "must be TIMESTAMP_LTZ$"),
        ({"payload": "binary", "delay": "interval year to month"}, "day to second"),
        ({"payload": "binary", "delay": "bigint"}, "day to second"),
        ({"payload": "binary", "priority": "double"}, "tinyint or"),
        ({"payload": "binary", "Payload": "binary"}, "two columns"),
        ({"payload": "binary", "delay_ms": "int", "deliver_at": "timestamp"}, "exclude each other"),
    ],
)
def test_invalid_columns_are_refused_by_name(columns: dict[str, str], why: str) -> None:
    """B7."""
    with pytest.raises(InvalidRequest, match=why):
        shape_of(columns)


# -- rows ----------------------------------------------------------------------------


def read(
    columns: dict[str, pa.Array], topic: str = "t/n/x", null_times: str = NULL_IS_NOW
) -> list[Rows]:
    kinds = {
        "payload": "binary",
        "deliver_at": "timestamp",
        "delay": "interval day to second",
        "delay_ms": "bigint",
        "topic": "string",
        "key": "string",
        "properties": "map<string,string>",
        "priority": "int",
    }
    shape = Shape.of((name, kinds[name]) for name in columns)
    reader = RowReader(shape, topic, START_MS, MAX_DELAY_MS, null_times, partition=3)
    return list(reader.read(pa.RecordBatch.from_pydict(columns)))


def plain(batch: MessageBatch, row: int) -> tuple[Any, ...]:
    packed = batch.properties and batch.properties.to_list()[row]
    return (
        batch.payloads.to_list()[row],
        batch.keys and batch.keys.to_list()[row],
        msgpack.unpackb(packed) if packed else None,
        None if batch.priorities is None else int(batch.priorities[row]),
    )


def test_rows_are_written_to_their_topics_complete_and_in_order() -> None:
    """B7: compared with a loop over the rows, also for slices of larger arrays."""
    rng = random.Random(5)
    rows = [
        {
            "payload": rng.randbytes(rng.randrange(9)),
            "topic": rng.choice(["a", "t/n/b", None, ""]),
            "key": rng.choice([None, "", "käse"]),
            "properties": rng.choice([None, [], [("a", "1")], [("b", None), ("c", "x" * 40)]]),
            "priority": rng.choice([None, 0, 255]),
            "deliver_at": rng.choice([None, -5, 1, 1_000, 1_001, START_MS * 1_000]),
        }
        for _ in range(300)
    ]
    kinds = {
        "payload": pa.binary(),
        "topic": pa.string(),
        "key": pa.string(),
        "properties": PROPERTIES,
        "priority": pa.int32(),
        "deliver_at": pa.timestamp("us", "UTC"),
    }
    columns = {
        name: pa.array([row[name] for row in rows], kind)[7:293] for name, kind in kinds.items()
    }
    due = {None: -1, -5: 0, 1: 1, 1_000: 1, 1_001: 2, START_MS * 1_000: START_MS}
    wanted: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows[7:293]:
        key, properties, priority = row["key"], row["properties"], row["priority"]
        wanted.setdefault(row["topic"] or "t/n/x", []).append(
            (
                row["payload"],
                (key or "").encode(),
                dict(properties) if properties else None,
                50 if priority is None else priority,
                due[row["deliver_at"]],
            )
        )
    found = {
        rows.topic: [
            (*plain(rows.batch, n), int(rows.at_ms[n]))  # type: ignore[index]
            for n in range(len(rows.batch))
        ]
        for rows in read(columns)
    }
    assert found == wanted


def test_delays_count_from_the_start_and_are_rounded_up() -> None:
    """B7."""
    payload = pa.array([b"1", b"2", b"3"], pa.binary())
    (rows,) = read(
        {"payload": payload, "delay": pa.array([1, None, 60_000_000], pa.duration("us"))}
    )
    assert rows.at_ms is not None
    assert rows.at_ms.tolist() == [START_MS + 1, -1, START_MS + 60_000]
    (rows,) = read({"payload": payload, "delay_ms": pa.array([7, None, 0], pa.int32())})
    assert rows.at_ms is not None
    assert rows.at_ms.tolist() == [START_MS + 7, -1, START_MS]
    for longest in (1 << 51, 1 << 50):
        (rows,) = read({"payload": payload, "delay_ms": pa.array([longest, 0, FIRST])})
        assert rows.at_ms is not None
        assert rows.at_ms.tolist() == [START_MS + longest, START_MS, 0]
    times = pa.array([FIRST, -1, 1], pa.timestamp("us", "UTC"))
    (rows,) = read({"payload": payload, "deliver_at": times})
    assert rows.at_ms is not None
    assert rows.at_ms.tolist() == [0, 0, 1]
    (rows,) = read({"payload": payload})
    assert rows.at_ms is None
    assert rows.batch.keys is rows.batch.properties is rows.batch.priorities is None


@pytest.mark.parametrize(
    "times",
    [
        {"delay_ms": pa.array([0, MAX_DELAY_MS + 1])},
        {"delay_ms": pa.array([0, LAST])},
        {"delay": pa.array([0, LAST], pa.duration("us"))},
        {"deliver_at": pa.array([None, LAST], pa.timestamp("us", "UTC"))},
    ],
)
def test_time_beyond_the_maximum_delay_is_refused(
    times: dict[str, pa.Array],
) -> None:
    """B7: no broker accepts it, so it would block the other messages of its inbox entry forever."""
    with pytest.raises(
        DelayTooLong, match=r"^1 row \(the first is row 2 of .* due later .* maxDelay"
    ):
        read({"payload": pa.array([b"1", b"2"]), **times})


@pytest.mark.parametrize(
    "times",
    [
        {"deliver_at": pa.array([1, None, 1, None], pa.timestamp("us", "UTC"))},
        {"delay": pa.array([1, None, 1, None], pa.duration("us"))},
        {"delay_ms": pa.array([1, None, 1, None])},
    ],
)
def test_null_time_is_refused_and_its_row_named_by_number_and_key(
    times: dict[str, pa.Array],
) -> None:
    """B7: Spark turns a time that it cannot parse into null, which would be due at once."""
    (name,) = times
    columns = {"payload": pa.array([b"secret"] * 4), **times}
    for key, said in (
        (b"c-42", ", with the key 'c-42'"),
        (b"\xff" * 2, ", with the key '\\xff\\xff'"),
        (b"k" * 500, f", with the key '{'k' * 100}'…"),
        (b"", ""),
        (None, ""),
    ):
        with pytest.raises(InvalidRequest) as refused:
            read({**columns, "key": pa.array([b"c-1", key, b"c-3", b"c-4"])}, null_times="fail")
        assert str(refused.value) == (
            f"2 rows (the first is row 2 of partition 3{said}) whose {name} is null: fill in the"
            " time, drop these rows, or deliver them at once with the option nullTimes=now"
        )
    with pytest.raises(InvalidRequest, match=r"the first is row 2 of partition 3\)"):
        read(columns, null_times="fail")


@pytest.mark.parametrize(
    ("columns", "topic", "why"),
    [
        ({"payload": pa.array([b"1", None, b"3", None])}, "x", "2 rows .* row 2 .*a payload"),
        ({**ONE, "topic": pa.array([None], pa.string())}, "", "1 row .* row 1 .*a topic"),
        ({**ONE, "topic": pa.array([""])}, "", "without a topic"),
        ({**ONE, "priority": pa.array([256])}, "x", "1 row .* a priority that is not 0 to 255"),
        ({**ONE, "priority": pa.array([-1])}, "x", "0 to 255"),
        (
            {**ONE, "properties": pa.array([[(f"{n}", "") for n in range(1 << 16)]], PROPERTIES)},
            "x",
            "1 row .* more than 65,535 properties",
        ),
    ],
)
def test_invalid_row_is_refused(columns: dict[str, pa.Array], topic: str, why: str) -> None:
    """B7: the error names the row, so that it can be found among thousands."""
    with pytest.raises(InvalidRequest, match=why):
        read(columns, topic)


def test_row_is_named_by_its_number_in_the_partition() -> None:
    """B7: the partition has several record batches."""
    shape = shape_of({"payload": "binary"})
    reader = RowReader(shape, "x", START_MS, MAX_DELAY_MS, NULL_IS_REFUSED, partition=3)
    for payloads in ([b"1", b"2"], [b"3", b"4", b"5"]):
        list(reader.read(pa.RecordBatch.from_pydict({"payload": pa.array(payloads)})))
    last = pa.RecordBatch.from_pydict({"payload": pa.array([b"6", None])})
    with pytest.raises(InvalidRequest, match="row 7 of partition 3"):
        list(reader.read(last))


def test_topic_that_is_not_utf8_is_escaped_and_keeps_its_row() -> None:
    """B7: strings of Spark may be any bytes. The name is refused later."""
    topics = pa.array([b"x", b"\xff", b"x", b"\xff"], pa.binary()).view(pa.string())
    found = read({"payload": pa.array([b"1"] * 4), "topic": topics})
    assert [(rows.topic, rows.first()) for rows in found] == [
        ("x", "row 1 of partition 3"),
        ("\\xff", "row 2 of partition 3"),
    ]


def test_no_rows_become_no_messages() -> None:
    assert read({"payload": pa.array([], pa.binary())}) == []
