"""An encoder of message properties: from columns of names and values to msgpack maps.

numpy writes the names and values of all maps at once. In msgpack, a *head* before each map and each
string gives its type and length. :mod:`~escapement.pipeline.maps` decodes. No I/O.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.message import Blobs, Bools, Int64s, UInt8s, copy_strings

# The first bytes of heads: of maps, of strings, and the single byte of a null value.
_FIXMAP, _MAP16 = 0x80, 0xDE
_FIXSTR, _STR8, _STR16, _STR32 = 0xA0, 0xD9, 0xDA, 0xDB
_NIL: Final = 0xC0
# The maximum number of entries of a map. Bulk writes refuse messages with more properties.
MOST_ENTRIES: Final = 65_535


def encode_maps(counts: Int64s, names: Blobs, values: Blobs, absent: Bools | None = None) -> Blobs:
    """Encode one map for each entry of ``counts``. An empty map becomes an empty string.

    Args:
      counts: the number of entries of each map; at most ``MOST_ENTRIES``.
      names: the names of the entries of all maps, one map after the other; UTF-8.
      values: the values of these entries; UTF-8.
      absent: true for each null value; None if no value is null.
    """
    entries = len(names)
    assert entries == len(values) == int(counts.sum()), "columns of unequal length"
    assert not len(counts) or int(counts.max()) <= MOST_ENTRIES, "a map has too many entries"
    strings = _interleaved(names, values)
    lengths = strings.lengths.astype(np.int64)
    heads = _head_sizes(lengths)
    if absent is not None:
        gone = np.zeros(2 * entries, bool)
        gone[1::2] = absent
        lengths, heads = np.where(gone, 0, lengths), np.where(gone, 1, heads)
    sizes = np.concatenate([[0], np.cumsum(lengths + heads)])
    map_heads = np.where(counts == 0, 0, np.where(counts < 16, 1, 3))
    ends = np.cumsum(counts)
    bodies = sizes[2 * ends] - sizes[2 * (ends - counts)]
    starts = np.cumsum(map_heads + bodies) - (map_heads + bodies)
    out = np.zeros(int((map_heads + bodies).sum()), np.uint8)
    _put_map_heads(out, starts, counts)
    # Each string begins after the head of its map and the preceding strings of the map.
    owner = np.repeat(np.arange(len(counts)), 2 * counts)
    first = sizes[2 * (ends - counts)]
    positions = starts[owner] + map_heads[owner] + sizes[:-1] - first[owner]
    _put_string_heads(out, positions, lengths, heads)
    if absent is not None:
        out[positions[gone]] = _NIL
    copy_strings(out, positions + heads, strings.data, strings.starts(), lengths)
    return Blobs((map_heads + bodies).astype(np.uint32), out.data)


def _interleaved(names: Blobs, values: Blobs) -> Blobs:
    """Return one column with the first name, its value, the second name, its value, and so on."""
    both = Blobs.concat([names, values])
    rows = np.arange(2 * len(names)).reshape(2, -1).T.ravel()
    return both.take(rows)


def _head_sizes(lengths: Int64s) -> Int64s:
    return np.select([lengths < 32, lengths < 1 << 8, lengths < 1 << 16], [1, 2, 3], 5)


def _put_map_heads(out: UInt8s, starts: Int64s, counts: Int64s) -> None:
    few = (counts > 0) & (counts < 16)
    out[starts[few]] = _FIXMAP | counts[few]
    many = counts >= 16
    at, count = starts[many], counts[many]
    out[at], out[at + 1], out[at + 2] = _MAP16, count >> 8, count & 0xFF


def _put_string_heads(out: UInt8s, positions: Int64s, lengths: Int64s, heads: Int64s) -> None:
    short = heads == 1
    out[positions[short]] = _FIXSTR | lengths[short]
    for size, word in ((2, _STR8), (3, _STR16), (5, _STR32)):
        at, length = positions[heads == size], lengths[heads == size]
        out[at] = word
        for byte in range(1, size):
            out[at + byte] = length >> 8 * (size - 1 - byte) & 0xFF
