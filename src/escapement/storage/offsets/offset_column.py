"""A set of offsets as bytes: small, fast to write, and verified when it is read.

The journal stores acknowledged offsets in this way. There are two forms; encoding uses the
smaller one:

- *gaps*: the distance from each offset to the next, all in one width of 1, 2, 4 or 8
  bytes. A thousand offsets scattered over a million take two bytes each.
- *runs*: for each unbroken run its length and the distance to the next run. A million
  neighbours take a few bytes together.

Layout, little-endian::

    form u8 | length width u8 | distance width u8 | 0 u8 | count u32 | first i64
    lengths  (runs: count values, each one less than the run's length; gaps: none)
    distances (count - 1 values, each one less than the distance)
    crc32 of all of the above, u32

One less than each length and distance is stored. So all bytes that fit the layout mean a
strictly increasing sequence. An empty set has no bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s

UInt64s = npt.NDArray[np.uint64]

_HEADER: Final = struct.Struct("<BBBxIq")
_CRC: Final = struct.Struct("<I")
_GAPS: Final = 1
_RUNS: Final = 2
_WIDTHS: Final = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
# Sums of distances are checked as floats before they are used as integers. Below this bound,
# rounding cannot hide an overflow of int64.
_SAFE_SUM: Final = float(2**62)


def encode_offsets(offsets: Int64s) -> bytes:
    """Return the bytes of a set, given as ``offsets`` >= 0 in any order, duplicates allowed.

    O(n) if they are sorted, O(n log n) otherwise.
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
    """Return the offsets in ``data``, strictly increasing; int64[n]. O(n).

    Raises:
      LogDamaged: if ``encode_offsets`` did not make ``data``.
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
    starts = _accumulate(first, distances + lengths[:-1])
    heights = lengths.astype(np.int64) + 1
    ends = np.cumsum(heights)
    return np.repeat(starts - (ends - heights), heights) + np.arange(int(ends[-1]))


def _accumulate(first: int, steps_less_one: UInt64s) -> Int64s:
    """Return ``first`` and every offset that the steps lead to; int64[n + 1]."""
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
