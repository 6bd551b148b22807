"""An inbox entry and its encoding.

An *inbox entry* is a batch of messages that waits in the database to be moved into the log of a
topic, its *target*. The entry names the target by the topic's full name. So it can be written
before the topic exists, and by a broker that does not own the topic. The entry's ``source_id``
names its cause, such as "schedule/7/1798113600000". If two entries for one target have the same
source id, the second is a repetition of the first. Layout, little-endian::

    version u8 | flags u8 | 0 u16 | messages u32 | crc32 u32
    delays   if flags & 1: i64 for each message, the delay in ms (message.Times), -1 for none
    times    if flags & 2: i64 for each message, the due time (message.Times), -1 for none
    digests  if flags & 8: 16 bytes for each message (dedup.py), zero bytes for no dedup key
    body     message.MessageBatch.encode; compressed by zlib if flags & 4

An entry with flags & 16 has requests to cancel or reschedule earlier messages instead
(amend_request.py). It has no columns, and ``messages`` is the number of requests.

The checksum covers everything but itself. No I/O.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from escapement.dedup import DIGEST, Digests
from escapement.errors import InboxEntryDamaged, RemoteProtocolError
from escapement.message import NO_TIMES, Buffer, Int64s, MessageBatch, Times
from escapement.storage.encoding.seal import SEAL_BYTES, sealed, unsealed

# Limits of a target and a source id, which the columns of the database set.
MAX_TARGET_BYTES: Final = 640
MAX_SOURCE_ID_CHARS: Final = 255
# Limits of an inbox entry. It must fit into a packet of the database, and its body into a log row.
MAX_ENTRY_BYTES: Final = 8 << 20
MAX_ENTRY_MESSAGES: Final = 65_536
# Size of the sample of a body that decides whether the body is compressed. Bodies that shrink to a
# tenth, such as JSON records, compress at 300 MB/s, faster than a database stores them. Bodies that
# shrink to a half compress at 80 MB/s, which costs more than it saves.
_SAMPLE_BYTES: Final = 16 << 10
_FASTEST: Final = 1

_VERSION: Final = 1
_HAS_DELAYS: Final = 1
_HAS_TIMES: Final = 2
_COMPRESSED: Final = 4
_HAS_DIGESTS: Final = 8
_AMENDS: Final = 16
_FLAGS: Final = _HAS_DELAYS | _HAS_TIMES | _COMPRESSED | _HAS_DIGESTS
_HEAD: Final = struct.Struct("<BBxxI")
_START: Final = _HEAD.size + SEAL_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class InboxEntry:
    """A batch of ``count`` messages for the topic named ``target``.

    ``body`` is the encoded batch as a row of the log stores it, perhaps compressed. If ``amends``
    is set, ``body`` has ``count`` requests about earlier messages instead (amend_request.py).
    """

    target: str
    source_id: str
    body: Buffer
    count: int
    times: Times = NO_TIMES
    inflated_bytes: int = 0  # size of the body before it was compressed; 0: it is not compressed
    digests: Digests | None = None  # of the messages' dedup keys, V16[count]
    amends: bool = False

    def __post_init__(self) -> None:
        assert 0 < len(self.target.encode()) <= MAX_TARGET_BYTES, "no target, or too long"
        assert 0 < len(self.source_id) <= MAX_SOURCE_ID_CHARS, "no source id, or too long"
        assert 0 < self.count <= MAX_ENTRY_MESSAGES, "no messages, or too many"
        assert self.size_bytes <= MAX_ENTRY_BYTES, "an inbox entry too large for a packet"

    @property
    def size_bytes(self) -> int:
        """Size of the encoded entry with its body decompressed."""
        columns = (self.times.delay_ms, self.times.at_ms)
        body_bytes = self.inflated_bytes or len(self.body)
        row_bytes = 8 * sum(c is not None for c in columns)
        row_bytes += DIGEST.itemsize * (self.digests is not None)
        return _START + row_bytes * self.count + body_bytes


def encode_inbox_entry(inbox_entry: InboxEntry) -> bytes:
    """Return the times and the body of an entry as bytes, without its target and source id.

    The inbox stores the target and the source id in other columns.
    """
    flags, parts = 0, []
    for flag, column in (
        (_HAS_DELAYS, inbox_entry.times.delay_ms),
        (_HAS_TIMES, inbox_entry.times.at_ms),
    ):
        if column is not None:
            assert len(column) == inbox_entry.count, (
                "number of times differs from number of messages"
            )
            flags |= flag
            parts.append(column.astype("<i8", copy=False).tobytes())
    if inbox_entry.digests is not None:
        assert len(inbox_entry.digests) == inbox_entry.count, "a digest is missing"
        flags |= _HAS_DIGESTS
        parts.append(inbox_entry.digests.tobytes())
    flags |= _COMPRESSED * bool(inbox_entry.inflated_bytes) | _AMENDS * inbox_entry.amends
    head = _HEAD.pack(_VERSION, flags, inbox_entry.count)
    return sealed(head, [*parts, inbox_entry.body])


class Content(NamedTuple):
    """The decoded content of an inbox entry."""

    batch: MessageBatch
    times: Times
    body: Buffer  # the encoded batch, not compressed
    digests: Digests | None  # of the messages' dedup keys; None if no message has one


def decode_inbox_entry(data: Buffer) -> Content:
    """Decode an inbox entry. The messages are views into ``data`` unless it is compressed.

    Raises:
      InboxEntryDamaged: if ``encode_inbox_entry`` did not produce these bytes.
    """
    if len(data) > MAX_ENTRY_BYTES:
        raise InboxEntryDamaged(f"an inbox entry cannot have {len(data)} bytes")
    view = unsealed(data, _HEAD.size, _START, "an inbox entry", InboxEntryDamaged)
    version, flags, count = _HEAD.unpack_from(view)
    if version != _VERSION or flags & ~_FLAGS:
        raise InboxEntryDamaged(
            f"an inbox entry has the unknown version {version} or flags {flags:#x}"
        )
    at = _START
    columns: list[Int64s | None] = []
    for flag in (_HAS_DELAYS, _HAS_TIMES):
        if not flags & flag:
            columns.append(None)
            continue
        if len(view) - at < 8 * count:
            raise InboxEntryDamaged("an inbox entry ends inside its times")
        columns.append(np.frombuffer(view, "<i8", count, at).astype(np.int64, copy=False))
        at += 8 * count
    digests: Digests | None = None
    if flags & _HAS_DIGESTS:
        if len(view) - at < DIGEST.itemsize * count:
            raise InboxEntryDamaged("an inbox entry ends inside its digests")
        digests = np.frombuffer(view, DIGEST, count, at)
        at += DIGEST.itemsize * count
    try:
        body: Buffer = _inflated(view[at:]) if flags & _COMPRESSED else view[at:]
        batch = MessageBatch.decode(body)
    except RemoteProtocolError as error:
        raise InboxEntryDamaged(f"the body of an inbox entry does not decode: {error}") from error
    if len(batch) != count or not 0 < count <= MAX_ENTRY_MESSAGES:
        raise InboxEntryDamaged(f"an inbox entry for {count} messages has {len(batch)} in its body")
    times = Times(*columns) if flags & (_HAS_DELAYS | _HAS_TIMES) else NO_TIMES
    return Content(batch, times, body, digests)


def amend_body(data: Buffer) -> memoryview | None:
    """Return the body of an entry of requests; None if the entry has messages.

    Raises:
      InboxEntryDamaged: if ``encode_inbox_entry`` did not produce these bytes.
    """
    # Look at the flags first: the checksum of a large entry of messages costs a millisecond.
    if len(data) < _START or memoryview(data)[1] != _AMENDS:
        return None
    return unsealed(data, _HEAD.size, _START, "an inbox entry", InboxEntryDamaged)[_START:]


def compressed(body: bytes) -> bytes | None:
    """Return the body of an entry compressed, or None if compression would save too little.

    It compresses a sample first, and the whole body if the sample shrinks to a third or less.
    """
    middle = len(body) // 2
    sample = memoryview(body)[middle : middle + _SAMPLE_BYTES]
    if len(zlib.compress(sample, _FASTEST)) > len(sample) // 3:
        return None
    return zlib.compress(body, _FASTEST)


def _inflated(data: Buffer) -> bytes:
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(data, MAX_ENTRY_BYTES)
    except zlib.error as error:
        raise InboxEntryDamaged(f"an inbox entry does not decompress: {error}") from error
    if not inflater.eof or inflater.unused_data:
        raise InboxEntryDamaged("the compressed body of an inbox entry is incomplete or too large")
    return body
