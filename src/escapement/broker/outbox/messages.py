"""Turns the rows of an outbox into inbox entries, and finds the rows that can never take effect.

A row is a message, or a request to cancel or reschedule earlier messages of its topic. A request is
applied at once to the messages before it in the batch: cancelled ones are left out, and the others
get their new times. Then it has only to be carried out for messages of earlier batches. So the
requests of a batch become one inbox entry for each topic, and the messages another entry behind it.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgpack
import numpy as np

from escapement.dedup import NO_DIGEST, column, digest
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
from escapement.names import TopicName, read_message_id
from escapement.storage.catalog.delay_policy import DelayPolicy, DelaySetting
from escapement.storage.inbox.amend_request import AmendRequest, LaterRequests, amend_entry
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.outbox.record import RowId
from escapement.storage.outbox.row import OutboxRow
from escapement.storage.outbox.tables import (
    CANCEL,
    MAX_KEY_CHARS,
    MAX_MESSAGE_BYTES,
    RESCHEDULE,
)

# The longest id of a message: a topic, "@" and an offset.
_MAX_ID_BYTES: Final = 680

# Returns the delays that a topic allows, by its full name. There is always a maximum.
DelaysOf = Callable[[str], DelayPolicy]


class NewMessage(NamedTuple):
    """A message for a topic, made from a row of an outbox."""

    topic: str
    payload: bytes
    key: bytes
    properties: bytes
    priority: int
    at_ms: int
    dedup: bytes


class NewRequest(NamedTuple):
    """A request about earlier messages of a topic, made from a row of an outbox."""

    topic: str
    request: AmendRequest


Change = NewMessage | NewRequest


class Changes(NamedTuple):
    """The messages and requests of some rows, and the refused rows, each with a reason."""

    good: list[tuple[OutboxRow, Change]]
    refused: list[tuple[RowId, str]]


def read_rows(rows: Sequence[OutboxRow], now_ms: int, delays_of: DelaysOf) -> Changes:
    """Return the messages and requests of some rows.

    Args:
      delays_of: returns the delays that a topic allows. Rows that are due later than its maximum
        from now are refused. Its minimum does not apply, because rows may wait for the relay.
    """
    found = Changes([], [])
    for row in rows:
        read = _message if row.action is None else _request
        try:
            found.good.append((row, read(row, now_ms, delays_of)))
        except InvalidRequest as error:
            found.refused.append((row.id, str(error)))
    return found


def inbox_entries(changes: Sequence[Change], source_id: str) -> list[InboxEntry]:
    """Return the inbox entries of each topic: its requests, and then its messages in order."""
    requests: dict[str, list[AmendRequest]] = {}
    for change in changes:
        if isinstance(change, NewRequest):
            requests.setdefault(change.topic, []).append(change.request)
    messages: dict[str, list[NewMessage]] = {}
    for message in amended(changes) if requests else changes:
        if isinstance(message, NewMessage):
            messages.setdefault(message.topic, []).append(message)
    entries = [amend_entry(topic, f"{source_id}/amend", some) for topic, some in requests.items()]
    return entries + [_entry(topic, some, source_id) for topic, some in messages.items()]


def amended(changes: Sequence[Change]) -> list[NewMessage]:
    """Return the messages after all requests behind them, without the cancelled ones."""
    kept: list[NewMessage] = []
    later: dict[str, LaterRequests] = {}  # by topic
    for change in reversed(changes):
        behind = later.setdefault(change.topic, LaterRequests())
        if isinstance(change, NewRequest):
            behind.add([change.request])
            continue
        last = behind.last(change.key, change.dedup)
        if last is None:
            kept.append(change)
        elif not last.cancels:
            kept.append(change._replace(at_ms=last.at_ms))
    return kept[::-1]


def _message(row: OutboxRow, now_ms: int, delays_of: DelaysOf) -> NewMessage:
    """Return the message of a row.

    Raises:
      InvalidRequest: if the row can never be delivered.
    """
    topic = TopicName.parse(row.topic).full
    if row.payload is None:
        raise InvalidRequest(
            f"payload is NULL, or payload and headers have more than {MAX_MESSAGE_BYTES:,} bytes"
        )
    delays = delays_of(topic)
    at_ms = _at_ms(row, now_ms, delays.most)
    if row.due_ms is None and delays.default.ms:
        at_ms = _default_at_ms(delays, now_ms)
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


def _request(row: OutboxRow, now_ms: int, delays_of: DelaysOf) -> NewRequest:
    """Return the request of a row with an action.

    Raises:
      InvalidRequest: if the request can never be carried out.
    """
    topic = TopicName.parse(row.topic).full
    if row.action not in (CANCEL, RESCHEDULE):
        raise InvalidRequest(f"action must be {CANCEL!r} or {RESCHEDULE!r}, not {row.action!r}")
    id = (row.payload or b"")[:_MAX_ID_BYTES].decode("utf-8", "replace")
    if bool(row.key) + bool(row.dedup_key) + bool(id) != 1:
        raise InvalidRequest(
            "a request must name messages in one way: by `key`, by dedup_key, or by a message id "
            "in payload"
        )
    return NewRequest(
        topic,
        AmendRequest(
            row.key.encode(),
            digest(row.dedup_key) if row.dedup_key else b"",
            read_message_id(id, topic)[1] if id else -1,
            row.action == CANCEL,
            NO_TIME if row.action == CANCEL else _at_ms(row, now_ms, delays_of(topic).most),
        ),
    )


def _at_ms(row: OutboxRow, now_ms: int, most: DelaySetting) -> int:
    """Return the due time of a row; ``NO_TIME`` if it is due now.

    A row that is due already has no time, so that a namespace without delays accepts it.

    Raises:
      InvalidRequest: if the row is due past the maximum delay.
    """
    if row.due_ms is not None and row.due_ms > now_ms + most.ms:
        raise InvalidRequest(f"due_at lies past the maximum delay of {most.text}; it is in UTC")
    return row.due_ms if row.due_ms is not None and row.due_ms > now_ms else NO_TIME


def _default_at_ms(delays: DelayPolicy, now_ms: int) -> int:
    """Return the due time of a row without one.

    Raises:
      InvalidRequest: if the default delay is longer than the maximum.
    """
    if delays.default.ms > delays.most.ms:
        raise InvalidRequest(
            f"the default delay of {delays.default.text} is longer than the maximum of "
            f"{delays.most.text}"
        )
    return now_ms + delays.default.ms


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
