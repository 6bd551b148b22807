"""The encoding of log rows, and the detection of damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.errors import LogDamaged
from escapement.message import Blobs, Int64s, MessageBatch
from escapement.storage.encoding.seal import SEAL_BYTES, sealed
from escapement.storage.log.log_row import Restating, decode_row, encode_row
from support.faults.damaged_bytes import damaged

payloads = st.lists(st.binary(max_size=12), min_size=1, max_size=5)
batches = st.lists(payloads, min_size=1, max_size=4)
TIMES = st.one_of(st.integers(0, 100), st.integers(0, 2**40), st.integers(0, 2**62))


def column(values: list[int]) -> Int64s:
    return np.array(values, np.int64)


def bodies_of(contents: list[list[bytes]]) -> list[bytes]:
    return [MessageBatch(Blobs.of(each)).encode() for each in contents]


@settings(max_examples=80)
@given(batches, st.integers(0, 2**62), st.data())
def test_log_row_decodes_to_the_same_row(
    contents: list[list[bytes]], accepted_at_ms: int, data: st.DataObject
) -> None:
    """The due column has every width, and a row several bodies."""
    count = sum(map(len, contents))
    due = np.array(data.draw(st.lists(TIMES, min_size=count, max_size=count)), np.int64)
    row = decode_row(encode_row(accepted_at_ms, due, bodies_of(contents)))
    assert row.accepted_at_ms == accepted_at_ms
    assert row.due_ms.tolist() == due.tolist()
    assert row.batch().payloads.to_list() == [p for each in contents for p in each]


def test_equal_due_times_take_no_space() -> None:
    bodies = bodies_of([[b"x"] * 1000])
    due = np.full(1000, 5, np.int64)
    assert len(encode_row(5, due, bodies)) < len(bodies[0]) + 64


@settings(max_examples=80)
@given(batches, st.data())
def test_any_changed_or_missing_byte_is_noticed(
    contents: list[list[bytes]], data: st.DataObject
) -> None:
    due = np.arange(sum(map(len, contents)), dtype=np.int64)
    row = encode_row(1, due, bodies_of(contents))
    with pytest.raises(LogDamaged):
        decode_row(data.draw(damaged(row)))


@settings(max_examples=80)
@given(st.binary(max_size=80))
def test_garbage_raises_only_log_damaged(garbage: bytes) -> None:
    with pytest.raises(LogDamaged):
        decode_row(garbage)


def test_invalid_body_is_damage() -> None:
    row = decode_row(encode_row(1, np.zeros(1, np.int64), [b"nonsense"]))
    with pytest.raises(LogDamaged, match="does not decode"):
        row.batch()
    row = decode_row(encode_row(1, np.zeros(2, np.int64), bodies_of([[b"one"]])))
    with pytest.raises(LogDamaged, match="2 due times for 1 messages"):
        row.batch()


@given(batches, st.data())
def test_restatement_contains_offsets_and_earlier_times(
    contents: list[list[bytes]], data: st.DataObject
) -> None:
    """B1: a changed byte of it is noticed too."""
    count = sum(map(len, contents))
    offsets = sorted(
        data.draw(st.sets(st.integers(0, 2**50), min_size=count, max_size=count), "offsets")
    )
    due = np.arange(count)
    restating = Restating(np.array(offsets, np.int64), due * 3, due * 5, due * 7)
    row = encode_row(1, due, bodies_of(contents), restating)
    content = decode_row(row)
    assert content.restating is not None
    for found, was in zip(content.restating, restating, strict=True):
        assert found.tolist() == was.tolist()
    assert content.due_ms.tolist() == due.tolist()
    assert content.batch().payloads.to_list() == [p for each in contents for p in each]
    at = data.draw(st.integers(0, len(row) - 1))
    with pytest.raises(LogDamaged):
        decode_row(row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :])


def test_row_with_an_impossible_number_of_messages_counts_as_damage() -> None:
    """It is noticed before memory is allocated for their due times."""
    row = encode_row(1, column([5]), bodies_of([[b"a"]]))
    head = row[:4] + b"\xff" * 4 + row[8:12]
    with pytest.raises(LogDamaged, match="ends inside its columns"):
        decode_row(sealed(head, [row[12 + SEAL_BYTES :]]))
