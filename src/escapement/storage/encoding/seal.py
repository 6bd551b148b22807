"""Checksums for encoded data: a CRC-32 of all bytes, stored after the head.

head | crc32 u32 of head and rest | rest
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
from isal.isal_zlib import crc32

from escapement.message import Buffer
from escapement.storage.engine.result_buffer import Landing

_CRC: Final = struct.Struct("<I")
SEAL_BYTES: Final = _CRC.size
# From this size on, reusing memory pays.
_LONG_BYTES: Final = 64 << 10


def sealed(head: bytes, parts: Sequence[Buffer]) -> bytes:
    """Return the head, the checksum and the parts. Each part is copied once."""
    return b"".join(_pieces(head, parts))


def sealed_into(into: Landing, head: bytes, parts: Sequence[Buffer]) -> Buffer:
    """Return the same as ``sealed``. Long data is put into ``into``, without holding the GIL."""
    pieces = _pieces(head, parts)
    size = sum(map(len, pieces))
    if size < _LONG_BYTES:
        return b"".join(pieces)
    room = into.take(size)
    target = np.frombuffer(room, np.uint8)
    at = 0
    for piece in pieces:
        if len(piece):
            target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return room


def _pieces(head: bytes, parts: Sequence[Buffer]) -> list[Buffer]:
    crc = crc32(head)
    for part in parts:
        crc = crc32(part, crc)
    return [head, _CRC.pack(crc), *parts]


def is_whole(view: memoryview, head_bytes: int) -> bool:
    """Return whether the checksum matches. ``view`` must have at least head and checksum."""
    (crc,) = _CRC.unpack_from(view, head_bytes)
    return crc32(view[head_bytes + _CRC.size :], crc32(view[:head_bytes])) == int(crc)
