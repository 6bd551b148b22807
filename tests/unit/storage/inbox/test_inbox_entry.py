"""The encoding of inbox entries, and the detection of damage."""

from __future__ import annotations

import contextlib
import random
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from escapement import dedup
from escapement.errors import InboxEntryDamaged
from escapement.message import NO_TIMES, Blobs, MessageBatch
from escapement.storage.inbox.entry import (
    MAX_ENTRY_BYTES,
    InboxEntry,
    compressed,
    decode_inbox_entry,
    encode_inbox_entry,
)
from support.faults.damaged_bytes import damaged
from support.storage.inbox_entries import inbox_entry

TIMES = some.integers(-1, 1 << 45)


@given(some.data(), some.lists(some.binary(max_size=20), min_size=1, max_size=9))
def test_inbox_entry_decodes_to_the_same_entry(
    data: some.DataObject, payloads: list[bytes]
) -> None:
    column = some.none() | some.lists(TIMES, min_size=len(payloads), max_size=len(payloads))
    delay_ms, at_ms = data.draw(column), data.draw(column)
    written = inbox_entry("t/n/x", "s", *payloads, delay_ms=delay_ms, at_ms=at_ms)
    keys = data.draw(
        some.none() | some.just([f"{n}" if n % 2 else None for n in range(len(payloads))])
    )
    digests = None if keys is None else dedup.digests(keys)
    written = replace(written, digests=digests)
    encoded = encode_inbox_entry(written)
    assert len(encoded) == written.size_bytes
    batch, times, body, got_digests = decode_inbox_entry(encoded)
    assert bytes(body) == written.body
    assert batch.payloads.to_list() == payloads
    for got, given_ms in ((times.delay_ms, delay_ms), (times.at_ms, at_ms)):
        assert (None if got is None else got.tolist()) == given_ms
    assert (None if digests is None else digests.tolist()) == (
        None if got_digests is None else got_digests.tolist()
    )
    assert times.given == any(ms >= 0 for ms in [*(delay_ms or []), *(at_ms or [])])


@given(some.data())
def test_every_altered_byte_is_noticed(data: some.DataObject) -> None:
    encoded = encode_inbox_entry(inbox_entry("t/n/x", "s", b"one", b"two", delay_ms=[5, -1]))
    with pytest.raises(InboxEntryDamaged):
        decode_inbox_entry(data.draw(damaged(encoded)))


@given(some.binary(max_size=200))
def test_random_bytes_raise_only_inbox_entry_damaged(encoded: bytes) -> None:
    with contextlib.suppress(InboxEntryDamaged):
        decode_inbox_entry(encoded)


def test_message_count_that_differs_from_the_body_is_noticed() -> None:
    honest = inbox_entry("t/n/x", "s", b"one", b"two")
    for count in (1, 3):
        lying = InboxEntry("t/n/x", "s", honest.body, count)
        with pytest.raises(InboxEntryDamaged, match="in its body"):
            decode_inbox_entry(encode_inbox_entry(lying))


def test_inbox_entry_larger_than_a_packet_is_refused() -> None:
    with pytest.raises(InboxEntryDamaged, match="bytes"):
        decode_inbox_entry(np.zeros(MAX_ENTRY_BYTES + 1, np.uint8).data)


def test_body_is_compressed_only_if_it_shrinks_enough() -> None:
    repetitive = MessageBatch(
        Blobs.of([b'{"customer": %d, "zone": "UTC"}' % n for n in range(500)])
    )
    body = repetitive.encode()
    small = compressed(body)
    assert small is not None
    assert len(small) < len(body) // 3
    inbox_entry = InboxEntry("t/n/x", "s", small, 500, NO_TIMES, len(body))
    batch, _, inflated, _ = decode_inbox_entry(encode_inbox_entry(inbox_entry))
    assert bytes(inflated) == body
    assert batch.payloads.to_list() == repetitive.payloads.to_list()
    assert inbox_entry.size_bytes > len(body) > len(encode_inbox_entry(inbox_entry))
    assert compressed(random.Random(1).randbytes(100_000)) is None


def test_incomplete_or_oversized_compressed_body_is_damaged() -> None:
    body = MessageBatch(Blobs.of([bytes(MAX_ENTRY_BYTES)])).encode()
    for wrong in (
        zlib.compress(body),
        zlib.compress(body)[:-1],
        b"no zlib",
        zlib.compress(b"") + b"x",
    ):
        data = encode_inbox_entry(InboxEntry("t/n/x", "s", wrong, 1, NO_TIMES, 100))
        with pytest.raises(InboxEntryDamaged, match="compress"):
            decode_inbox_entry(data)
