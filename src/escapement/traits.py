"""Traits: what a message's priority and key mean for its order, in 32 bits.

Whoever orders messages needs neither their payloads nor their keys, only this column,
which is small enough to stand beside every key of the delivery order:

    ==========  =================================================================
    bits 24-31  the priority, exclusive-or ``DEFAULT_PRIORITY``
    bit 16      whether the message has a key
    bits 0-15   the key's *slot*, 0 without a key
    ==========  =================================================================

So the traits of a message without a key and of the default priority are 0, and a column
of nothing else is None: who uses neither pays for neither.

A slot is a hash of the key: FNV-1a of 32 bits over the first ``HASHED_BYTES`` of its
bytes, the upper half exclusive-or the lower. It is part of the protocol and never changes:
consumers name ranges of slots, and segments on disk hold them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY, Blobs, Int64s, MessageBatch, UInt32s

SLOTS: Final = 1 << 16
# More of a key says nothing new, and a loop over positions must have an end.
HASHED_BYTES: Final = 256
HAS_KEY: Final = 1 << 16
PRIORITY_SHIFT: Final = 24
# Traits from here on are those of messages with a priority other than the default.
FIRST_PRIORITY: Final = 1 << PRIORITY_SHIFT

# Which keys a consumer asks for: the first and the last slot; ``AUTO`` for what it is given;
# None for what nobody asked for.
KeyRange = tuple[int, int] | str | None
AUTO: Final = "auto"

_SLOT_MASK: Final = SLOTS - 1
_OFFSET_BASIS: Final = 2_166_136_261
_PRIME: Final = 16_777_619
_WORD: Final = (1 << 32) - 1
# Fewer keys than this are hashed one by one: a numpy call costs as much as 100 bytes.
_FEW_KEYS: Final = 16


def slot_of(key: str | bytes) -> int:
    """The slot of one key, 0 to 65,535."""
    data = key.encode() if isinstance(key, str) else key
    value = _OFFSET_BASIS
    for byte in data[:HASHED_BYTES]:
        value = ((value ^ byte) * _PRIME) & _WORD
    return (value >> 16) ^ (value & _SLOT_MASK)


def check_key_range(value: object) -> KeyRange:
    """The key range that a plain value says. Raises ``InvalidRequest``."""
    if value is None or value == AUTO:
        return value
    if isinstance(value, tuple | list) and len(value) == 2:
        first, last = value
        if type(first) is int and type(last) is int and 0 <= first <= last < SLOTS:
            return first, last
    pair = isinstance(value, tuple | list) and len(value) == 2
    written = "-".join(map(str, value)) if pair else repr(value)  # type: ignore[call-overload]
    raise InvalidRequest(
        f"{written} is no range of keys: the first and the last slot, 0 to {SLOTS - 1}, or {AUTO!r}"
    )


def slots_of(keys: Blobs) -> UInt32s:
    """The slot of each key; uint32[n]. O(n · longest key), in columns."""
    count = len(keys)
    if count < _FEW_KEYS:
        return np.fromiter(map(slot_of, keys.to_list()), np.uint32, count)
    lengths = np.minimum(keys.lengths, HASHED_BYTES)
    data = np.frombuffer(keys.data, np.uint8)
    starts = keys.starts()
    value = np.full(count, _OFFSET_BASIS, np.uint32)
    prime = np.uint32(_PRIME)
    shortest = int(lengths.min())
    for at in range(int(lengths.max())):
        if at < shortest:
            value ^= data[starts + at]
            value *= prime
        else:
            rows = np.flatnonzero(lengths > at)
            value[rows] = (value[rows] ^ data[starts[rows] + at]) * prime
    return (value >> np.uint32(16)) ^ (value & np.uint32(_SLOT_MASK))


def traits_of(batch: MessageBatch) -> UInt32s | None:
    """The traits of each message, or None if all are 0; uint32[n]."""
    if batch.keys is None and batch.priorities is None:
        return None
    traits = np.zeros(len(batch), np.uint32)
    if batch.keys is not None:
        keyed = np.flatnonzero(batch.keys.lengths)
        if len(keyed) == len(batch):
            traits = slots_of(batch.keys) | np.uint32(HAS_KEY)
        elif len(keyed):
            traits[keyed] = slots_of(batch.keys.take(keyed)) | np.uint32(HAS_KEY)
    if batch.priorities is not None:
        steps = (batch.priorities ^ np.uint8(DEFAULT_PRIORITY)).astype(np.uint32)
        traits |= steps << np.uint32(PRIORITY_SHIFT)
    return traits if traits.any() else None


def priorities_of(traits: UInt32s) -> Int64s:
    """The priorities; int64[n]."""
    return (traits >> np.uint32(PRIORITY_SHIFT)).astype(np.int64) ^ DEFAULT_PRIORITY


def have_keys(traits: UInt32s) -> npt.NDArray[np.bool_]:
    """Which messages have a key; bool[n]."""
    keyed: npt.NDArray[np.bool_] = (traits & np.uint32(HAS_KEY)) != 0
    return keyed


def key_slots(traits: UInt32s) -> npt.NDArray[np.intp]:
    """The slots, 0 where a message has no key; intp[n], to index tables with."""
    return (traits & np.uint32(_SLOT_MASK)).astype(np.intp)


def may_have_key(traits: UInt32s | None, key: bytes, count: int) -> npt.NDArray[np.intp]:
    """Which of ``count`` messages with these traits may have a key: one of 65,536 that do not."""
    wanted = HAS_KEY | slot_of(key) if key else 0
    if traits is None:
        return np.arange(0 if wanted else count)
    return np.flatnonzero((traits & np.uint32(HAS_KEY | _SLOT_MASK)) == wanted)


def concat_traits(parts: list[tuple[int, UInt32s | None]]) -> UInt32s | None:
    """Columns (height, traits) one below the other; None if all are."""
    if all(traits is None for _, traits in parts):
        return None
    return np.concatenate([np.zeros(n, np.uint32) if t is None else t for n, t in parts])
