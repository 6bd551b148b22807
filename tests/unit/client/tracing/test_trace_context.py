"""Trace contexts in columns of properties, compared with a loop over single messages."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from escapement.client.tracing.trace_context import MAX_CARRIERS, carriers, with_carrier
from escapement.message import Blobs, MessageBatch
from escapement.properties import read_properties

CARRIER = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
NO_LIMIT = 10**9


def other(number: int) -> dict[str, Any]:
    return {"traceparent": f"00-{number:032x}-{'c' * 16}-00", "n": number}


maps = st.one_of(
    st.just({}),
    st.dictionaries(
        st.text(max_size=5), st.integers(0, 2**40) | st.binary(max_size=40), max_size=4
    ),
    st.integers(10, 40).map(lambda count: {str(number): "x" for number in range(count)}),
    st.integers(0, 3).map(other),
)
# Other clients may send properties that are not a map.
packed = st.one_of(maps.map(lambda one: msgpack.packb(one) if one else b""), st.just(b"\xc0\x01"))


def batch_of(properties: list[bytes] | None, count: int) -> MessageBatch:
    column = None if properties is None else Blobs.of(properties)
    return MessageBatch(Blobs.of([b"payload"] * count), properties=column)


def expected(before: bytes) -> bytes:
    """Return the properties that a message should have, by decoding and encoding them."""
    if before == b"\xc0\x01" or "traceparent" in read_properties(before):
        return before
    after: bytes = msgpack.packb(read_properties(before) | CARRIER)
    return after


@given(st.lists(packed, min_size=1, max_size=12), st.integers(1, 30))
def test_each_message_gets_the_context_as_if_it_were_alone(
    properties: list[bytes], times: int
) -> None:
    """O5: also in columns of hundreds of messages, for which numpy copies the bytes."""
    properties = properties * times
    batch = with_carrier(batch_of(properties, len(properties)), CARRIER, NO_LIMIT)
    assert batch.properties is not None
    assert batch.properties.to_list() == [expected(before) for before in properties]
    assert MessageBatch.decode(batch.encode()).properties is not None


def test_messages_without_properties_get_the_context() -> None:
    """O5."""
    batch = with_carrier(batch_of(None, 1000), CARRIER, NO_LIMIT)
    assert batch.properties is not None
    assert batch.properties.to_list() == [msgpack.packb(CARRIER)] * 1000


def test_message_that_would_become_too_large_keeps_its_properties() -> None:
    """O5: tracing does not make a message fail."""
    small, large = b"", msgpack.packb({"text": "x" * 400})
    batch = with_carrier(batch_of([small, large], 2), CARRIER, 450)
    assert batch.properties is not None
    assert batch.properties.to_list() == [msgpack.packb(CARRIER), large]


@given(st.lists(packed, max_size=30))
def test_each_context_of_a_batch_is_found_once(properties: list[bytes]) -> None:
    """O5."""
    found = carriers(Blobs.of(properties))
    wanted = {
        one["traceparent"]: one
        for one in map(read_properties, reversed(properties))
        if "traceparent" in one
    }
    assert {one["traceparent"]: one for one in found} == wanted
    assert len(found) == len(wanted)


def test_only_the_first_contexts_of_a_batch_are_found() -> None:
    """O5: the number of links of a span is bounded."""
    found = carriers(Blobs.of([msgpack.packb(other(number)) for number in range(300)]))
    assert [one["n"] for one in found] == list(range(MAX_CARRIERS))
    assert carriers(None) == carriers(Blobs.empty(3)) == []
