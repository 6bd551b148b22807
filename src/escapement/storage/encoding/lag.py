"""Lag statistics: how late messages are delivered and acknowledged, and after how many deliveries.

For each subscription and hour there is a *tally*, a set of histograms. It counts acknowledged
messages by the *kind* of figure and by the *bucket* that the figure is in
(``storage/encoding/buckets.py``). The hour is that of the last delivery, in UTC. The kinds are:

- ``LATE``: ms from the *wanted time* of a message to its delivery, for messages that were
  acknowledged after their first delivery. The wanted time is the due time, or the publish time if
  the subscription ignores delays, but no earlier than the subscription's creation or last seek.
- ``LATE_AGAIN``: ms from the wanted time to the last delivery, for redelivered messages.
- ``HELD``: ms from the last delivery to the acknowledgement.
- ``TRIED``: the number of deliveries.
- ``UNSEEN``: messages that were acknowledged while not in flight, because they had timed out or
  been returned, or a broker before a restart had delivered them. They count for the hour of the
  acknowledgement, and in no other kind.

A *group commit* is one transaction for the requests of many clients. It counts the messages whose
acknowledgements it commits (:func:`count_lags`), and its entry in the journal has the result, a
:class:`Lag` for each subscription and hour. So each durable acknowledgement is counted exactly
once. This module does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s
from escapement.storage.encoding.attempts import RELEASED
from escapement.storage.encoding.buckets import BUCKETS, bucket_of
from escapement.storage.encoding.seal import SEAL_BYTES, sealed, unsealed

HOUR_MS: Final = 3_600_000
LATE, LATE_AGAIN, HELD, TRIED, UNSEEN = range(5)
_KINDS: Final = 5
# Messages of several deliveries are counted together in steps of about this many messages.
_STEP_ROWS: Final = 4096

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BBH")
_WIDTHS: Final = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


class Handed(NamedTuple):
    """Messages that were delivered together, as columns with a row for each message."""

    at_ms: int  # the time of the delivery
    wanted_ms: Int64s
    # The lowest 15 bits are the number of the message's deliveries, this one included.
    attempts: Int64s


class Timing(NamedTuple):
    """Messages that a subscription acknowledged at one moment, and their last deliveries."""

    origin_id: int  # the id that the subscription had before its first seek
    at_ms: int  # the time of the acknowledgement
    handed: Sequence[Handed]  # the messages that were in flight, by delivery
    unseen: int  # the number of messages that were not in flight


class Tally(NamedTuple):
    """The counts of a tally that are not 0.

    Each count belongs to a *cell*, which is ``kind * BUCKETS + bucket``. The cells ascend.
    """

    cells: Int64s
    counts: Int64s  # each above 0

    @classmethod
    def of(cls, found: Mapping[int, int]) -> Tally:
        """Return the tally with these counts; ``found`` maps each cell to its count, above 0."""
        cells = np.fromiter(found, np.int64, len(found))
        order = np.argsort(cells)
        return cls(cells[order], np.fromiter(found.values(), np.int64, len(found))[order])

    @classmethod
    def sum(cls, parts: Sequence[Tally]) -> Tally:
        """Return the sum of tallies; at least one."""
        cells, at = np.unique(np.concatenate([part.cells for part in parts]), return_inverse=True)
        counts = np.zeros(len(cells), np.int64)
        np.add.at(counts, at, np.concatenate([part.counts for part in parts]))
        return cls(cells, counts)

    def of_kind(self, kind: int) -> tuple[Int64s, Int64s]:
        """Return the buckets that have counts of one kind, ascending, and these counts."""
        low, high = np.searchsorted(self.cells, (kind * BUCKETS, (kind + 1) * BUCKETS))
        return self.cells[low:high] - kind * BUCKETS, self.counts[low:high]


class Lag(NamedTuple):
    """The counts that one group commit adds to the tally of a subscription and an hour."""

    origin_id: int  # the id that the subscription had before its first seek
    hour_ms: int  # the time at which the hour began
    tally: Tally


def count_lags(timings: Iterable[Timing]) -> list[Lag]:
    """Count the acknowledged messages of one group commit. O(messages), in numpy."""
    hours: dict[tuple[int, int], _Hour] = {}
    for origin_id, at_ms, handed, unseen in timings:
        if unseen:
            hours.setdefault((origin_id, _hour(at_ms)), _Hour()).unseen += unseen
        for one in handed:
            hours.setdefault((origin_id, _hour(one.at_ms)), _Hour()).take(one, at_ms)
    return [Lag(*key, hour.tally()) for key, hour in hours.items()]


def _hour(at_ms: int) -> int:
    return at_ms - at_ms % HOUR_MS


class _Hour:
    """The messages of one group commit to count for one subscription and hour."""

    __slots__ = ("_parts", "unseen")

    def __init__(self) -> None:
        # Delivered messages, each with the time of their acknowledgement.
        self._parts: list[tuple[Handed, int]] = []
        self.unseen = 0

    def take(self, handed: Handed, acknowledged_ms: int) -> None:
        self._parts.append((handed, acknowledged_ms))

    def tally(self) -> Tally:
        found = np.zeros((_KINDS, BUCKETS), np.int64)
        found[UNSEEN, 0] = self.unseen
        if self._parts:
            held_ms = np.array([at_ms - one.at_ms for one, at_ms in self._parts])
            heights = np.array([len(one.attempts) for one, _ in self._parts])
            np.add.at(found[HELD], bucket_of(held_ms), heights)
        # Count the columns of several deliveries at once, to save calls of numpy, but as soon as
        # they have ``_STEP_ROWS`` messages, so that they fit into the processor's cache.
        waiting, rows = [], 0
        for one, _ in self._parts:
            waiting.append(one)
            rows += len(one.attempts)
            if rows >= _STEP_ROWS:
                _count(waiting, found)
                waiting, rows = [], 0
        if waiting:
            _count(waiting, found)
        cells = np.flatnonzero(found)
        return Tally(cells, found.ravel()[cells])


def _count(parts: list[Handed], found: Int64s) -> None:
    """Count lateness and number of deliveries of these messages.

    Args:
      found: the counts by kind and bucket, which are increased in place.
    """
    late = _joined([one.at_ms - one.wanted_ms for one in parts])
    tries = _joined([one.attempts for one in parts]) & (RELEASED - 1)
    if int(tries.max()) <= 1:
        _add(found[LATE], late)
        found[TRIED, 1] += len(tries)
    else:
        first = tries <= 1
        _add(found[LATE], late[first])
        _add(found[LATE_AGAIN], late[~first])
        _add(found[TRIED], tries)


def _add(found: Int64s, values: Int64s) -> None:
    counts = np.bincount(bucket_of(values))
    found[: len(counts)] += counts


def _joined(columns: list[Int64s]) -> Int64s:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


# -- encoding --------------------------------------------------------------------------
#
#     version u8 | width of a count u8 | cells u16 | crc32 u32
#     cells  u16 each, ascending
#     counts of that width: 1, 2, 4 or 8 bytes


def encode_tally(tally: Tally) -> bytes:
    """Encode a tally in the layout above."""
    most = int(tally.counts.max())
    width = next(width for width in _WIDTHS if most < 1 << 8 * width)
    head = _HEAD.pack(_VERSION, width, len(tally.cells))
    columns = [tally.cells.astype("<u2").tobytes(), tally.counts.astype(_WIDTHS[width]).tobytes()]
    return sealed(head, columns)


def decode_tally(data: Buffer) -> Tally:
    """Decode a tally.

    Raises:
      LogDamaged: if the bytes fail their checksum, or have an unknown version or layout.
    """
    at = _HEAD.size + SEAL_BYTES
    view = unsealed(data, _HEAD.size, at, "a tally")
    version, width, count = _HEAD.unpack_from(view)
    if version != _VERSION or width not in _WIDTHS or len(view) != at + count * (2 + width):
        raise LogDamaged(f"a tally has an unknown form ({version}) or length")
    cells = np.frombuffer(view, "<u2", count, at).astype(np.int64)
    counts = np.frombuffer(view, _WIDTHS[width], count, at + 2 * count).astype(np.int64)
    return Tally(cells, counts)
