"""Blocks: the parts of a segment file of the index, each with its length, version and checksum.

This module owns the format of blocks, and the bounded cache of blocks that were read. A block is a
header of 24 bytes and a body:

    ==========  ======  ===========================================================
    checksum    uint32  CRC-32 of everything after it, header and body
    kind        uint8   KEYS, MESSAGES, FOOTER or TRAITS
    version     uint8   1
    reserved    uint16  0
    rows        uint32
    reserved    uint32  0
    body bytes  uint64
    ==========  ======  ===========================================================

A *row* is a message. The body of KEYS has the keys of messages: ``due_ms`` int64[rows], then
``offsets`` int64[rows]. The body of MESSAGES is an encoded ``MessageBatch`` with the messages
themselves. The body of TRAITS is uint32[rows]: each message's *traits*, its priority and a hash of
its message key. The FOOTER is the table of contents of the segment (see ``segment.py``). All
integers are little-endian.

This module knows nothing of topics or of the position of a block. A block that does not decode
raises ``IndexDamaged``, so a reader gets exactly the bytes written or an error.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged, RemoteProtocolError
from escapement.message import Buffer, MessageBatch, UInt32s
from escapement.storage.index.columns import FixedColumns
from escapement.storage.index.keys import Keys

KEYS, MESSAGES, FOOTER, TRAITS = 1, 2, 3, 4
_VERSION: Final = 1
_CHECKSUM: Final = struct.Struct("<I")
_FIELDS: Final = struct.Struct("<BBHIIQ")
HEADER_BYTES: Final = _CHECKSUM.size + _FIELDS.size


def encode(kind: int, rows: int, body: Sequence[Buffer]) -> list[Buffer]:
    """Return the block with this body. Body and block are lists of pieces, to avoid copies."""
    fields = _FIELDS.pack(kind, _VERSION, 0, rows, 0, sum(map(len, body)))
    checksum = crc32(fields)
    for piece in body:
        checksum = crc32(piece, checksum)
    return [_CHECKSUM.pack(checksum) + fields, *body]


def decode(block: bytes, kind: int, where: str) -> tuple[int, memoryview]:
    """Verify a block, and return its number of rows and its body.

    Args:
      kind: the expected kind of the block.
      where: names the block in error messages.

    Raises:
      IndexDamaged: if the block is torn or altered, or has another kind or version.
    """
    if len(block) < HEADER_BYTES:
        raise IndexDamaged(f"{where}: a block of {len(block)} bytes is shorter than its header")
    view = memoryview(block)
    if crc32(view[_CHECKSUM.size :]) != _CHECKSUM.unpack_from(view)[0]:
        raise IndexDamaged(f"{where}: a block fails its checksum")
    found, version, _, rows, _, size = _FIELDS.unpack_from(view, _CHECKSUM.size)
    if (found, version, size) != (kind, _VERSION, len(block) - HEADER_BYTES):
        raise IndexDamaged(
            f"{where}: unexpected block of kind {found}, version {version}, {size} bytes"
        )
    return rows, view[HEADER_BYTES:]


@dataclass(frozen=True, slots=True)
class KeyBlock:
    """A block with the sorted keys of up to a few thousand messages."""

    keys: Keys
    size_bytes: int

    @classmethod
    def encode(cls, keys: Keys) -> list[Buffer]:
        body = [column.astype("<i8", copy=False).tobytes() for column in keys]
        return encode(KEYS, len(keys[0]), body)

    @classmethod
    def decode(cls, block: bytes, where: str) -> KeyBlock:
        rows, body = decode(block, KEYS, where)
        if len(body) != 16 * rows:
            raise IndexDamaged(f"{where}: {len(body)} bytes do not hold {rows} keys")
        columns = np.frombuffer(body, "<i8").reshape(2, rows)
        return cls((columns[0], columns[1]), len(block))


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """A block with the messages whose keys are in a ``KeyBlock``, in the same order."""

    columns: FixedColumns
    size_bytes: int

    @classmethod
    def encode(cls, batch: MessageBatch) -> list[Buffer]:
        return encode(MESSAGES, len(batch), batch.encode_parts())

    @classmethod
    def decode(cls, block: bytes, where: str) -> MessageBlock:
        rows, body = decode(block, MESSAGES, where)
        try:
            batch = MessageBatch.decode(body)
        except RemoteProtocolError as error:
            raise IndexDamaged(f"{where}: {error}") from error
        if len(batch) != rows:
            raise IndexDamaged(f"{where}: a block of {rows} rows has {len(batch)} messages")
        # Decoding computed where each payload starts, which takes eight bytes a row.
        return cls(FixedColumns.of(batch), len(block) + 8 * rows)


@dataclass(frozen=True, slots=True)
class TraitBlock:
    """A block with the traits of the messages whose keys are in a ``KeyBlock``."""

    traits: UInt32s
    size_bytes: int

    @classmethod
    def encode(cls, traits: UInt32s) -> list[Buffer]:
        return encode(TRAITS, len(traits), [traits.astype("<u4", copy=False).tobytes()])

    @classmethod
    def decode(cls, block: bytes, where: str) -> TraitBlock:
        rows, body = decode(block, TRAITS, where)
        if len(body) != 4 * rows:
            raise IndexDamaged(f"{where}: {len(body)} bytes do not hold {rows} traits")
        return cls(np.frombuffer(body, "<u4"), len(block))


Block = KeyBlock | MessageBlock | TraitBlock


class BlockCache:
    """A cache of the most recently used blocks of all segments, bounded in bytes; thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._size_bytes = 0
        self._lock = Lock()

    def get(self, address: tuple[int, int]) -> Block | None:
        """Return the block at ``address``, a pair (segment, position), or None if not cached."""
        with self._lock:
            block = self._blocks.get(address)
            if block is not None:
                self._blocks.move_to_end(address)
            return block

    def put(self, address: tuple[int, int], block: Block) -> None:
        """Add the block at ``address``, a pair (segment, position), unless it is too large.

        Evicts the blocks that were not used for the longest time. Two threads that look for a
        block at the same time may both read it and add it, because no lock is held during a read.
        """
        if block.size_bytes > self.capacity_bytes:
            return
        with self._lock:
            if address not in self._blocks:
                self._blocks[address] = block
                self._size_bytes += block.size_bytes
            while self._size_bytes > self.capacity_bytes:
                _, evicted = self._blocks.popitem(last=False)
                self._size_bytes -= evicted.size_bytes
