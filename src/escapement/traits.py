"""Traits: what a message's priority and key mean for its order, in 32 bits.

Whoever orders messages needs neither their payloads nor their keys, only this column,
which is small enough to stand beside every key of the delivery order:

    ==========  =================================================================
    bits 24-31  the priority, exclusive-or ``DEFAULT_PRIORITY``
    bits 17-23  more of the key's hash, 0 without a key
    bit 16      whether the message has a key
    bits 0-15   the key's *slot*, 0 without a key
    ==========  =================================================================

So the traits of a message without a key and of the default priority are 0, and a column
of nothing else is None: who uses neither pays for neither.

The hash is FNV-1a of 32 bits over the first ``HASHED_BYTES`` of the key's bytes. The slot is
its upper half exclusive-or the lower; it is part of the protocol and never changes: consumers
name ranges of slots. Slot and the other 7 bits together are the key's *print*, by which keys
are told apart: of 100,000 keys one in a hundred shares its print with another. Segments on disk
hold all of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY, Blobs, Int64s, MessageBatch, UInt32s

SLOTS: Final = 1 << 16
PRINTS: Final = 1 << 23
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
# What of the traits is the key's: whether there is one, and all of its hash.
_KEY_MASK: Final = FIRST_PRIORITY - 1
# Which bits of the hash the print has beside the slot, and where they stand in traits.
_MORE_FROM: Final = 9
_MORE_MASK: Final = PRINTS // SLOTS - 1
_MORE_SHIFT: Final = 17
_OFFSET_BASIS: Final = 2_166_136_261
_PRIME: Final = 16_777_619
_WORD: Final = (1 << 32) - 1
# Fewer keys than this are hashed one by one: a numpy call costs as much as 100 bytes.
_FEW_KEYS: Final = 16


def slot_of(key: str | bytes) -> int:
    """The slot of one key, 0 to 65,535."""
    return _key_traits(key) & _SLOT_MASK


def _key_traits(key: str | bytes) -> int:
    """The traits of one key, the lower 24 bits."""
    data = key.encode() if isinstance(key, str) else key
    value = _OFFSET_BASIS
    for byte in data[:HASHED_BYTES]:
        value = ((value ^ byte) * _PRIME) & _WORD
    more = (value >> _MORE_FROM) & _MORE_MASK
    return (more << _MORE_SHIFT) | HAS_KEY | ((value >> 16) ^ (value & _SLOT_MASK))


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


def traits_of_keys(keys: Blobs) -> UInt32s:
    """The traits of keys, without priorities; uint32[n]. O(n · longest key), in columns."""
    count = len(keys)
    if count < _FEW_KEYS:
        return np.fromiter(map(_key_traits, keys.to_list()), np.uint32, count)
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
    more = (value >> np.uint32(_MORE_FROM)) & np.uint32(_MORE_MASK)
    slots = (value >> np.uint32(16)) ^ (value & np.uint32(_SLOT_MASK))
    return (more << np.uint32(_MORE_SHIFT)) | np.uint32(HAS_KEY) | slots


def traits_of(batch: MessageBatch) -> UInt32s | None:
    """The traits of each message, or None if all are 0; uint32[n]."""
    if batch.keys is None and batch.priorities is None:
        return None
    traits = np.zeros(len(batch), np.uint32)
    if batch.keys is not None:
        keyed = np.flatnonzero(batch.keys.lengths)
        if len(keyed) == len(batch):
            traits = traits_of_keys(batch.keys)
        elif len(keyed):
            traits[keyed] = traits_of_keys(batch.keys.take(keyed))
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


def key_prints(traits: UInt32s) -> Int64s:
    """The prints, 0 where a message has no key; int64[n]."""
    more = (traits >> np.uint32(1)) & np.uint32(_MORE_MASK * SLOTS)
    return ((traits & np.uint32(_SLOT_MASK)) | more).astype(np.int64)


def slots_of_prints(prints: Int64s) -> npt.NDArray[np.intp]:
    """The slots of keys with these prints; intp[n], to index tables with."""
    return prints & _SLOT_MASK


def may_have_key(traits: UInt32s | None, key: bytes, count: int) -> npt.NDArray[np.intp]:
    """Which of ``count`` messages with these traits may have a key: one in 8 million do not."""
    wanted = _key_traits(key) if key else 0
    if traits is None:
        return np.arange(0 if wanted else count)
    return np.flatnonzero((traits & np.uint32(_KEY_MASK)) == wanted)


def concat_traits(parts: list[tuple[int, UInt32s | None]]) -> UInt32s | None:
    """Columns (height, traits) one below the other; None if all are."""
    if all(traits is None for _, traits in parts):
        return None
    return np.concatenate([np.zeros(n, np.uint32) if t is None else t for n, t in parts])
