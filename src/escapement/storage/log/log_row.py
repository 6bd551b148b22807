"""A row of the log as bytes: the batches of one topic in one group commit.

A *body* is an encoded batch of messages. A row has a column of due times, which the broker
determines, and then the bodies as the producers sent them. Layout, little-endian::

    kind u8 | due width u8 | 0 u16 | messages u32 | bodies u32 | crc32 u32
    accepted_at_ms i64 | first_due_ms i64
    due       messages values of the width, each less first_due_ms (width 0: all equal)
    kind 2: stale_ms i64 × messages, first stated due_ms i64 × messages,
            published_ms i64 × messages, length u32, offsets (storage/offsets/offset_column.py)
    lengths   u32 for each body
    bodies    end to end (message.MessageBatch.encode)

A row of kind 1 states messages for the first time. Its key gives their offsets. A row of kind 2
*restates* earlier messages, which were rescheduled or relocated. It has their offsets, their
previous due times, and the due times and the publish time that the first row gave them.

The checksum covers everything but itself. Encoding copies each byte once. Decoding copies only the
due times. No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from escapement.errors import LogDamaged, RemoteProtocolError
from escapement.message import Buffer, Int64s, MessageBatch
from escapement.sorting import bounds
from escapement.storage.encoding.seal import SEAL_BYTES, sealed, unsealed
from escapement.storage.offsets.offset_column import decode_offsets, encode_offsets

_FIRST, _RESTATED = 1, 2
_TIME_COLUMNS: Final = 3  # of a row with restated messages
_LEAST_BYTES: Final = 4  # of a message in a body: the length of its payload
_LENGTH: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<BBxxII")
_TIMES: Final = struct.Struct("<qq")
_START: Final = _HEAD.size + SEAL_BYTES + _TIMES.size
# The types of the due column, by width. If the due times of a row lie within 49 days of each other,
# as they mostly do, 4 bytes are enough.
_DTYPES: Final[dict[int, np.dtype[Any]]] = {4: np.dtype("<u4"), 8: np.dtype("<i8")}


class Restating(NamedTuple):
    """The columns that only a row with restated messages has; an element for each message."""

    offsets: Int64s  # ascending
    stale_ms: Int64s  # the due times before this row
    first_ms: Int64s  # the due times in the row that stated the messages first
    published_ms: Int64s  # the publish times: when that first row was accepted


@dataclass(frozen=True, slots=True, eq=False)
class RowContent:
    """The content of a log row. ``bodies`` are views into its bytes."""

    accepted_at_ms: int
    due_ms: Int64s
    bodies: list[memoryview]
    restating: Restating | None = None

    @property
    def offsets(self) -> Int64s | None:
        """The offsets of the restated messages, ascending; None if the row restates none."""
        return None if self.restating is None else self.restating.offsets

    def batch(self) -> MessageBatch:
        """Return all messages of the row in one batch, copying them if it has several bodies.

        Raises:
          LogDamaged: if a body does not decode, or the number of messages is wrong.
        """
        return MessageBatch.concat(self.batches())

    def batches(self) -> list[MessageBatch]:
        """Return the batches of the row as views, without copying the messages.

        Raises:
          LogDamaged: if a body does not decode, or the number of messages is wrong.
        """
        try:
            batches = [MessageBatch.decode(body) for body in self.bodies]
        except RemoteProtocolError as error:
            raise LogDamaged(f"a log row holds a body that does not decode: {error}") from error
        count = sum(map(len, batches))
        if count != len(self.due_ms):
            raise LogDamaged(f"a log row has {len(self.due_ms)} due times for {count} messages")
        return batches


def encode_row(
    accepted_at_ms: int,
    due_ms: Int64s,
    bodies: Sequence[Buffer],
    restating: Restating | None = None,
) -> bytes:
    """Return the bytes of one log row.

    Args:
      due_ms: the due time of each message, in the order of the bodies.
      bodies: encoded batches.
      restating: the further columns of a row that restates messages.
    """
    assert bodies, "a log row without bodies"
    assert len(due_ms), "a log row without messages"
    first, last = bounds(due_ms)
    spread = last - first
    width = 0 if not spread else 4 if spread < 1 << 32 else 8
    due = (due_ms - first).astype(_DTYPES[width]).tobytes() if width else b""
    lengths = struct.pack(f"<{len(bodies)}I", *map(len, bodies))
    restated = b""
    if restating is not None:
        heights = {len(column) for column in (*restating, due_ms)}
        assert len(heights) == 1, "columns of unequal height"
        column = encode_offsets(restating.offsets)
        times = [times.astype("<i8", copy=False).tobytes() for times in restating[1:]]
        restated = b"".join([*times, _LENGTH.pack(len(column)), column])
    kind = _FIRST if restating is None else _RESTATED
    head = _HEAD.pack(kind, width, len(due_ms), len(bodies))
    columns = b"".join([_TIMES.pack(accepted_at_ms, first), due, restated, lengths])
    return sealed(head, [columns, *bodies])


def decode_row(data: Buffer) -> RowContent:
    """Return the content of a log row, after verifying its checksum.

    Raises:
      LogDamaged: if ``encode_row`` did not produce these bytes.
    """
    view = unsealed(data, _HEAD.size, _START, "a log row")
    kind, width, count, body_count = _HEAD.unpack_from(view)
    if kind not in (_FIRST, _RESTATED) or width not in (0, 4, 8):
        raise LogDamaged(f"a log row has an unknown kind or width: {kind}, {width}")
    accepted_at_ms, first = _TIMES.unpack_from(view, _HEAD.size + SEAL_BYTES)
    at = _START
    if len(view) - at < count * max(width, _LEAST_BYTES):
        raise LogDamaged("a log row ends inside its columns")
    due_ms = np.full(count, first, np.int64)
    if width:
        due_ms += np.frombuffer(view, _DTYPES[width], count, at).astype(np.int64)
        at += count * width
    restating = None
    if kind == _RESTATED:
        restating, at = _decode_restating(view, at, count)
    if len(view) - at < 4 * body_count:
        raise LogDamaged("a log row ends inside its columns")
    lengths = np.frombuffer(view, "<u4", body_count, at).tolist()
    at += 4 * body_count
    if len(view) - at != sum(lengths):
        raise LogDamaged("a log row's bodies have the wrong length")
    bodies = []
    for length in lengths:
        bodies.append(view[at : at + length])
        at += length
    return RowContent(accepted_at_ms, due_ms, bodies, restating)


def _decode_restating(view: memoryview, at: int, count: int) -> tuple[Restating, int]:
    """Decode the columns that only a row with restated messages has.

    Args:
      at: the position in ``view`` at which these columns begin.
      count: the number of messages.

    Returns:
      The columns, and the position after them.
    """
    if len(view) - at < 8 * count * _TIME_COLUMNS + _LENGTH.size:
        raise LogDamaged("a log row ends before its offsets")
    times = np.frombuffer(view, "<i8", count * _TIME_COLUMNS, at).reshape(_TIME_COLUMNS, count)
    at += 8 * count * _TIME_COLUMNS
    (length,) = _LENGTH.unpack_from(view, at)
    at += _LENGTH.size
    offsets = decode_offsets(view[at : at + length])
    if len(offsets) != count:
        raise LogDamaged(f"a log row has {len(offsets)} offsets for {count} messages")
    return Restating(offsets, *times.astype(np.int64)), at + length
