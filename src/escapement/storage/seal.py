"""The seal of what is stored as bytes: a CRC-32 of everything, between its head and the rest.

head | crc32 u32, of head and rest | rest
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from escapement.message import Buffer

_CRC: Final = struct.Struct("<I")
SEAL_BYTES: Final = _CRC.size


def sealed(head: bytes, parts: Sequence[Buffer]) -> bytes:
    """The head, the seal, and the parts; each is copied once."""
    crc = zlib.crc32(head)
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join([head, _CRC.pack(crc), *parts])


def is_whole(view: memoryview, head_bytes: int) -> bool:
    """Whether these are bytes as they were sealed; no fewer than head and seal take."""
    (crc,) = _CRC.unpack_from(view, head_bytes)
    return zlib.crc32(view[head_bytes + _CRC.size :], zlib.crc32(view[:head_bytes])) == int(crc)
