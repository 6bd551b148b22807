"""A decoder of message properties: from msgpack maps to columns of names and values.

Each message has one map. All maps are decoded in parallel: one numpy step reads the next name, or
the next value, of every map that has one. In msgpack, each map and each string begins with a
*head*, which gives its type and length.

Some maps are rare and are decoded one at a time, as consumers do. These *odd* maps have more than
``_MOST_ENTRIES`` entries, a value that is neither string nor nil, or text that is not UTF-8. Values
that are not strings, such as numbers and lists, become JSON. A nil value becomes null.

Bytes that are not a map count as an empty map, as they do for consumers. No I/O.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from escapement.message import Blobs, Bools, Int64s, UInt8s, gather
from escapement.properties import read_properties

# The number of entries of the largest map with a head of one byte. Larger maps are odd.
_MOST_ENTRIES: Final = 15
_NIL: Final = 0xC0
# Stands for the length of a nil value.
_NONE: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """The entries of a column of maps, joined: those of the first map, then of the second, etc."""

    counts: Int64s  # the number of entries of each map
    names: Blobs
    values: Blobs
    present: Bools | None = None  # false for each null value; None if no value is null


def decode_maps(packed: Blobs, odd_rows: Int64s | None = None) -> Maps:
    """Decode a column of maps; O(bytes), with as many numpy steps as the largest map has entries.

    Args:
      packed: the maps as bytes, one in each row.
      odd_rows: rows whose maps are known to be odd.
    """
    # A padding byte, so that reading the next byte at the end stays inside the array.
    data = np.frombuffer(bytes(packed.data) + b"\0", np.uint8)
    starts, lengths = packed.starts(), packed.lengths.astype(np.int64)
    ends = starts + lengths
    heads = data[np.minimum(starts, len(data) - 1)]
    plain = (lengths > 0) & (heads & 0xF0 == 0x80)
    counts = np.where(plain, heads & 0x0F, 0).astype(np.int64)
    cursor = starts + 1
    # For each entry: the row of its map, the position and length of its name, and the position and
    # length of its value.
    steps: list[tuple[Int64s, ...]] = []
    odd = (lengths > 0) & ~plain
    if odd_rows is not None:
        odd[odd_rows] = True
    for step in range(int(counts.max(initial=0))):
        rows = np.flatnonzero((counts > step) & ~odd)
        name_at, name_len, name_fits = _strings(data, cursor[rows], ends[rows])
        value_at, value_len, value_fits = _strings(data, name_at + name_len, ends[rows])
        fits = name_fits & value_fits & (name_len != _NONE)
        odd[rows[~fits]] = True
        cursor[rows[fits]] = (value_at + np.maximum(value_len, 0))[fits]
        steps.append(tuple(c[fits] for c in (rows, name_at, name_len, value_at, value_len)))
    entries = [np.concatenate(column) for column in zip(*steps, strict=True)] if steps else []
    table = np.stack(entries) if entries else np.zeros((5, 0), np.int64)
    table = table[:, ~odd[table[0]]]
    table, data = _with_odd(table, data, packed, np.flatnonzero(odd))
    table = table[:, np.argsort(table[0], kind="stable")]
    rows, name_at, name_len, value_at, value_len = table
    order = np.arange(len(rows))
    present = value_len != _NONE
    value_len = np.maximum(value_len, 0)
    names = gather(data.data, name_at, name_len.astype(np.uint32), order)
    values = gather(data.data, value_at, value_len.astype(np.uint32), order)
    unreadable = np.union1d(rows[_no_text(names)], rows[_no_text(values)])
    if len(unreadable):
        return decode_maps(packed, unreadable)
    counts = np.bincount(rows, minlength=len(packed)).astype(np.int64)
    return Maps(counts, names, values, None if present.all() else present)


def _no_text(strings: Blobs) -> Int64s:
    """Return the indexes of the strings that are not UTF-8.

    If all strings are UTF-8, one check of all bytes together shows it.
    """
    whole = bytes(strings.data)
    if not whole.isascii():
        firsts = np.frombuffer(whole, np.uint8)[strings.starts()[strings.lengths > 0]]
        if not _is_text(whole) or (firsts & 0xC0 == 0x80).any():
            wrong = [row for row, one in enumerate(strings.to_list()) if not _is_text(one)]
            return np.array(wrong, np.int64)
    return np.zeros(0, np.int64)


def _is_text(found: bytes) -> bool:
    try:
        found.decode()
    except UnicodeDecodeError:
        return False
    return True


def _strings(data: UInt8s, at: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Bools]:
    """Read the heads of strings. Return the strings' positions and lengths, and a mask.

    A nil counts as a string of length ``_NONE``. The mask is true for strings that are a string or
    nil, and end within their map.

    Args:
      at: the positions of the heads in ``data``.
      ends: for each head, the position where its map ends.
    """
    last = len(data) - 1
    head = data[np.minimum(at, last)]
    short, byte, word = head & 0xE0 == 0xA0, head == 0xD9, head == 0xDA
    first = data[np.minimum(at + 1, last)].astype(np.int64)
    second = data[np.minimum(at + 2, last)]
    length = np.select([short, byte, word], [head & 0x1F, first, (first << 8) | second])
    begin = at + np.select([short, byte, word], [1, 2, 3], 1)
    nothing = head == _NIL
    fits = (short | byte | word | nothing) & (begin + length <= ends)
    return begin, np.where(nothing, _NONE, length.astype(np.int64)), fits


def _with_odd(table: Int64s, data: UInt8s, packed: Blobs, odd: Int64s) -> tuple[Int64s, UInt8s]:
    """Decode the ``odd`` maps. Return the table and ``data``, extended by their entries.

    Args:
      table: a column for each entry: its row, and the positions and lengths in ``data`` of its name
        and value.
      odd: the rows of the odd maps.
    """
    if not len(odd):
        return table, data
    at = len(data)
    texts: list[bytes] = []
    entries: list[tuple[int, int, int, int, int]] = []
    for row, one in zip(odd.tolist(), packed.take(odd).to_list(), strict=True):
        for name, value in read_properties(one).items():
            key, text = _text(name), b"" if value is None else _text(value)
            size = _NONE if value is None else len(text)
            entries.append((row, at, len(key), at + len(key), size))
            texts += [key, text]
            at += len(key) + len(text)
    more = np.array(entries, np.int64).reshape(-1, 5).T
    joined = np.concatenate([data, np.frombuffer(b"".join(texts), np.uint8)])
    return np.concatenate([table, more], axis=1), joined


def _text(value: Any) -> bytes:
    """Return a string itself, and any other value as JSON, in UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return json.dumps(value, default=repr, ensure_ascii=False).encode("utf-8", "replace")
