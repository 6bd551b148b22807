"""Chunks: the pieces of a set of message offsets, each for a range of 2^20 offsets.

Chunk number ``n`` is for the offsets from ``n * 2^20`` on. Offsets in it are stored as their
*remainders*, their lowest 20 bits, in a roaring bitmap. A chunk with all of its offsets is *full*,
and has no bitmap. The functions here cut a column or a range of offsets into chunks, convert
between bitmaps and numpy columns, find offsets that a bitmap lacks, and encode a bitmap as the
bytes of a database row. Nothing here has state.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32
from pyroaring import BitMap, BitMap64

from escapement.errors import LogDamaged
from escapement.message import Buffer, Int64s, UInt32s

# A chunk that is neither empty nor full is one row of the database, of at most about 128 KiB and
# mostly much less. The whole row is written again when the chunk changes. A million
# acknowledgements of consecutive messages write two or three rows.
CHUNK_BITS: Final = 20
CHUNK_SIZE: Final = 1 << CHUNK_BITS

_REMAINDER: Final = CHUNK_SIZE - 1
_CRC_BYTES: Final = 4
# To look up at least this many offsets in a chunk, it is faster to make a table with a flag for
# each of the chunk's 2^20 offsets than to search for each offset.
_MANY: Final = 2048
# If the chunk has more than this many times as many offsets as are looked up, a bitmap of the
# offsets to look up is faster than a table of all offsets in the chunk.
_SPARSE: Final = 4


# -- arrays ----------------------------------------------------------------------


def is_run(offsets: Int64s) -> bool:
    """Return whether ``offsets`` ascend without gaps or repeats; False if there are none."""
    if not len(offsets) or int(offsets[-1]) - int(offsets[0]) + 1 != len(offsets):
        return False
    if len(offsets) == 1:
        return True
    return bool((offsets[1:] > offsets[:-1]).all())


def by_chunk(offsets: Int64s) -> list[tuple[int, UInt32s]]:
    """Divide ``offsets`` by chunk: return each chunk's number and the remainders in it."""
    if not len(offsets):
        return []
    low, high = int(np.minimum.reduce(offsets)), int(np.maximum.reduce(offsets))
    assert low >= 0, low
    if low >> CHUNK_BITS == high >> CHUNK_BITS:
        return [(low >> CHUNK_BITS, remainders_of(offsets))]
    ordered = np.sort(offsets)
    numbers = ordered >> CHUNK_BITS
    bounds = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist()
    return [
        (int(numbers[first]), remainders_of(ordered[first:end])) for first, end in pairwise(bounds)
    ]


def remainders_of(offsets: Int64s) -> UInt32s:
    return offsets.astype(np.uint32) & np.uint32(_REMAINDER)


def as_array(remainders: UInt32s) -> array[int]:
    """Return the remainders as an array, which ``BitMap`` reads much faster than a numpy column."""
    return array("I", remainders.tobytes())


def bitmap_of(remainders: UInt32s) -> BitMap:
    """Return a bitmap of the remainders. They are sorted first, which makes this faster."""
    ordered = remainders.copy()
    ordered.sort()
    return BitMap(as_array(ordered))


def which_of(remainders: UInt32s, chunk: BitMap) -> npt.NDArray[np.bool_]:
    """Return a mask that is true for each of the ``remainders`` that is in the bitmap; bool[n]."""
    if len(remainders) >= _MANY and len(chunk) <= _SPARSE * len(remainders):
        return _flags(chunk)[remainders]
    common = chunk & bitmap_of(remainders)
    if not common:
        return np.zeros(len(remainders), np.bool_)
    if len(remainders) >= _MANY:
        return _flags(common)[remainders]
    found = np.frombuffer(common.to_array(), np.uint32)
    at = np.searchsorted(found, remainders)
    at[at == len(found)] = 0
    return np.asarray(found[at] == remainders)


def _flags(chunk: BitMap) -> npt.NDArray[np.bool_]:
    """Return a flag for each of the 2^20 remainders: whether the bitmap has it."""
    flags = np.zeros(CHUNK_SIZE, np.bool_)
    flags[np.frombuffer(chunk.to_array(), np.uint32)] = True
    return flags


def offsets_of(chunk_no: int, remainders: BitMap) -> Int64s:
    offsets = np.frombuffer(remainders.to_array(), np.uint32).astype(np.int64)
    offsets += chunk_no << CHUNK_BITS
    return offsets


def concatenate(parts: list[Int64s]) -> Int64s:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


# -- ranges -----------------------------------------------------------------------


def edges(first: int, end: int) -> list[tuple[int, int, int]]:
    """Return the parts of the range ``[first, end)`` that do not fill a whole chunk.

    Returns at most two parts ``(chunk_no, low, high)``, where ``[low, high)`` is a range of
    remainders in the chunk.
    """
    assert first >= 0, first
    if first >= end:
        return []
    first_no, low = divmod(first, CHUNK_SIZE)
    end_no, high = divmod(end, CHUNK_SIZE)
    if first_no == end_no:
        return [(first_no, low, high)]
    edges = [(first_no, low, CHUNK_SIZE)] if low else []
    return [*edges, (end_no, 0, high)] if high else edges


def whole_chunks(first: int, end: int) -> tuple[int, int]:
    """Return the chunks that the range ``[first, end)`` covers entirely.

    Returns the number of the first such chunk and that after the last one. If there is none, the
    second number is not greater than the first.
    """
    return -(-first // CHUNK_SIZE), end // CHUNK_SIZE


# -- bitmaps ----------------------------------------------------------------------


def span(low: int, high: int) -> BitMap:
    """Return a bitmap of the numbers in ``[low, high)``."""
    bits = BitMap()
    bits.add_range(low, high)
    return bits


class Bits(Protocol):
    def contains_range(self, start: int, end: int) -> bool: ...


def first_gap(bits: Bits, start: int, end: int) -> int:
    """Return the smallest number in ``[start, end)`` that is not in the bitmap ``bits``.

    Returns ``end`` if the bitmap has all of these numbers.

    Complexity: O(log n) queries of the bitmap.
    """
    # The bitmap has all numbers in [start, low), and the result is in [low, high].
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        if bits.contains_range(low, middle + 1):
            low = middle + 1
        else:
            high = middle
    return low


def runs(bits: BitMap64) -> Iterator[tuple[int, int]]:
    """Yield each run of consecutive numbers in the bitmap ``bits`` as ``(first, last + 1)``."""
    members = np.array(bits.to_array(), np.int64)
    if len(members):
        breaks = np.flatnonzero(np.diff(members) != 1)
        firsts = members[np.concatenate(([0], breaks + 1))]
        lasts = members[np.concatenate((breaks, [len(members) - 1]))]
        yield from zip(firsts.tolist(), (lasts + 1).tolist(), strict=True)


def members(full: BitMap64, low: int, high: int) -> Iterator[int]:
    """Yield the numbers of the full chunks that overlap with the range of offsets ``[low, high)``.

    Args:
      full: the numbers of all full chunks.
    """
    for chunk_no in full.iter_equal_or_larger(low >> CHUNK_BITS):
        if chunk_no << CHUNK_BITS >= high:
            return
        yield chunk_no


# -- rows -------------------------------------------------------------------------


def encode_chunk(chunk: BitMap) -> bytes:
    """Encode a bitmap as the bytes of a row: a checksum, then roaring's portable form.

    Also packs the bitmap itself, so that it takes less memory.
    """
    chunk.run_optimize()
    body: bytes = chunk.serialize()
    return crc32(body).to_bytes(_CRC_BYTES, "little") + body


def decode_chunk(chunk_no: int, row: Buffer) -> BitMap:
    body = bytes(row[_CRC_BYTES:])
    if crc32(body) != int.from_bytes(row[:_CRC_BYTES], "little"):
        raise LogDamaged(f"chunk {chunk_no} of a set of offsets fails its checksum")
    try:
        chunk = BitMap.deserialize(body)
    except (ValueError, IndexError) as error:
        raise LogDamaged(f"chunk {chunk_no} of a set of offsets is damaged: {error}") from error
    if not chunk or len(chunk) >= CHUNK_SIZE or chunk.max() >= CHUNK_SIZE:
        raise LogDamaged(f"chunk {chunk_no} of a set of offsets is not a partial chunk")
    return chunk
