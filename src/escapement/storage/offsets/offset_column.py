"""Encoding of a set of message offsets as bytes: small, fast to write, and with a checksum.

The journal in the database stores acknowledged offsets in this encoding. There are two forms, and
the encoder uses the smaller one:

- *gaps*: the distance from each offset to the next, all in one width of 1, 2, 4 or 8 bytes. A
  thousand offsets scattered over a million take two bytes each.
- *runs*: for each run of consecutive offsets its length, and the distance from its last offset to
  the first of the next run. A million consecutive offsets take a few bytes together.

Layout, little-endian::

    form u8 | length width u8 | distance width u8 | 0 u8 | count u32 | first i64
    lengths  (runs: count values, each one less than the run's length; gaps: none)
    distances (count - 1 values, each one less than the distance)
    crc32 of all of the above, u32

Each length and distance is stored less one, so that any bytes in this layout decode to strictly
increasing offsets. An empty set has no bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s, UInt64s

_HEADER: Final = struct.Struct("<BBBxIq")
_CRC: Final = struct.Struct("<I")
_GAPS: Final = 1
_RUNS: Final = 2
_WIDTHS: Final = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
# A column has far fewer offsets. The decoder checks this before it allocates memory.
_MOST_OFFSETS: Final = 1 << 28
# The decoder adds up distances as floats before it adds them as integers. If the sum of floats is
# at most this, the sum of integers fits into an int64 in spite of rounding.
_SAFE_SUM: Final = float(2**62)


def encode_offsets(offsets: Int64s) -> bytes:
    """Encode a set of offsets.

    Args:
      offsets: the offsets, not negative, in any order. They may repeat.

    Complexity: O(n) if the offsets are sorted and do not repeat, O(n log n) otherwise.
    """
    count = len(offsets)
    if not count:
        return b""
    steps = np.diff(offsets)
    if count > 1 and int(steps.min()) <= 0:
        offsets = np.sort(offsets)
        steps = np.diff(offsets)
        if not steps.all():
            offsets = offsets[np.append(True, steps > 0)]
            steps = np.diff(offsets)
        count = len(offsets)
    first = int(offsets[0])
    assert first >= 0, first
    assert count <= _MOST_OFFSETS, count
    breaks = np.flatnonzero(steps != 1)
    distances = steps[breaks] - 1
    lengths = np.diff(breaks, prepend=-1, append=count - 1) - 1
    length_width, distance_width = _width(lengths), _width(distances)
    if len(lengths) * length_width + len(distances) * distance_width < len(steps) * distance_width:
        head = _HEADER.pack(_RUNS, length_width, distance_width, len(lengths), first)
        body = head + _pack(lengths, length_width) + _pack(distances, distance_width)
    else:
        head = _HEADER.pack(_GAPS, 0, distance_width, count, first)
        body = head + _pack(steps - 1, distance_width)
    return body + _CRC.pack(crc32(body))


def decode_offsets(data: Buffer) -> Int64s:
    """Decode a set of offsets. Return them strictly increasing; int64[n]. O(n).

    Raises:
      LogDamaged: if ``data`` fails its checksum or is not in the layout above.
    """
    view = memoryview(data)
    if not len(view):
        return np.zeros(0, np.int64)
    if len(view) < _HEADER.size + _CRC.size:
        raise LogDamaged(f"a column of offsets is truncated to {len(view)} bytes")
    body = view[: -_CRC.size]
    if crc32(body) != _CRC.unpack(view[-_CRC.size :])[0]:
        raise LogDamaged("a column of offsets fails its checksum")
    form, length_width, distance_width, count, first = _HEADER.unpack_from(body)
    known = (form == _GAPS and length_width == 0) or (form == _RUNS and length_width in _WIDTHS)
    if not known or distance_width not in _WIDTHS or first < 0:
        raise LogDamaged(f"a column of offsets has an unknown form ({form}) or a bad header")
    length_bytes = count * length_width
    if len(body) != _HEADER.size + length_bytes + (count - 1) * distance_width:
        raise LogDamaged(f"a column of {count} offsets cannot be {len(view)} bytes long")
    distances = _unpack(body, distance_width, count - 1, _HEADER.size + length_bytes)
    if form == _GAPS:
        return _accumulate(first, distances)
    lengths = _unpack(body, length_width, count, _HEADER.size)
    if lengths.sum(dtype=np.float64) + count > _MOST_OFFSETS:
        raise LogDamaged(f"a column of offsets has more than {_MOST_OFFSETS}")
    if distances.sum(dtype=np.float64) > _SAFE_SUM:
        raise LogDamaged("a column of offsets exceeds the highest possible offset")
    starts = _accumulate(first, distances + lengths[:-1])
    heights = lengths.astype(np.int64) + 1
    ends = np.cumsum(heights)
    return np.repeat(starts - (ends - heights), heights) + np.arange(int(ends[-1]))


def _accumulate(first: int, steps_less_one: UInt64s) -> Int64s:
    """Return ``first`` and the n offsets after it; int64[n + 1].

    Args:
      steps_less_one: the distance from each offset to the next, less one.

    Raises:
      LogDamaged: if an offset would be too large.
    """
    if first + float(steps_less_one.sum(dtype=np.float64)) + len(steps_less_one) > _SAFE_SUM:
        raise LogDamaged("a column of offsets exceeds the highest possible offset")
    offsets = np.empty(len(steps_less_one) + 1, np.int64)
    offsets[0] = first
    np.cumsum(steps_less_one.astype(np.int64) + 1, out=offsets[1:])
    offsets[1:] += first
    return offsets


def _width(values: Int64s) -> int:
    largest = int(values.max()) if len(values) else 0
    return next(width for width in _WIDTHS if largest < 1 << (8 * width))


def _pack(values: Int64s, width: int) -> bytes:
    return values.astype(_WIDTHS[width]).tobytes()


def _unpack(body: memoryview, width: int, count: int, at: int) -> UInt64s:
    return np.frombuffer(body, _WIDTHS[width], count, at).astype(np.uint64)
