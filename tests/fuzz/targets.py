"""The fuzzed functions: each takes any bytes, and raises only for a bug.

Checksums keep random bytes out of the code behind them. So the targets of stored data also put
correct checksums around the input.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import msgpack
import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged, RemoteProtocolError
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.storage.index.keys import KEY_MAX, KEY_MIN
from escapement.storage.index.segments import block
from escapement.storage.index.segments.manifest import Manifest
from escapement.storage.index.segments.segment import (
    HEADER,
    RUN_COLUMNS,
    TRAILER,
    TRAILER_END,
    Segment,
)
from support.messages.command_samples import BODY, HELLO, SAMPLES, WELCOME

_LENGTH: Final = struct.Struct(">I")
_REST: Final = 0xFF  # as the length of a frame: it takes all of the input that is left
_BLOCKS: Final = (block.KeyBlock, block.MessageBlock, block.TraitBlock)
_KINDS: Final = (block.KEYS, block.MESSAGES, block.TRAITS)


def frames(data: bytes) -> int:
    """Receive frames at one end of a connection, and return their number.

    The first byte chooses the end, its state, and whether the rest are raw bytes of the stream. If
    not, the rest has frames, each behind its length in one byte.
    """
    if not data:
        return 0
    flags, rest = data[0], data[1:]
    if flags & 4:
        return _receive(flags, [rest[at : at + 1 + flags] for at in range(0, len(rest), 1 + flags)])
    return sum(_receive(flags, [_LENGTH.pack(len(one)) + one]) for one in _cut(rest))


def _cut(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = data[at] if data[at] != _REST else len(data)
        yield data[at + 1 : at + 1 + size]
        at += 1 + size


def _receive(flags: int, pieces: list[bytes]) -> int:
    end = Connection("client" if flags & 1 else "broker")
    if flags & 2:
        end._open(WELCOME)
    found = 0
    try:
        for piece in pieces:
            end.receive_data(piece)
            for event in end.events():
                found += 1
                if isinstance(event, wire.Publish | wire.Deliver):
                    event.decode()
    except RemoteProtocolError:
        found += 1
    return found


def blocks(data: bytes) -> int:
    """Decode a block of a segment with a correct checksum; the first bytes choose the kind."""
    if len(data) < 3:
        return 0
    at, rows, body = data[0] % len(_KINDS), int.from_bytes(data[1:3], "little"), data[3:]
    with suppress(IndexDamaged):
        _BLOCKS[at].decode(b"".join(block.encode(_KINDS[at], rows, [body])), "fuzz")
    with suppress(IndexDamaged):
        _BLOCKS[at].decode(data, "fuzz")
    return 2


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="escapement-fuzz-")


def segments(data: bytes) -> int:
    """Read a segment file whose directory and blocks have correct checksums.

    The first byte chooses how many topics and runs the directory has, or that the rest is a whole
    file.
    """
    if not data:
        return 0
    path = Path(_scratch().name) / "fuzz.segment"
    path.write_bytes(_segment(data))
    with suppress(IndexDamaged):
        segment = Segment(path, block.BlockCache(1 << 20))
        segment.topic_offsets()
        for topic in segment.topic_ids.tolist():
            part = segment.slice(topic)
            if part is None:
                continue
            span = part.between(KEY_MIN, KEY_MAX)
            assert span is None or span.likely_count <= span.count
            for run in part.runs:
                due_ms, offsets = segment.key_block(run).keys
                segment.traits(run)
                segment.message_block(run)
                part.find(due_ms[:4], offsets[:4])
    return 1


def _segment(data: bytes) -> bytes:
    if data[0] == 0:
        return data[1:]
    topics, runs = data[0] % 4, data[0] // 4 % 4
    width = 8 * (2 * topics + len(RUN_COLUMNS) * runs) + (data[0] >> 7)
    directory, body = data[1 : 1 + width], data[1 + width :]
    keys = block.encode(block.KEYS, len(body) // 16, [body[: len(body) // 16 * 16]])
    start = HEADER + bytes(16 - len(HEADER)) + b"".join(keys)
    counts = struct.pack("<QQ", topics, runs)
    footer = b"".join(block.encode(block.FOOTER, runs, [counts, directory]))
    trailer = TRAILER.pack(len(start), len(footer))
    return start + footer + trailer + struct.pack("<I", crc32(trailer)) + TRAILER_END


def manifests(data: bytes) -> int:
    """Decode a manifest, as it is and behind a correct checksum."""
    for content in (data, b"escapement index manifest 1 %08x\n" % crc32(data) + data):
        with suppress(IndexDamaged):
            Manifest.decode(content, "fuzz").encode()
    return 2


TARGETS: Final[dict[str, Callable[[bytes], int]]] = {
    "frames": frames,
    "blocks": blocks,
    "segments": segments,
    "manifests": manifests,
}


def seeds(target: str) -> list[bytes]:
    """Return valid input, from which a fuzzer begins."""
    if target == "frames":
        packed = [msgpack.packb(one.write()) for one in [HELLO, *SAMPLES]]
        short = [bytes([flags, len(one)]) + one for one in packed for flags in (2, 3, 0xFA)]
        raw = b"".join(_LENGTH.pack(len(one)) + one for one in packed[:1])
        return [*short, b"\x04" + raw, b"\xfc" + raw]
    if target == "blocks":
        return [
            b"\0\x02\0" + np.arange(4, dtype="<i8").tobytes(),
            b"\x01\x03\0" + bytes(BODY),
            b"\x02\x02\0" + bytes(8),
        ]
    if target == "segments":
        run = np.array([5, 1, 6, 2, 1, 2, 2, 16, 60, 0], "<i8").tobytes()
        keys = np.array([5, 6, 1, 2], "<i8").tobytes()
        return [bytes([5]) + np.array([1, 0], "<i8").tobytes() + run + keys, b"\0" + HEADER]
    from escapement.storage.index import Lineage
    from escapement.storage.index.segments.manifest import Mark

    manifest = Manifest(
        "log", {0: (7, b"ab")}, {"1.segment": 9}, Lineage(Mark("i", 1), None), 5, {0: (8, b"cd")}
    )
    whole = manifest.encode()
    return [whole, whole.partition(b"\n")[2]]
