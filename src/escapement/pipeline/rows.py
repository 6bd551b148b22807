"""Rows of a DataFrame, as Arrow has them, turned into batches of messages.

Columns become columns: nothing here looks at a single row, unless to name it in an error.
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
from escapement.message import DEFAULT_PRIORITY, NO_TIME, Blobs, Int64s, MessageBatch, UInt8s
from escapement.pipeline.packing import MOST_ENTRIES, encode_maps
from escapement.pipeline.shape import Shape

_BYTES: Final = pa.large_binary()


class Rows(NamedTuple):
    """Messages for one topic, and when they are wanted."""

    topic: str
    batch: MessageBatch
    at_ms: Int64s | None  # NO_TIME: at once; None: all of them


class RowReader:
    """Reads record batches of one shape.

    Args:
      topic: for rows that name none; "" if each must.
      start_ms: the instant that delays are counted from.
      max_delay_ms: what is wanted later than this from then is refused.
    """

    def __init__(self, shape: Shape, topic: str, start_ms: int, max_delay_ms: int) -> None:
        self._shape = shape
        self._topic = topic
        self._start_ms = start_ms
        self._max_delay_ms = max_delay_ms

    def read(self, rows: pa.RecordBatch) -> Iterator[Rows]:
        """The messages of a record batch, by topic.

        Raises:
          InvalidRequest: for what no message can have.
          DelayTooLong: for times that no broker takes. A letter with one of these is never
            moved, and neither are the messages that share it.
        """
        if not rows.num_rows:
            return
        batch = MessageBatch(
            _blobs(rows.column(self._shape.places["payload"]), "payload", required=True),
            self._optional(rows, "key", _keys),
            self._optional(rows, "properties", _properties),
            self._optional(rows, "priority", _priorities),
        )
        at_ms = self._times(rows)
        topics = self._optional(rows, "topic", lambda column: column)
        if topics is None or topics.null_count == len(topics):
            yield Rows(self._default(), batch, at_ms)
            return
        coded = pc.dictionary_encode(topics)
        names = [*coded.dictionary.to_pylist(), None]
        codes = np.asarray(coded.indices.fill_null(len(names) - 1))
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
        for code, name in enumerate(names):
            if bounds[code] == bounds[code + 1]:
                continue
            at = order[bounds[code] : bounds[code + 1]]
            topic = name or self._default()
            whole = len(at) == len(codes)
            some = batch if whole else batch.take(at)
            yield Rows(topic, some, at_ms if whole or at_ms is None else at_ms[at])

    def _default(self) -> str:
        if not self._topic:
            raise InvalidRequest("a row has no topic, and the option topic names none")
        return self._topic

    def _optional(self, rows: pa.RecordBatch, name: str, read: Any) -> Any:
        place = self._shape.places.get(name)
        return None if place is None else read(rows.column(place))

    def _times(self, rows: pa.RecordBatch) -> Int64s | None:
        places = self._shape.places
        if "deliver_at" in places:
            at_ms, given = _milliseconds(rows.column(places["deliver_at"]))
        elif "delay" in places:
            at_ms, given = _milliseconds(rows.column(places["delay"]))
            at_ms = at_ms + self._start_ms
        elif "delay_ms" in places:
            column = rows.column(places["delay_ms"]).cast(pa.int64())
            # Cut, so that the sum is not past what 64 bits have: that would be in the past.
            delays_ms = np.minimum(_integers(column, 0), MAX_DURATION_MS)
            at_ms, given = delays_ms + self._start_ms, _given(column)
        else:
            return None
        too_far = int(np.count_nonzero(given & (at_ms > self._start_ms + self._max_delay_ms)))
        if too_far:
            most = duration_text(self._max_delay_ms)
            raise DelayTooLong(
                f"{too_far} rows are wanted later than the maximum delay of {most} from now; where"
                " the broker takes them (its --max-delay), say so with the option maxDelay"
            )
        # What lies before the beginning of time is due at once, as all that has passed.
        return np.where(given, np.maximum(at_ms, 0), NO_TIME)


def _given(column: pa.Array) -> Any:
    return np.asarray(column.is_valid())


def _integers(column: pa.Array, absent: int) -> Int64s:
    filled = column.fill_null(absent) if column.null_count else column
    return np.asarray(filled.cast(pa.int64()))


def _milliseconds(column: pa.Array) -> tuple[Int64s, Any]:
    """A column of timestamps or intervals, rounded up: nothing may come early."""
    unit = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit]
    factor = 1_000 if column.type.unit == "s" else 1
    values = _integers(column.cast(pa.int64()), 0) * factor
    return values // unit + (values % unit > 0), _given(column)


def _blobs(column: pa.Array, name: str, *, required: bool = False) -> Blobs:
    """Text or bytes, without a copy of them."""
    if column.null_count:
        if required:
            raise InvalidRequest(f"{column.null_count} rows have no {name}")
        column = column.fill_null(b"" if pa.types.is_binary(column.type) else "")
    column = column.cast(_BYTES)
    if not len(column):
        return Blobs.empty(0)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    low, high = int(bounds[0]), int(bounds[-1])
    lengths = np.diff(bounds)
    if len(lengths) and int(lengths.max()) >= 1 << 32:
        raise InvalidRequest(f"a {name} of {int(lengths.max())} bytes is too long")
    taken = memoryview(data).cast("B")[low:high] if data is not None else b""
    return Blobs(lengths.astype(np.uint32), taken)


def _keys(column: pa.Array) -> Blobs | None:
    return None if column.null_count == len(column) else _blobs(column, "key")


def _properties(column: pa.Array) -> Blobs | None:
    if column.null_count == len(column):
        return None
    bounds = np.asarray(column.offsets, dtype=np.int64)
    counts = np.where(_given(column), np.diff(bounds), 0)
    if int(counts.max()) > MOST_ENTRIES:
        raise InvalidRequest(f"a message has {int(counts.max())} properties, which are too many")
    low, high = int(bounds[0]), int(bounds[-1])
    if int(counts.sum()) != high - low:  # entries of what is null
        entries = np.repeat(_given(column), np.diff(bounds))
        keep = pa.array(np.flatnonzero(entries) + low)
        names, values = column.keys.take(keep), column.items.take(keep)
    else:
        names, values = column.keys.slice(low, high - low), column.items.slice(low, high - low)
    absent = np.asarray(values.is_null()) if values.null_count else None
    return encode_maps(counts, _blobs(names, "property"), _blobs(values, "property"), absent)


def _priorities(column: pa.Array) -> UInt8s | None:
    if column.null_count == len(column):
        return None
    values = _integers(column, DEFAULT_PRIORITY)
    if int(values.min()) < 0 or int(values.max()) > 255:
        raise InvalidRequest(
            f"a priority is 0 to 255; there are {int(values.min())} to {int(values.max())}"
        )
    return values.astype(np.uint8)
