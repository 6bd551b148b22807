"""Checksums for encoded data: a CRC-32 of all bytes, stored after the head.

head | crc32 u32 of head and rest | rest
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from isal.isal_zlib import crc32

from escapement.message import Buffer

_CRC: Final = struct.Struct("<I")
SEAL_BYTES: Final = _CRC.size


def sealed(head: bytes, parts: Sequence[Buffer]) -> bytes:
    """Return the head, the checksum and the parts. Each part is copied once."""
    crc = crc32(head)
    for part in parts:
        crc = crc32(part, crc)
    return b"".join([head, _CRC.pack(crc), *parts])


def is_whole(view: memoryview, head_bytes: int) -> bool:
    """Return whether the checksum matches. ``view`` must have at least head and checksum."""
    (crc,) = _CRC.unpack_from(view, head_bytes)
    return crc32(view[head_bytes + _CRC.size :], crc32(view[:head_bytes])) == int(crc)
