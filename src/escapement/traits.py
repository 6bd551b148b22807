"""Traits: 32 bits with a message's priority and the hash of its key.

To decide which message to deliver next, the broker needs these bits and neither payloads nor
keys. So a column of traits lies beside the columns of due times and offsets:

    ==========  =================================================================
    bits 24-31  the priority, exclusive-or ``DEFAULT_PRIORITY``
    bits 17-23  more of the key's hash, 0 without a key
    bit 16      whether the message has a key
    bits 0-15   the key's *slot*, 0 without a key
    ==========  =================================================================

The traits of a message without a key and with the default priority are 0. A column of zeros is
None, so topics without keys and priorities pay no cost for them.

The hash of a key is 32-bit FNV-1a over the first ``HASHED_BYTES`` bytes of the key. The slot is
the upper half of the hash exclusive-or the lower half. How it is computed is part of the
protocol and never changes, because consumers ask for ranges of slots. The slot and the other 7
bits together are the *key hash*, which stands for the key in comparisons: of 100,000 keys one
in a hundred shares its key hash with another key. Segments on disk store all these bits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY, Blobs, Int64s, MessageBatch, UInt32s

SLOTS: Final = 1 << 16
KEY_HASHES: Final = 1 << 23
# Only this many bytes of a key are hashed, to bound the loop over them.
HASHED_BYTES: Final = 256
HAS_KEY: Final = 1 << 16
PRIORITY_SHIFT: Final = 24
# Traits of at least this value belong to messages with a priority other than the default.
FIRST_PRIORITY: Final = 1 << PRIORITY_SHIFT

# The keys whose messages a consumer asks for: (first slot, last slot); ``AUTO`` for a range that
# the broker assigns; None for the keys in no other consumer's range.
KeyRange = tuple[int, int] | str | None
AUTO: Final = "auto"

_SLOT_MASK: Final = SLOTS - 1
# The bits of the traits that depend on the key: "has a key", the slot, and more of the hash.
_KEY_MASK: Final = FIRST_PRIORITY - 1
# The 7 bits of the FNV hash that belong to the key hash in addition to the slot: the number of
# their lowest bit in the FNV hash, their mask, and the number of their lowest bit in the traits.
_MORE_FROM: Final = 9
_MORE_MASK: Final = KEY_HASHES // SLOTS - 1
_MORE_SHIFT: Final = 17
_OFFSET_BASIS: Final = 2_166_136_261
_PRIME: Final = 16_777_619
_WORD: Final = (1 << 32) - 1
# Fewer keys than this are hashed one at a time, because a numpy call costs as much as 100 bytes.
_FEW_KEYS: Final = 16


def slot_of(key: str | bytes) -> int:
    """Return the slot of a message's key: a hash from 0 to 65,535, to which key ranges refer."""
    return _key_traits(key) & _SLOT_MASK


def _key_traits(key: str | bytes) -> int:
    """Return the lower 24 bits of a message's traits, which depend only on its key."""
    data = key.encode() if isinstance(key, str) else key
    value = _OFFSET_BASIS
    for byte in data[:HASHED_BYTES]:
        value = ((value ^ byte) * _PRIME) & _WORD
    more = (value >> _MORE_FROM) & _MORE_MASK
    return (more << _MORE_SHIFT) | HAS_KEY | ((value >> 16) ^ (value & _SLOT_MASK))


def check_key_range(value: object) -> KeyRange:
    """Return ``value`` as a consumer's key range. Raises ``InvalidRequest`` if it is not one."""
    if value is None or value == AUTO:
        return value
    if isinstance(value, tuple | list) and len(value) == 2:
        first, last = value
        if type(first) is int and type(last) is int and 0 <= first <= last < SLOTS:
            return first, last
    pair = isinstance(value, tuple | list) and len(value) == 2
    written = "-".join(map(str, value)) if pair else repr(value)  # type: ignore[call-overload]
    raise InvalidRequest(
        f"{written} is not a key range. Give the first and the last slot, 0 to {SLOTS - 1},"
        f" or {AUTO!r}."
    )


def traits_of_keys(keys: Blobs) -> UInt32s:
    """Return the traits of messages with these keys and the default priority; uint32[n].

    Complexity: O(n · longest key), vectorized.
    """
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
    """Return the traits of each message of a batch, or None if all are 0; uint32[n]."""
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
    """Return the priorities in the traits of messages; int64[n]."""
    return (traits >> np.uint32(PRIORITY_SHIFT)).astype(np.int64) ^ DEFAULT_PRIORITY


def have_keys(traits: UInt32s) -> npt.NDArray[np.bool_]:
    """Return whether each message with these traits has a key; bool[n]."""
    keyed: npt.NDArray[np.bool_] = (traits & np.uint32(HAS_KEY)) != 0
    return keyed


def key_slots(traits: UInt32s) -> npt.NDArray[np.intp]:
    """Return the slot of each message's key, 0 without a key; intp[n], which can index an array."""
    return (traits & np.uint32(_SLOT_MASK)).astype(np.intp)


def hash_keys(traits: UInt32s) -> Int64s:
    """Return the key hashes in the traits of messages, 0 without a key; int64[n]."""
    more = (traits >> np.uint32(1)) & np.uint32(_MORE_MASK * SLOTS)
    return ((traits & np.uint32(_SLOT_MASK)) | more).astype(np.int64)


def slots_of_key_hashes(key_hashes: Int64s) -> npt.NDArray[np.intp]:
    """Return the slots of keys with these key hashes; intp[n], which can index an array."""
    return key_hashes & _SLOT_MASK


def may_have_key(
    traits: UInt32s | None, keys: Collection[bytes], count: int
) -> npt.NDArray[np.intp]:
    """Return the indexes of the messages that may have one of ``keys``, judging by their traits.

    For each key, about one in 8 million messages with another key is among them.

    Args:
      count: the number of messages.
    """
    wanted = np.array([_key_traits(key) if key else 0 for key in keys], np.uint32)
    if traits is None:
        return np.arange(count if 0 in wanted else 0)
    return np.flatnonzero(np.isin(traits & np.uint32(_KEY_MASK), wanted))
