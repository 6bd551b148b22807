"""Seals: checksums in encoded data, such as a log row.

Sealed data consists of a head of fixed size, a CRC-32 of all other bytes, and the other parts::

    head | crc32 u32 of head and parts | parts
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from isal.isal_zlib import crc32

from escapement.errors import LogDamaged, StorageError
from escapement.message import Buffer

_CRC: Final = struct.Struct("<I")
SEAL_BYTES: Final = _CRC.size


def sealed(head: bytes, parts: Sequence[Buffer]) -> bytes:
    """Return sealed data: the head, the checksum and the parts, joined with a single copy."""
    crc = crc32(head)
    for part in parts:
        crc = crc32(part, crc)
    return b"".join([head, _CRC.pack(crc), *parts])


def unsealed(
    data: Buffer,
    head_bytes: int,
    least_bytes: int,
    what: str,
    damaged: type[StorageError] = LogDamaged,
) -> memoryview:
    """Verify the checksum of sealed data, and return a view of all of the data.

    Args:
      data: the head, the checksum and the parts.
      head_bytes: the size of the head.
      least_bytes: the smallest size of valid data, head and checksum included.
      what: names the data in error messages, such as "a log row".
      damaged: the class of the error to raise.

    Raises:
      LogDamaged: or ``damaged``, if the data is too short or fails its checksum.
    """
    view = memoryview(data)
    if len(view) < least_bytes:
        raise damaged(f"{what} of {len(view)} bytes has no header")
    (crc,) = _CRC.unpack_from(view, head_bytes)
    if crc32(view[head_bytes + _CRC.size :], crc32(view[:head_bytes])) != crc:
        raise damaged(f"{what} fails its checksum")
    return view
