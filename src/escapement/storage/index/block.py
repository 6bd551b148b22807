"""Blocks: what a segment is made of, each with its length, version and checksum.

Owns the frame around every piece of the index on disk, and the bounded cache of blocks
that were read. A block is 24 bytes of header and a body:

    ==========  ======  ===========================================================
    checksum    uint32  CRC-32 of everything behind it, header and body
    kind        uint8   KEYS, MESSAGES, FOOTER or TRAITS
    version     uint8   1
    reserved    uint16  0
    rows        uint32
    reserved    uint32  0
    body bytes  uint64
    ==========  ======  ===========================================================

The body of KEYS is ``due_ms`` int64[rows], then ``offsets`` int64[rows]; the body of
MESSAGES is the body of a ``MessageBatch``, that of TRAITS uint32[rows]. All integers are
little-endian.

Knows nothing of topics or of where a block lies. Whatever does not decode raises
``IndexDamaged``: a block either is what was written, or is refused.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged, RemoteProtocolError
from escapement.message import Blobs, Buffer, MessageBatch, UInt32s
from escapement.storage.index.columns import FixedColumns
from escapement.storage.index.keys import Keys
from escapement.traits import traits_of

KEYS, MESSAGES, FOOTER, TRAITS = 1, 2, 3, 4
_VERSION: Final = 1
_CHECKSUM: Final = struct.Struct("<I")
_FIELDS: Final = struct.Struct("<BBHIIQ")
HEADER_BYTES: Final = _CHECKSUM.size + _FIELDS.size


def encode(kind: int, rows: int, body: Sequence[Buffer]) -> list[Buffer]:
    """The block around ``body``; both in pieces, so that nothing is copied."""
    fields = _FIELDS.pack(kind, _VERSION, 0, rows, 0, sum(map(len, body)))
    checksum = crc32(fields)
    for piece in body:
        checksum = crc32(piece, checksum)
    return [_CHECKSUM.pack(checksum) + fields, *body]


def decode(block: bytes, kind: int, where: str) -> tuple[int, memoryview]:
    """The rows and the body of a block; ``where`` names it in errors.

    Raises:
      IndexDamaged: it is torn, altered, or not of this kind and version.
    """
    if len(block) < HEADER_BYTES:
        raise IndexDamaged(f"{where}: a block of {len(block)} bytes is shorter than its header")
    view = memoryview(block)
    if crc32(view[_CHECKSUM.size :]) != _CHECKSUM.unpack_from(view)[0]:
        raise IndexDamaged(f"{where}: a block fails its checksum")
    found, version, _, rows, _, size = _FIELDS.unpack_from(view, _CHECKSUM.size)
    if (found, version, size) != (kind, _VERSION, len(block) - HEADER_BYTES):
        raise IndexDamaged(f"{where}: a block of kind {found}, version {version}, {size} bytes")
    return rows, view[HEADER_BYTES:]


@dataclass(frozen=True, slots=True)
class KeyBlock:
    """Sorted keys of up to a few thousand messages."""

    keys: Keys
    file_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.file_bytes

    @classmethod
    def encode(cls, keys: Keys) -> list[Buffer]:
        body = [column.astype("<i8", copy=False).tobytes() for column in keys]
        return encode(KEYS, len(keys[0]), body)

    @classmethod
    def decode(cls, block: bytes, where: str) -> KeyBlock:
        rows, body = decode(block, KEYS, where)
        if len(body) != 16 * rows:
            raise IndexDamaged(f"{where}: {rows} keys in {len(body)} bytes")
        columns = np.frombuffer(body, "<i8").reshape(2, rows)
        return cls((columns[0], columns[1]), len(block))

    @classmethod
    def of(cls, keys: Keys) -> KeyBlock:
        """What ``decode`` would give of these keys, which are copied."""
        due_ms, offsets = keys
        return cls((due_ms.copy(), offsets.copy()), HEADER_BYTES + 16 * len(due_ms))


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """The messages of a key block, row by row, as columns to gather from."""

    columns: FixedColumns
    file_bytes: int

    @property
    def size_bytes(self) -> int:
        # The starts of its strings are counted with it: eight bytes a row each.
        return self.file_bytes + 8 * len(self.columns.payloads.lengths)

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
            raise IndexDamaged(f"{where}: {len(batch)} messages in a block of {rows}")
        return cls(FixedColumns.of(batch), len(block))

    @classmethod
    def of(cls, batch: MessageBatch) -> MessageBlock:
        """What ``decode`` would give of these messages, which are copied."""
        body = batch.encode()
        return cls(FixedColumns.of(MessageBatch.decode(body)), HEADER_BYTES + len(body))

    def traits(self) -> UInt32s | None:
        """The messages' traits, from keys and priorities."""
        columns, keys = self.columns, None
        if columns.keys is not None:
            keys = Blobs(columns.keys.lengths, columns.keys.data)
        rows = len(columns.payloads.lengths)
        return traits_of(MessageBatch(Blobs.empty(rows), keys, None, columns.priorities))


@dataclass(frozen=True, slots=True)
class TraitBlock:
    """The traits of a key block, row by row."""

    traits: UInt32s
    file_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.file_bytes

    @classmethod
    def encode(cls, traits: UInt32s) -> list[Buffer]:
        return encode(TRAITS, len(traits), [traits.astype("<u4", copy=False).tobytes()])

    @classmethod
    def decode(cls, block: bytes, where: str) -> TraitBlock:
        rows, body = decode(block, TRAITS, where)
        if len(body) != 4 * rows:
            raise IndexDamaged(f"{where}: {rows} traits in {len(body)} bytes")
        return cls(np.frombuffer(body, "<u4"), len(block))

    @classmethod
    def of(cls, traits: UInt32s) -> TraitBlock:
        """What ``decode`` would give of these traits, which are copied."""
        return cls(traits.copy(), HEADER_BYTES + 4 * len(traits))


Block = KeyBlock | MessageBlock | TraitBlock


class BlockCache:
    """The blocks read last, of all segments, up to a number of bytes; for any thread."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._size_bytes = 0
        self._lock = Lock()

    def peek(self, place: tuple[int, int]) -> Block | None:
        """The block, if it is here."""
        with self._lock:
            block = self._blocks.get(place)
            if block is not None:
                self._blocks.move_to_end(place)
            return block

    def get(self, place: tuple[int, int], load: Callable[[], Block]) -> Block:
        """The block at (segment, position); read by ``load`` if it is not here.

        Two threads that miss at once both load; the lock is never held over a read.
        """
        block = self.peek(place)
        if block is not None:
            return block
        block = load()
        self.put(place, block)
        return block

    def put(self, place: tuple[int, int], block: Block) -> None:
        """Remember the block at (segment, position)."""
        if block.size_bytes > self.capacity_bytes:
            return
        with self._lock:
            if place not in self._blocks:
                self._blocks[place] = block
                self._size_bytes += block.size_bytes
            while self._size_bytes > self.capacity_bytes:
                _, evicted = self._blocks.popitem(last=False)
                self._size_bytes -= evicted.size_bytes
