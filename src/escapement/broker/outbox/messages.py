"""Turns the rows of an outbox into inbox entries, and finds the rows that can never be delivered.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import msgpack
import numpy as np

from escapement.dedup import NO_DIGEST, column, digest
from escapement.durations import format as duration_text
from escapement.errors import InvalidRequest
from escapement.message import (
    DEFAULT_PRIORITY,
    MAX_PRIORITY,
    NO_TIME,
    NO_TIMES,
    Blobs,
    MessageBatch,
    Times,
)
from escapement.names import TopicName
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.outbox.record import RowId
from escapement.storage.outbox.row import OutboxRow
from escapement.storage.outbox.tables import MAX_KEY_CHARS, MAX_MESSAGE_BYTES


class NewMessage(NamedTuple):
    """A message for a topic, made from a row of an outbox."""

    topic: str
    payload: bytes
    key: bytes
    properties: bytes
    priority: int
    at_ms: int
    dedup: bytes


class Messages(NamedTuple):
    """The messages of some rows, and the rows that can never be delivered, each with a reason."""

    good: list[tuple[OutboxRow, NewMessage]]
    refused: list[tuple[RowId, str]]


def read_rows(rows: Sequence[OutboxRow], now_ms: int, max_delay_ms: int) -> Messages:
    """Return the messages of some rows.

    Args:
      max_delay_ms: rows that are due later than this from now are refused.
    """
    found = Messages([], [])
    for row in rows:
        try:
            found.good.append((row, _message(row, now_ms, max_delay_ms)))
        except InvalidRequest as error:
            found.refused.append((row.id, str(error)))
    return found


def inbox_entries(messages: Sequence[NewMessage], source_id: str) -> list[InboxEntry]:
    """Return one inbox entry for each topic, with its messages in order."""
    by_topic: dict[str, list[NewMessage]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message)
    return [_entry(topic, some, source_id) for topic, some in by_topic.items()]


def _message(row: OutboxRow, now_ms: int, max_delay_ms: int) -> NewMessage:
    """Return the message of a row.

    Raises:
      InvalidRequest: if the row can never be delivered.
    """
    topic = TopicName.parse(row.topic).full
    if row.payload is None:
        raise InvalidRequest(
            f"payload is NULL, or payload and headers have more than {MAX_MESSAGE_BYTES:,} bytes"
        )
    if row.due_ms is not None and row.due_ms > now_ms + max_delay_ms:
        raise InvalidRequest(
            f"due_at lies past the maximum delay of {duration_text(max_delay_ms)}; it is in UTC"
        )
    # A message that is due already has no time, so that a namespace without delays accepts it.
    at_ms = row.due_ms if row.due_ms is not None and row.due_ms > now_ms else NO_TIME
    if not 0 <= row.priority <= MAX_PRIORITY:
        raise InvalidRequest(f"priority must be from 0 to {MAX_PRIORITY}, not {row.priority}")
    if len(row.key) > MAX_KEY_CHARS:
        raise InvalidRequest(f"key has more than {MAX_KEY_CHARS} characters")
    if row.dedup_key == "":
        raise InvalidRequest("dedup_key is empty; write NULL for a message without one")
    properties, key = _properties(row.headers), row.key.encode()
    if len(row.payload) + len(properties) > MAX_MESSAGE_BYTES:
        raise InvalidRequest(f"payload and properties have more than {MAX_MESSAGE_BYTES:,} bytes")
    return NewMessage(
        topic,
        row.payload,
        key,
        properties,
        row.priority,
        at_ms,
        NO_DIGEST if row.dedup_key is None else digest(row.dedup_key),
    )


def _properties(headers: str | None) -> bytes:
    """Return headers, which are a JSON object, as the properties of a message.

    Raises:
      InvalidRequest: if the headers are anything else, or have a value that properties cannot have.
    """
    if headers is None:
        return b""
    try:
        read = json.loads(headers)
        if not isinstance(read, dict):
            raise InvalidRequest(f"headers must be a JSON object, not {headers[:60]}")
        packed: bytes = msgpack.packb(read) if read else b""
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"headers cannot be read: {error}") from None
    return packed


def _entry(topic: str, messages: Sequence[NewMessage], source_id: str) -> InboxEntry:
    _, payloads, keys, properties, priorities, ats_ms, dedup = zip(*messages, strict=True)
    batch = MessageBatch(
        Blobs.of(payloads),
        Blobs.of(keys) if any(keys) else None,
        Blobs.of(properties) if any(properties) else None,
        np.array(priorities, np.uint8) if set(priorities) != {DEFAULT_PRIORITY} else None,
    )
    times = NO_TIMES if set(ats_ms) == {NO_TIME} else Times(None, np.array(ats_ms, np.int64))
    digests = None if set(dedup) == {NO_DIGEST} else column(dedup)
    return InboxEntry(topic, source_id, batch.encode(), len(batch), times, digests=digests)
