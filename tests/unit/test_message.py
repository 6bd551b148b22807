"""Message batches as columns, and their encoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import RemoteProtocolError
from escapement.field import Field
from escapement.message import Blobs, MessageBatch, Times, gather

values = st.lists(st.binary(max_size=40), max_size=60)


@given(values, st.booleans(), st.booleans(), st.booleans())
def test_a_body_decodes_to_the_columns_it_was_made_of(
    payloads: list[bytes], keys: bool, properties: bool, priorities: bool
) -> None:
    """N2: the log stores the batch as the producer built it."""
    count = len(payloads)
    batch = MessageBatch(
        Blobs.of(payloads),
        Blobs.of([b"k%d" % i for i in range(count)]) if keys else None,
        Blobs.empty(count) if properties else None,
        np.arange(count, dtype=np.uint8) if priorities else None,
    )
    back = MessageBatch.decode(batch.encode())
    assert back.payloads.to_list() == payloads
    assert (back.keys is not None) == keys
    assert (back.properties is not None) == properties
    if priorities:
        assert back.priorities is not None
        assert back.priorities.tolist() == list(range(count))
    assert back.encode() == batch.encode()


@given(values.filter(bool), st.data())
def test_a_body_cut_or_extended_anywhere_is_refused(
    payloads: list[bytes], data: st.DataObject
) -> None:
    body = MessageBatch(Blobs.of(payloads), Blobs.of(payloads)).encode()
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(RemoteProtocolError):
        MessageBatch.decode(body[:cut])
    with pytest.raises(RemoteProtocolError):
        MessageBatch.decode(body + b"x")


@given(st.binary(max_size=200))
def test_garbage_raises_only_remote_protocol_error(body: bytes) -> None:
    try:
        MessageBatch.decode(body)
    except RemoteProtocolError:
        return
    assert body[0] == 1


@given(values.filter(bool), st.data())
def test_gather_equals_taking_rows_one_by_one(payloads: list[bytes], data: st.DataObject) -> None:
    column = Blobs.of(payloads)
    rows = data.draw(st.lists(st.integers(0, len(payloads) - 1), max_size=100))
    taken = gather(column.data, column.starts(), column.lengths, np.array(rows, np.int64))
    assert taken.to_list() == [payloads[r] for r in rows]


@pytest.mark.parametrize("widths", [(0, 0), (1, 1), (100, 100), (0, 9), (50, 500), (0, 5000)])
@pytest.mark.parametrize("count", [2, 100, 3000])
def test_gather_equals_taking_rows_at_any_width_and_number(
    widths: tuple[int, int], count: int
) -> None:
    rng = np.random.default_rng(count)
    values = [rng.bytes(width) for width in rng.integers(widths[0], widths[1] + 1, 1000)]
    rows = rng.integers(0, len(values), count)
    assert Blobs.of(values).take(rows).to_list() == [values[r] for r in rows]


@given(values, st.data())
def test_a_part_of_a_batch_contains_its_rows(payloads: list[bytes], data: st.DataObject) -> None:
    column = Blobs.of(payloads)
    batch = MessageBatch(column, column, None, np.arange(len(payloads), dtype=np.uint8))
    low = data.draw(st.integers(0, len(payloads)))
    high = data.draw(st.integers(low, len(payloads)))
    part = batch.part(low, high)
    assert MessageBatch.decode(part.encode()).payloads.to_list() == payloads[low:high]
    assert part.encode() == batch.take(np.arange(low, high)).encode()


@given(st.lists(values, min_size=1, max_size=5), st.booleans())
def test_parts_of_a_batch_contain_its_rows_in_order(parts: list[list[bytes]], all_: bool) -> None:
    column = Blobs.of([payload for part in parts for payload in part])
    levels = np.arange(len(column), dtype=np.uint8)
    more = (column, None, levels, column) if all_ else ()
    found = MessageBatch(column, *more).parts([len(part) for part in parts])
    for columns in ("payloads", "keys", "groups") if all_ else ("payloads",):
        assert [getattr(part, columns).to_list() for part in found] == parts
    if all_:
        assert np.concatenate([part.priorities for part in found]).tolist() == levels.tolist()
    assert all(part.properties is None for part in found)


def test_due_time_is_never_before_acceptance() -> None:
    """P1: the broker that owns the topic resolves relative and absolute times once."""
    times = Times(
        delay_ms=np.array([-1, 500, -1, 0], np.int64), at_ms=np.array([-1, -1, 5, 2000], np.int64)
    )
    assert times.resolve(1000, 4).tolist() == [1000, 1500, 1000, 2000]
    assert times.given
    assert not Times(np.array([-1], np.int64)).given


@given(st.lists(values, min_size=1, max_size=5))
def test_every_part_of_a_batch_of_rows_knows_its_fields(parts: list[list[bytes]]) -> None:
    """V11: by identity, so that a session need not compare them."""
    fields = (Field("id", "bigint"), Field("message", "json"))
    batch = MessageBatch(Blobs.of([row for part in parts for row in part]), fields=fields)
    heights = [len(part) for part in parts]
    found = [batch.take(np.arange(len(batch))), batch.part(0, 0), *batch.parts(heights)]
    assert all(one.fields is fields for one in found)
    assert MessageBatch.concat(found).fields is fields
    assert MessageBatch.concat([]).fields is None


def test_batches_of_different_fields_are_not_joined() -> None:
    rows = MessageBatch(Blobs.empty(1), fields=(Field("id", "bigint"),))
    for other in (MessageBatch(Blobs.empty(1)), MessageBatch(Blobs.empty(1), fields=())):
        with pytest.raises(AssertionError, match="different fields"):
            MessageBatch.concat([rows, other])
