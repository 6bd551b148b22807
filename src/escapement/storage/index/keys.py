"""Keys of the delivery order: pairs (due time, offset), single and in columns.

Keys are compared lexicographically. A column of keys is a pair of numpy arrays, the due times and
the offsets. This module has the few operations on such columns that the rest of the index uses:
find a position, sort, merge, match. To sort faster, it *packs* each key into one 64-bit integer
where that is possible. It knows nothing of files, tables or payloads, and does no I/O.

Every position in the delivery order is such a pair, never a time alone: ten million messages may
fall due in one millisecond, and a scan must be able to stop between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from escapement.message import Bools, Int64s
from escapement.sorting import argsort, sort

# A column of keys: the due times and the offsets, two arrays of the same length.
Keys = tuple[Int64s, Int64s]

# Due times have 47 bits (until the year 6429), so that a time and a row number of 16 bits fit
# into one int64. Sorting such integers is ten times faster than sorting pairs.
MAX_DUE_MS: Final = (1 << 47) - 1
_INT64_BITS: Final = 63  # the bits of an int64 without the sign


class Key(NamedTuple):
    """A key, used to name a message or a position in the delivery order just before it."""

    due_ms: int
    offset: int

    def successor(self) -> Key:
        """Return the smallest key greater than this one."""
        return Key(self.due_ms, self.offset + 1)


KEY_MIN: Final = Key(0, 0)  # the position before all messages
KEY_MAX: Final = Key((1 << 63) - 1, (1 << 63) - 1)  # the position after all messages

NO_KEYS: Final[Keys] = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def position(due_ms: Int64s, offsets: Int64s, key: Key) -> int:
    """Return how many keys of a sorted column are smaller than ``key``; O(log n)."""
    low = int(due_ms.searchsorted(key.due_ms))
    if low == len(due_ms) or due_ms[low] != key.due_ms:
        return low
    high = int(due_ms.searchsorted(key.due_ms, "right"))
    return low + int(offsets[low:high].searchsorted(key.offset))


def is_sorted(due_ms: Int64s, offsets: Int64s) -> bool:
    """Return whether the keys of a column ascend strictly."""
    if len(due_ms) < 2:
        return True
    steps = due_ms[1:] - due_ms[:-1]
    return bool(((steps > 0) | ((steps == 0) & (offsets[1:] > offsets[:-1]))).all())


def sorted_order(due_ms: Int64s, offsets: Int64s) -> Int64s:
    """Return the row numbers of a column of keys, sorted by key; int64[n]."""
    packed = _packed_rows(due_ms, offsets)
    if packed is not None:
        rows, bits, _ = packed
        rows &= (1 << bits) - 1
        return rows
    return _order(due_ms, offsets)


def unique_sorted(due_ms: Int64s, offsets: Int64s) -> tuple[Int64s, Keys]:
    """Sort a column of keys and drop duplicates.

    Returns the row of each distinct key in the given column, int64[at most n], and the sorted
    distinct keys.
    """
    assert len(due_ms), "no keys"
    packed = _packed_rows(due_ms, offsets)
    if packed is None:
        order = _order(due_ms, offsets)
        due_ms, offsets = due_ms[order], offsets[order]
        first = _first_of_equals((due_ms[1:] != due_ms[:-1]) | (offsets[1:] != offsets[:-1]))
        return order[first], (due_ms[first], offsets[first])
    # Offsets ascend, so no key occurs twice. The times can be read from the packed integers.
    times, bits, low_ms = packed
    rows = times & ((1 << bits) - 1)
    times >>= bits
    times += low_ms
    low = int(offsets[0])
    without_gaps = int(offsets[-1]) - low == len(offsets) - 1
    return rows, (times, rows + low if without_gaps else offsets[rows])


def _order(due_ms: Int64s, offsets: Int64s) -> Int64s:
    """Return the row numbers of a column of keys, sorted by key; offsets need not ascend."""
    packed = _packed_keys(due_ms, offsets)
    if packed is None:
        return np.lexsort((offsets, due_ms)).astype(np.int64, copy=False)
    return argsort(packed[0])


def _packed_rows(due_ms: Int64s, offsets: Int64s) -> tuple[Int64s, int, int] | None:
    """Pack the due time and the row number of each key into one integer, and sort the integers.

    Returns the sorted integers ``(due_ms - low_ms) << bits | row``, then ``bits``, then ``low_ms``,
    the lowest due time. If offsets ascend with the rows, sorting by row number is sorting by
    offset. Returns None if offsets do not ascend or the times are too far apart to be packed.
    """
    count = len(due_ms)
    if not count or not bool((offsets[1:] > offsets[:-1]).all()):
        return None
    low_ms, bits = int(due_ms.min()), count.bit_length()
    if (int(due_ms.max()) - low_ms).bit_length() + bits > _INT64_BITS:
        return None
    packed = (due_ms - low_ms) << bits
    packed |= np.arange(count)
    sort(packed)
    return packed, bits, low_ms


def merge(parts: Sequence[Keys]) -> Keys:
    """Return the keys of several columns as one sorted column, without duplicates.

    Complexity: linear if the columns are few and sorted.
    """
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return NO_KEYS
    if len(parts) == 1 and is_sorted(*parts[0]):
        return parts[0]
    due_ms, offsets = concat(parts)
    packed = _packed_keys(due_ms, offsets)
    if packed is None:
        return unique_sorted(due_ms, offsets)[1]
    keys, bits, low_ms, low_offset = packed
    sort(keys)
    keys = keys[_first_of_equals(keys[1:] != keys[:-1])]
    return (keys >> bits) + low_ms, (keys & ((1 << bits) - 1)) + low_offset


def concat(parts: Sequence[Keys]) -> Keys:
    """Join columns of keys end to end to one column."""
    due_ms, offsets = (np.concatenate(column) for column in zip(*parts, strict=True))
    return due_ms, offsets


def _packed_keys(due_ms: Int64s, offsets: Int64s) -> tuple[Int64s, int, int, int] | None:
    """Pack the due time and the offset of each key into one integer.

    Returns the integers ``(due_ms - low_ms) << bits | offset - low_offset``, then ``bits``,
    ``low_ms`` and ``low_offset``, the lowest due time and offset. Returns None if there are no
    keys or they are too far apart to be packed.
    """
    if not len(due_ms):
        return None
    low_ms, low_offset = int(due_ms.min()), int(offsets.min())
    bits = (int(offsets.max()) - low_offset).bit_length()
    if (int(due_ms.max()) - low_ms).bit_length() + bits > _INT64_BITS:
        return None
    packed = (due_ms - low_ms) << bits
    packed |= offsets - low_offset
    return packed, bits, low_ms, low_offset


def match(table: Keys, wanted: Keys) -> Int64s:
    """Return the row of each ``wanted`` key in the sorted column ``table``; int64[n].

    The row of a key that is not in ``table`` is -1.

    Complexity: O(m + n log m) for n wanted keys and m keys of the table. It is O(n + log m) in the
    usual case, that the wanted keys are neighbours in the table.
    """
    due_ms, offsets = table
    wanted_ms, wanted_offsets = wanted
    count = len(wanted_ms)
    if not count or not len(due_ms):
        return np.full(count, -1, np.int64)
    first = position(due_ms, offsets, Key(int(wanted_ms[0]), int(wanted_offsets[0])))
    run = slice(first, first + count)
    if np.array_equal(due_ms[run], wanted_ms) and np.array_equal(offsets[run], wanted_offsets):
        return np.arange(first, first + count)
    low = int(offsets.min())
    bits = (int(offsets.max()) - low).bit_length()
    low_ms = int(due_ms[0])
    if (int(due_ms[-1]) - low_ms).bit_length() + bits <= _INT64_BITS:
        times, wanted_times = due_ms - low_ms, wanted_ms - low_ms
    else:
        # Use the rank of a time among the times of the table instead of the time: a rank is
        # small, so a rank and an offset fit into one integer.
        new_time = _first_of_equals(due_ms[1:] != due_ms[:-1])
        times = np.cumsum(new_time) - 1
        wanted_times = due_ms[new_time].searchsorted(wanted_ms)
        assert len(times).bit_length() + bits <= _INT64_BITS, "offsets of a block are too far apart"
    packed = (times << bits) | (offsets - low)
    # A wanted key that is not in the table may be packed like another key. The comparison below
    # rejects it.
    sought = (wanted_times << bits) | ((wanted_offsets - low) & ((1 << bits) - 1))
    row = packed.searchsorted(sought)
    row[row == len(packed)] = 0
    found = (due_ms[row] == wanted_ms) & (offsets[row] == wanted_offsets)
    return np.where(found, row, -1)


def _first_of_equals(changes: Bools) -> Bools:
    first = np.ones(len(changes) + 1, np.bool_)
    first[1:] = changes
    return first
