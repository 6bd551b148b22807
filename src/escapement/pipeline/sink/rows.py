"""Conversion of a DataFrame's rows, as Arrow record batches, into batches of messages.

Columns are converted as a whole. The code looks at single rows only to name them in an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from escapement.durations import MAX_DURATION_MS
from escapement.durations import format as duration_text
from escapement.errors import DelayTooLong, InvalidRequest
from escapement.message import (
    DEFAULT_PRIORITY,
    MAX_PRIORITY,
    NO_TIME,
    Blobs,
    Bools,
    Int64s,
    MessageBatch,
    UInt8s,
)
from escapement.pipeline.arrow import longs, present, values_of
from escapement.pipeline.sink.packing import MOST_ENTRIES, encode_maps
from escapement.pipeline.sink.shape import NULL_IS_REFUSED, Shape
from escapement.pipeline.sink.staging import MAX_MESSAGE_BYTES

_BYTES: Final = pa.large_binary()
# The maximum number of characters of a key that an error shows.
_EXCERPT_CHARS: Final = 100


class Rows(NamedTuple):
    """Messages for one topic, and their due times."""

    topic: str
    batch: MessageBatch
    at_ms: Int64s | None  # NO_TIME for a message due at once; None if all are due at once
    partition: int  # Spark's number of the partition
    rows_before: int  # the number of rows in earlier record batches of the partition
    indexes: Int64s | None  # the indexes of the rows in the record batch; None for all rows

    def first(self, *, timed: bool = False) -> str:
        """Return text such as "row 3 of partition 0" for the first row.

        Args:
          timed: whether to name the first row that has a time instead.
        """
        at = 0
        if timed:
            assert self.at_ms is not None, "no row has a time"
            at = int(np.argmax(self.at_ms != NO_TIME))
        return self.name(at)

    def name(self, at: int) -> str:
        """Return text such as "row 3 of partition 0" for the message at this position."""
        index = at if self.indexes is None else int(self.indexes[at])
        return f"row {self.rows_before + index + 1} of partition {self.partition}"


class RowReader:
    """Converts the record batches of one partition into messages.

    Args:
      shape: the columns of the record batches.
      topic: the topic of rows without one; "" if each row must have one.
      start_ms: the time from which delays count, in Unix milliseconds.
      max_delay_ms: the longest accepted time from ``start_ms`` to a due time.
      null_times: ``NULL_IS_REFUSED`` or ``NULL_IS_NOW``.
      partition: Spark's number of the partition, which errors name.
    """

    def __init__(
        self,
        shape: Shape,
        topic: str,
        start_ms: int,
        max_delay_ms: int,
        null_times: str,
        partition: int,
    ) -> None:
        assert topic or "topic" in shape.positions, "the rows have no topic"
        self._shape = shape
        self._topic = topic
        self._start_ms = start_ms
        self._max_delay_ms = max_delay_ms
        self._null_times = null_times
        self._partition = partition
        self._rows_before = 0  # rows in earlier record batches

    def read(self, rows: pa.RecordBatch) -> Iterator[Rows]:
        """Convert a record batch, and yield its messages grouped by topic.

        Call this method for the record batches of the partition in their order.

        Raises:
          InvalidRequest: if rows have an invalid value. The error names the first such row.
          DelayTooLong: if times are too far in the future. The broker would refuse such a message,
            and with it all messages that are stored in the same inbox entry.
        """
        if not rows.num_rows:
            return
        batch = MessageBatch(
            self._payloads(rows.column(self._shape.positions["payload"])),
            self._optional(rows, "key", _keys),
            self._optional(rows, "properties", self._properties),
            self._optional(rows, "priority", self._priorities),
        )
        self._refuse_large(batch)
        at_ms = self._times(rows)
        yield from self._by_topic(self._optional(rows, "topic", self._topics), batch, at_ms)
        self._rows_before += rows.num_rows

    def _by_topic(self, topics: Any, batch: MessageBatch, at_ms: Int64s | None) -> Iterator[Rows]:
        if topics is None or topics.null_count == len(topics):
            yield self._rows(self._topic, batch, at_ms, None)
            return
        coded = pc.dictionary_encode(topics)
        # Bytes that are not UTF-8 are escaped, and refused later as an invalid topic name.
        found = coded.dictionary.cast(_BYTES).to_pylist()
        names = [*(name.decode("utf-8", "backslashreplace") for name in found), ""]
        codes = values_of(coded.indices.fill_null(len(names) - 1), np.int32)
        codes = np.where(codes == names.index(""), len(names) - 1, codes)
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
        for code, name in enumerate(names):
            if bounds[code] == bounds[code + 1]:
                continue
            at = order[bounds[code] : bounds[code + 1]]
            topic = name or self._topic
            whole = len(at) == len(codes)
            some = batch if whole else batch.take(at)
            times = at_ms if whole or at_ms is None else at_ms[at]
            yield self._rows(topic, some, times, None if whole else at)

    def _rows(
        self, topic: str, batch: MessageBatch, at_ms: Int64s | None, indexes: Int64s | None
    ) -> Rows:
        return Rows(topic, batch, at_ms, self._partition, self._rows_before, indexes)

    def _refuse_large(self, batch: MessageBatch) -> None:
        sizes = batch.string_sizes()
        large = sizes > MAX_MESSAGE_BYTES
        if large.any():
            raise InvalidRequest(
                f"{self._named(large)} too large: {int(sizes[np.argmax(large)]):,} bytes of"
                f" payload, key and properties, but the maximum of a bulk write is"
                f" {MAX_MESSAGE_BYTES:,} bytes"
            )

    def _refuse(self, wrong: Bools, why: str) -> None:
        """Raise ``InvalidRequest``, for the reason ``why``, if any row is ``wrong``."""
        if wrong.any():
            raise InvalidRequest(f"{self._named(wrong)} {why}")

    def _named(self, wrong: Bools, more: str = "") -> str:
        """Return text with the count of wrong rows and the number of the first, then ``more``."""
        count, number = int(np.count_nonzero(wrong)), self._rows_before + int(np.argmax(wrong)) + 1
        first = f"row {number} of partition {self._partition}{more}"
        return f"{count} row{'s' * (count > 1)} (the first is {first})"

    def _refuse_null(self, rows: pa.RecordBatch, name: str, given: Bools) -> None:
        """Raise ``InvalidRequest`` if a time is null, unless the user chose that null means now.

        Spark turns times that it cannot parse into null. Delivering such messages at once could be
        far too early.

        Args:
          name: the name of the column with the times.
          given: false for each null time.
        """
        if self._null_times == NULL_IS_REFUSED and not given.all():
            named = self._named(~given, _key_text(self._shape, rows, int(np.argmin(given))))
            raise InvalidRequest(
                f"{named} whose {name} is null: fill in the time, drop these rows, or deliver them"
                " at once with the option nullTimes=now"
            )

    def _optional(self, rows: pa.RecordBatch, name: str, read: Any) -> Any:
        position = self._shape.positions.get(name)
        return None if position is None else read(rows.column(position))

    def _times(self, rows: pa.RecordBatch) -> Int64s | None:
        name = self._shape.when
        if name is None:
            return None
        column = rows.column(self._shape.positions[name])
        given = present(column)
        self._refuse_null(rows, name, given)
        if name == "deliver_at":
            at_ms = _milliseconds(column)
        elif name == "delay":
            at_ms = _milliseconds(column) + self._start_ms
        else:
            # Delays are limited, because a sum that overflows 64 bits would be a time in the past.
            delays_ms = np.minimum(_integers(column.cast(pa.int64()), 0), MAX_DURATION_MS)
            at_ms = delays_ms + self._start_ms
        too_far = given & (at_ms > self._start_ms + self._max_delay_ms)
        if too_far.any():
            most = duration_text(self._max_delay_ms)
            raise DelayTooLong(
                f"{self._named(too_far)} due later than the maximum delay of {most} from now. If"
                " the broker accepts longer delays (its --max-delay), set the option maxDelay"
            )
        # Times before 1970 become 0. Messages with any time in the past are due at once.
        return np.where(given, np.maximum(at_ms, 0), NO_TIME)

    def _payloads(self, column: pa.Array) -> Blobs:
        if column.null_count:
            self._refuse(
                ~present(column), "without a payload: use an empty payload instead of null"
            )
        return _blobs(column, "payload")

    def _topics(self, column: pa.Array) -> pa.Array:
        if not self._topic:
            absent = _blobs(column, "topic").lengths == 0
            self._refuse(absent, "without a topic: fill in the column, or give the option topic")
        return column

    def _properties(self, column: pa.Array) -> Blobs | None:
        if column.null_count == len(column):
            return None
        bounds = values_of(column.offsets, np.int32).astype(np.int64)
        counts = np.where(present(column), np.diff(bounds), 0)
        self._refuse(counts > MOST_ENTRIES, f"with more than {MOST_ENTRIES:,} properties")
        low, high = int(bounds[0]), int(bounds[-1])
        if int(counts.sum()) != high - low:  # in Arrow, even null maps may have entries
            entries = np.repeat(present(column), np.diff(bounds))
            keep = longs(np.flatnonzero(entries) + low)
            names, values = column.keys.take(keep), column.items.take(keep)
        else:
            names, values = column.keys.slice(low, high - low), column.items.slice(low, high - low)
        # A name is never null: neither Spark nor Arrow allows null keys in a map.
        absent = ~present(values) if values.null_count else None
        return encode_maps(counts, _blobs(names, "property"), _blobs(values, "property"), absent)

    def _priorities(self, column: pa.Array) -> UInt8s | None:
        if column.null_count == len(column):
            return None
        values = _integers(column, DEFAULT_PRIORITY)
        wrong = (values < 0) | (values > MAX_PRIORITY)
        self._refuse(wrong, f"with a priority that is not 0 to {MAX_PRIORITY}")
        return values.astype(np.uint8)


def _integers(column: pa.Array, absent: int) -> Int64s:
    filled = column.fill_null(absent) if column.null_count else column
    return values_of(filled.cast(pa.int64()), np.int64)


def _milliseconds(column: pa.Array) -> Int64s:
    """Return timestamps or intervals in milliseconds, rounded up so that no message is early."""
    unit = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit]
    factor = 1_000 if column.type.unit == "s" else 1
    values = _integers(column.cast(pa.int64()), 0) * factor
    return values // unit + (values % unit > 0)


def _key_text(shape: Shape, rows: pa.RecordBatch, index: int) -> str:
    """Return text that names the key of a row, for an error; empty if the row has no key."""
    if "key" not in shape.positions:
        return ""
    key = rows.column(shape.positions["key"]).cast(_BYTES)[index].as_py() or b""
    if not key:
        return ""
    try:
        text = key.decode()
        excerpt = repr(text[:_EXCERPT_CHARS])
    except UnicodeDecodeError:
        text = key
        excerpt = repr(key[:_EXCERPT_CHARS])[1:]
    return f", with the key {excerpt}{'…' * (len(text) > _EXCERPT_CHARS)}"


def _blobs(column: pa.Array, name: str) -> Blobs:
    """Convert an Arrow column of text or bytes, without copying them. Null becomes empty."""
    if column.null_count:
        column = column.fill_null(b"" if pa.types.is_binary(column.type) else "")
    column = column.cast(_BYTES)
    if not len(column):
        return Blobs.empty(0)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    low, high = int(bounds[0]), int(bounds[-1])
    lengths = np.diff(bounds)
    if len(lengths) and int(lengths.max()) >= 1 << 32:
        raise InvalidRequest(
            f"a {name} of {int(lengths.max())} bytes is too long: the maximum is {(1 << 32) - 1}"
        )
    taken = memoryview(data).cast("B")[low:high] if data is not None else b""
    return Blobs(lengths.astype(np.uint32), taken)


def _keys(column: pa.Array) -> Blobs | None:
    return None if column.null_count == len(column) else _blobs(column, "key")
