"""Publish requests: the messages of one Publish command, until they are settled.

While single messages are added, the request is a ``Draft`` with lists of Python values.
Closing it turns the lists into columns. The sender of a message keeps the publish request and
the message's row in it, and waits for the whole request.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from escapement.client.connection.promise import Promise
from escapement.dedup import NO_DIGEST, Digests, column
from escapement.errors import EscapementError
from escapement.message import (
    DEFAULT_PRIORITY,
    NO_TIME,
    NO_TIMES,
    Blobs,
    Bools,
    Int64s,
    MessageBatch,
    Times,
    UInt8s,
)


class PublishRequest(Promise):
    """A publish request. It settles when its messages are durable, or it has failed.

    A durable request has ``offsets``, -1 where unknown, and ``duplicates``, True where the
    message was stored before, for each message that was added.
    """

    __slots__ = (
        "body",
        "count",
        "deadline_s",
        "dedup",
        "duplicates",
        "error",
        "known",
        "offsets",
        "refusal",
        "sent",
        "sequence",
        "size_bytes",
        "times",
    )

    offsets: Int64s
    duplicates: Bools

    def __init__(self, sequence: int, deadline_s: float) -> None:
        super().__init__()
        self.sequence = sequence
        self.deadline_s = deadline_s
        self.count = 0
        self.size_bytes = 0
        self.known = 0  # the number of leading rows that were trimmed as stored already
        self.times = NO_TIMES
        self.body = b""
        self.dedup: Digests | None = None
        self.sent = False
        self.refusal: EscapementError | None = None  # the last refusal; None if it may be stored
        self.error: EscapementError | None = None

    @property
    def last_sequence(self) -> int:
        """The number of the last message."""
        return self.sequence + self.count - 1

    def fill(
        self, batch: MessageBatch, times: Times, dedup: Digests | None, size_bytes: int
    ) -> None:
        """Set the messages."""
        self.count = len(batch)
        self.size_bytes = size_bytes
        self.times = times
        self.dedup = dedup
        self.body = batch.encode()

    def trim(self, rows: int) -> None:
        """Remove the first ``rows`` messages, which are stored already."""
        assert 0 < rows < self.count
        rest = MessageBatch.decode(self.body).part(rows, self.count)
        times = self.times.take(slice(rows, None))
        dedup = None if self.dedup is None else self.dedup[rows:]
        self.fill(rest, times, dedup, self.size_bytes * len(rest) // self.count)
        self.sequence += rows
        self.known += rows

    def settle(
        self,
        base_offset: int = -1,
        duplicate: bool = False,
        offsets: Int64s | None = None,
        repeated: UInt8s | None = None,
    ) -> None:
        """Settle the request as durable.

        The offsets are the column ``offsets`` if it is given. Otherwise they are consecutive
        from ``base_offset`` on, or unknown if that is -1. ``repeated`` says which messages
        were stored before; without it, ``duplicate`` says so of all.
        """
        if offsets is None:
            end_offset = base_offset + self.count
            unknown = base_offset < 0
            offsets = np.full(self.count, -1) if unknown else np.arange(base_offset, end_offset)
        duplicates = np.full(self.count, duplicate) if repeated is None else repeated.astype(bool)
        if self.known:
            offsets = np.concatenate([np.full(self.known, -1), offsets])
            duplicates = np.concatenate([np.ones(self.known, bool), duplicates])
        self.offsets, self.duplicates = offsets, duplicates
        self.body = b""
        super().settle()

    def fail(self, error: EscapementError) -> None:
        """Settle the request as failed with ``error``."""
        self.error = error
        self.body = b""
        super().settle()


class NewMessage(NamedTuple):
    """A message to publish, in the form of the protocol."""

    payload: bytes
    key: bytes = b""
    properties: bytes = b""
    priority: int = DEFAULT_PRIORITY
    group: bytes = b""
    delay_ms: int = NO_TIME
    at_ms: int = NO_TIME
    dedup: bytes = NO_DIGEST


class Draft:
    """A publish request to which messages can be added."""

    __slots__ = ("_messages", "next_sequence", "request", "since_s", "size_bytes")

    def __init__(self, sequence: int, now_s: float, deadline_s: float) -> None:
        self.request = PublishRequest(sequence, deadline_s)
        self.next_sequence = sequence
        self.since_s = now_s
        self.size_bytes = 0
        self._messages: list[NewMessage] = []

    def add(self, message: NewMessage, size_bytes: int) -> int:
        """Add a message and return its row."""
        self._messages.append(message)
        self.next_sequence += 1
        self.size_bytes += size_bytes
        return len(self._messages) - 1

    def close(self) -> PublishRequest:
        """Return the publish request with its columns, without those that no message uses."""
        payloads, keys, properties, priorities, groups, delays, ats, dedup = zip(
            *self._messages, strict=True
        )
        batch = MessageBatch(
            Blobs.of(payloads),
            Blobs.of(keys) if any(keys) else None,
            Blobs.of(properties) if any(properties) else None,
            np.array(priorities, np.uint8) if _used(priorities, DEFAULT_PRIORITY) else None,
            Blobs.of(groups) if any(groups) else None,
        )
        times = Times(
            np.array(delays, np.int64) if _used(delays, NO_TIME) else None,
            np.array(ats, np.int64) if _used(ats, NO_TIME) else None,
        )
        digests = column(dedup) if _used(dedup, NO_DIGEST) else None
        self.request.fill(batch, times, digests, self.size_bytes)
        return self.request


def _used(values: tuple[object, ...], default: object) -> bool:
    return values.count(default) < len(values)
