"""Encoding of an int64 column with 0, 1, 2, 4 or 8 bytes for each value.

The width is the smallest that fits the differences between the values. It is 0 if all are equal.

Layout, little-endian::

    least value i64 | width u8 | each value less the least value

The encoding has neither a length nor a checksum; the enclosing structure has both. This module does
no I/O.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from escapement.message import Int64s

_HEAD: Final = struct.Struct("<qB")
_WIDTHS: Final = {0: "<u1", 1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def encode_narrow(values: Int64s) -> bytes:
    """Encode a column of at least one value."""
    least = int(values.min())
    span = int(values.max()) - least
    width = next(width for width in _WIDTHS if span < 1 << (8 * width))
    head = _HEAD.pack(least, width)
    if not width:
        return head
    # Subtract as unsigned integers, modulo 2^64, so that differences beyond 2^63 are correct too.
    return (
        head
        + (values.view(np.uint64) - np.int64(least).view(np.uint64))
        .astype(_WIDTHS[width])
        .tobytes()
    )


def decode_narrow(view: memoryview, count: int) -> tuple[Int64s, memoryview]:
    """Decode a column of ``count`` values. Return it and the bytes that follow it.

    Raises:
      ValueError: if the bytes do not begin with an encoded column of this length.
    """
    if len(view) < _HEAD.size:
        raise ValueError("a column has no header")
    least, width = _HEAD.unpack_from(view)
    end = _HEAD.size + width * count
    if width not in _WIDTHS or len(view) < end:
        raise ValueError("a column has an unknown width, or is cut off")
    if not width:
        return np.full(count, least, np.int64), view[end:]
    above = np.frombuffer(view, _WIDTHS[width], count, _HEAD.size).astype(np.uint64)
    return (above + np.int64(least).view(np.uint64)).view(np.int64), view[end:]
