"""Properties of messages, as msgpack maps, turned into columns of names and values.

All maps are walked at the same time, entry by entry: one step of numpy reads the next name, or
value, of every message that has one. A value of nothing is none. What else is no string (a number,
a list) is rare, and is written as JSON, one message at a time; so is a map of more than
``_MOST_ENTRIES``, and one with text that is no UTF-8, which is read as consumers read it.

No I/O. What is no map at all counts as an empty one, as everywhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from escapement.message import Blobs, Int64s, UInt8s, gather
from escapement.properties import read_properties

# Longer maps, which have another head, are read one by one.
_MOST_ENTRIES: Final = 15
_NIL: Final = 0xC0
# The length of a value that there is none of.
_NONE: Final = -1

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """Entries of ``len(counts)`` maps, end to end: how many each has, names and values."""

    counts: Int64s
    names: Blobs
    values: Blobs
    present: Bools | None = None  # of each value, whether there is one; None: of all


def decode_maps(packed: Blobs, odd_rows: Int64s | None = None) -> Maps:
    """The maps, each an entry of ``packed``; O(bytes), with a step for each entry of a map.

    Args:
      odd_rows: of these it is known that they are to be read one by one.
    """
    # A byte behind the end, so that looking at the next one needs no care.
    data = np.frombuffer(bytes(packed.data) + b"\0", np.uint8)
    starts, lengths = packed.starts(), packed.lengths.astype(np.int64)
    ends = starts + lengths
    heads = data[np.minimum(starts, len(data) - 1)]
    plain = (lengths > 0) & (heads & 0xF0 == 0x80)
    counts = np.where(plain, heads & 0x0F, 0).astype(np.int64)
    cursor = starts + 1
    # By entry: the row, and where its name and its value begin, and how long they are.
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
    """Which of these are no UTF-8; mostly none is, which is told of all at once."""
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
    """Of strings that begin here: where their bytes are, how many, and whether they are any.

    Nothing counts as one, of ``_NONE`` bytes.
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
    """The table and its bytes with the entries of maps that were left out so far."""
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
    """A string as it is, anything else as JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return json.dumps(value, default=repr, ensure_ascii=False).encode("utf-8", "replace")
