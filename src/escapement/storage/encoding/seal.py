"""Checksums for encoded data: a CRC-32 of all bytes, stored after the head.

head | crc32 u32 of head and rest | rest
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
    """Return the head, the checksum and the parts. Each part is copied once."""
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
    """Return a view of sealed data: the head, the checksum and the parts.

    Args:
      least_bytes: no valid data is shorter. Includes head and checksum.
      what: the data in an error message, such as "a log row".

    Raises:
      LogDamaged: or ``damaged``, if the data is too short or differs from its checksum.
    """
    view = memoryview(data)
    if len(view) < least_bytes:
        raise damaged(f"{what} of {len(view)} bytes has no header")
    (crc,) = _CRC.unpack_from(view, head_bytes)
    if crc32(view[head_bytes + _CRC.size :], crc32(view[:head_bytes])) != crc:
        raise damaged(f"{what} fails its checksum")
    return view
