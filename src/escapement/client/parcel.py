"""A parcel: the messages of one Publish, from being gathered to being settled.

While single messages are added it is a *draft*, lists of Python values; closing turns
these into columns, once. Whoever sent a message holds the parcel and a row in it, and
waits for the parcel as a whole.
"""

from __future__ import annotations

import numpy as np

from escapement.client.promise import Promise
from escapement.dedup import NO_DIGEST, Digests, column
from escapement.errors import EscapementError
from escapement.message import (
    DEFAULT_PRIORITY,
    NO_TIME,
    Blobs,
    Int64s,
    MessageBatch,
    Times,
    UInt8s,
)


class Parcel(Promise):
    """One batch on its way. Settled when it is durable (or known to be), or failed."""

    __slots__ = (
        "at_ms",
        "base_offset",
        "body",
        "count",
        "deadline_s",
        "dedup",
        "delay_ms",
        "duplicate",
        "error",
        "known",
        "offsets",
        "refusal",
        "repeated",
        "sent",
        "sequence",
        "size_bytes",
    )

    def __init__(self, sequence: int, deadline_s: float) -> None:
        super().__init__()
        self.sequence = sequence
        self.deadline_s = deadline_s
        self.count = 0
        self.size_bytes = 0
        self.known = 0  # rows before the first that is still to be sent
        self.delay_ms: Int64s | None = None
        self.at_ms: Int64s | None = None
        self.body = b""
        self.dedup: Digests | None = None
        self.sent = False
        self.refusal: EscapementError | None = None  # the last, if it is known not stored
        self.base_offset = -1
        self.duplicate = False
        self.offsets: Int64s | None = None  # of each, where they are not consecutive
        self.repeated: UInt8s | None = None
        self.error: EscapementError | None = None

    @property
    def last_sequence(self) -> int:
        """The number of its last message."""
        return self.sequence + self.count - 1

    def fill(
        self, batch: MessageBatch, times: Times, dedup: Digests | None, size_bytes: int
    ) -> None:
        """Take the columns."""
        self.count = len(batch)
        self.size_bytes = size_bytes
        self.delay_ms, self.at_ms = times.delay_ms, times.at_ms
        self.dedup = dedup
        self.body = batch.encode()

    def trim(self, rows: int) -> None:
        """Drop the first ``rows`` messages, which are stored already."""
        assert 0 < rows < self.count
        rest = MessageBatch.decode(self.body).take(np.arange(rows, self.count))
        times = Times(
            None if self.delay_ms is None else self.delay_ms[rows:],
            None if self.at_ms is None else self.at_ms[rows:],
        )
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
        """It is durable; the offsets are consecutive, or unknown at -1, or a column."""
        self.offsets, self.repeated = offsets, repeated
        self.base_offset = base_offset
        self.duplicate = duplicate
        self.body = b""
        super().settle()

    def fail(self, error: EscapementError) -> None:
        """It is not stored, or nothing is known of it: ``error`` says which."""
        self.error = error
        self.body = b""
        super().settle()

    def offset_of(self, row: int) -> int:
        """The offset of the message that was added as ``row``; -1 if it is not known."""
        row -= self.known
        if row >= 0 and self.offsets is not None:
            return int(self.offsets[row])
        return self.base_offset + row if row >= 0 and self.base_offset >= 0 else -1

    def is_duplicate(self, row: int) -> bool:
        """Whether that message had been stored before it was (last) sent."""
        if row >= self.known and self.repeated is not None:
            return bool(self.repeated[row - self.known])
        return self.duplicate or row < self.known


class Draft:
    """A parcel to which messages are still added."""

    __slots__ = (
        "_ats",
        "_dedup",
        "_delays",
        "_groups",
        "_keys",
        "_payloads",
        "_priorities",
        "_properties",
        "next_sequence",
        "parcel",
        "since_s",
        "size_bytes",
    )

    def __init__(self, sequence: int, now_s: float, deadline_s: float) -> None:
        self.parcel = Parcel(sequence, deadline_s)
        self.next_sequence = sequence
        self.since_s = now_s
        self.size_bytes = 0
        self._payloads: list[bytes] = []
        self._keys: list[bytes] = []
        self._properties: list[bytes] = []
        self._priorities: list[int] = []
        self._delays: list[int] = []
        self._ats: list[int] = []
        self._dedup: list[bytes] = []
        self._groups: list[bytes] = []

    def add(
        self,
        payload: bytes,
        key: bytes,
        properties: bytes,
        priority: int,
        delay_ms: int,
        at_ms: int,
        dedup: bytes,
        group: bytes,
        size_bytes: int,
    ) -> int:
        """Add a message; returns its row."""
        self._payloads.append(payload)
        self._keys.append(key)
        self._properties.append(properties)
        self._priorities.append(priority)
        self._delays.append(delay_ms)
        self._ats.append(at_ms)
        self._dedup.append(dedup)
        self._groups.append(group)
        self.next_sequence += 1
        self.size_bytes += size_bytes
        return len(self._payloads) - 1

    def close(self) -> Parcel:
        """The parcel, its columns filled; a column that no message uses is left out."""
        priorities = None
        if any(priority != DEFAULT_PRIORITY for priority in self._priorities):
            priorities = np.array(self._priorities, np.uint8)
        batch = MessageBatch(
            Blobs.of(self._payloads),
            Blobs.of(self._keys) if any(self._keys) else None,
            Blobs.of(self._properties) if any(self._properties) else None,
            priorities,
            Blobs.of(self._groups) if any(self._groups) else None,
        )
        times = Times(_column(self._delays), _column(self._ats))
        dedup = None
        if self._dedup.count(NO_DIGEST) < len(self._dedup):
            dedup = column(self._dedup)
        self.parcel.fill(batch, times, dedup, self.size_bytes)
        return self.parcel


def _column(values: list[int]) -> Int64s | None:
    if values.count(NO_TIME) == len(values):
        return None
    return np.array(values, np.int64)
