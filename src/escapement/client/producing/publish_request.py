"""Publish requests: the messages of one Publish command, until they are settled.

A publish request *settles* when its messages are durable, or when it has failed. While single
messages are added to it, it is open: a ``Draft`` has its messages as Python objects. Closing the
draft turns them into columns. The task that sends a message keeps the publish request and the
message's row in it, and waits until the request settles.

The messages of a producer are numbered; a message's number is its *sequence*.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from escapement.client.connection.promise import Promise
from escapement.client.producing.replace import Replace, ReplaceColumns
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
from escapement.replacement import FIRST
from escapement.spread import places_ms, seeds, spread

# The size of a message besides its payload, key, properties and group: their lengths, the times,
# the digest of the dedup key, and entries of Python lists.
ROW_BYTES: Final = 48


class PublishRequest(Promise):
    """A batch of messages to publish, whose promise settles when it is durable or has failed.

    ``error`` is the reason if it has failed. Otherwise ``offsets`` has the offset of each message
    (-1 if unknown), and ``duplicates`` is True for each message that was stored before. If
    messages had replace keys, ``kept`` is True for each one that was dropped because a pending
    message was kept, whose offset is then in ``offsets``. ``replaced`` has the offset of the
    message that each one replaced, or -1. Both are None if nothing is known of this.
    """

    __slots__ = (
        "body",
        "count",
        "deadline_s",
        "dedup",
        "duplicates",
        "error",
        "kept",
        "known",
        "offsets",
        "refusal",
        "replace",
        "replaced",
        "sent",
        "sequence",
        "size_bytes",
        "times",
    )

    offsets: Int64s
    duplicates: Bools
    replaced: Int64s | None
    kept: Bools | None

    def __init__(self, sequence: int, deadline_s: float) -> None:
        super().__init__()
        self.sequence = sequence
        self.deadline_s = deadline_s
        self.count = 0
        self.size_bytes = 0
        self.known = 0  # the number of first messages that ``trim`` has removed
        self.times = NO_TIMES
        self.body = b""
        self.dedup: Digests | None = None
        self.replace: ReplaceColumns | None = None
        self.replaced = self.kept = None
        self.sent = False
        # The last retryable refusal, or None if the broker may have stored the messages.
        self.refusal: EscapementError | None = None
        self.error: EscapementError | None = None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message of this request."""
        return self.sequence + self.count - 1

    def fill(
        self,
        batch: MessageBatch,
        times: Times,
        dedup: Digests | None,
        size_bytes: int,
        replace: ReplaceColumns | None = None,
    ) -> None:
        """Set the messages of this request, with their times, dedup keys and replace keys."""
        self.count = len(batch)
        self.size_bytes = size_bytes
        self.times = times
        self.dedup = dedup
        self.replace = replace
        self.body = batch.encode()

    def trim(self, rows: int) -> None:
        """Remove the first ``rows`` messages, which the broker has stored already."""
        assert 0 < rows < self.count
        rest = MessageBatch.decode(self.body).part(rows, self.count)
        times = self.times.take(slice(rows, None))
        dedup = None if self.dedup is None else self.dedup[rows:]
        replace = None if self.replace is None else self.replace.part(slice(rows, None))
        self.fill(rest, times, dedup, self.size_bytes * len(rest) // self.count, replace)
        self.sequence += rows
        self.known += rows

    def settle(
        self,
        base_offset: int = -1,
        duplicate: bool = False,
        offsets: Int64s | None = None,
        repeated: UInt8s | None = None,
        previous: Int64s | None = None,
    ) -> None:
        """Settle this request as durable, with the fields of the broker's Receipt.

        Args:
          base_offset: the offset of the first message, if the offsets are consecutive; -1 if
            they are unknown. It is ignored if ``offsets`` is given.
          duplicate: whether all messages were stored before. It is ignored if ``repeated`` is
            given.
          offsets: the offset of each message, -1 if it is unknown.
          repeated: 1 for each message that was stored before.
          previous: the offset of the message that each one replaced or gave way to, or -1.
        """
        if offsets is None:
            end_offset = base_offset + self.count
            unknown = base_offset < 0
            offsets = np.full(self.count, -1) if unknown else np.arange(base_offset, end_offset)
        duplicates = np.full(self.count, duplicate) if repeated is None else repeated.astype(bool)
        if previous is not None and self.replace is not None:
            kept = (self.replace.modes == FIRST) & (previous >= 0)
            replaced = np.where(kept, -1, previous)
            offsets = np.where(kept, previous, offsets)
            self.kept = np.concatenate([np.zeros(self.known, bool), kept])
            self.replaced = np.concatenate([np.full(self.known, -1), replaced])
        if self.known:
            offsets = np.concatenate([np.full(self.known, -1), offsets])
            duplicates = np.concatenate([np.ones(self.known, bool), duplicates])
        self.offsets, self.duplicates = offsets, duplicates
        self.body = b""
        super().settle()

    def fail(self, error: EscapementError) -> None:
        """Settle this request as failed with ``error``."""
        self.error = error
        self.body = b""
        super().settle()


class NewMessage(NamedTuple):
    """A message to publish, with its fields encoded for the protocol."""

    payload: bytes
    key: bytes = b""
    properties: bytes = b""
    priority: int = DEFAULT_PRIORITY
    group: bytes = b""
    delay_ms: int = NO_TIME
    at_ms: int = NO_TIME
    dedup: bytes = NO_DIGEST
    spread_ms: int = 0
    replace: Replace | None = None

    @property
    def size_bytes(self) -> int:
        """The size of the message in a producer's bounds."""
        strings = len(self.payload) + len(self.key) + len(self.properties) + len(self.group)
        return ROW_BYTES + strings


# The fields of a message that every draft turns into columns: all but ``replace``, the last.
_COLUMNS: Final = len(NewMessage._fields) - 1


class Draft:
    """An open publish request, to which messages can be added."""

    __slots__ = ("_messages", "_replacing", "next_sequence", "request", "since_s", "size_bytes")

    def __init__(self, sequence: int, now_s: float, deadline_s: float) -> None:
        self.request = PublishRequest(sequence, deadline_s)
        self.next_sequence = sequence
        self.since_s = now_s
        self.size_bytes = 0
        self._messages: list[NewMessage] = []
        self._replacing = False  # whether a message has a replace key

    def add(self, message: NewMessage, size_bytes: int) -> int:
        """Add a message of ``size_bytes``, and return its row in the publish request."""
        self._messages.append(message)
        if message.replace is not None:
            self._replacing = True
        self.next_sequence += 1
        self.size_bytes += size_bytes
        return len(self._messages) - 1

    def close(self, producer: str) -> PublishRequest:
        """Return the publish request with the messages, in columns.

        A column that would have only default values, such as empty keys, is left out.

        Args:
          producer: the name of the producer, for seeds of spreads.
        """
        # Transposing with zip would make an iterator per message, for which the garbage collector
        # would run each time.
        payloads, keys, properties, priorities, groups, delays, ats, dedup, spreads_ms = (
            list(map(itemgetter(field), self._messages)) for field in range(_COLUMNS)
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
        if _used(spreads_ms, 0):
            times = scattered(times, np.array(spreads_ms), producer, self.request.sequence, digests)
        replace = None
        if self._replacing:
            replace = ReplaceColumns.of([message.replace for message in self._messages])
        self.request.fill(batch, times, digests, self.size_bytes, replace)
        return self.request


def scattered(
    times: Times, spreads_ms: Int64s, producer: str, first: int, digests: Digests | None
) -> Times:
    """Return the times of messages, each later by its place in its spread (``spread.py``).

    Args:
      spreads_ms: the spread of each message, 0 for none.
      producer: the name of the producer.
      first: the sequence of the first message; the others follow.
      digests: the digests of the dedup keys.
    """
    sequences = np.arange(first, first + len(spreads_ms))
    places = places_ms(seeds(producer, sequences, digests), spreads_ms)
    return spread(times, places, spreads_ms > 0)


def _used(values: list[Any], default: object) -> bool:
    return values.count(default) < len(values)
