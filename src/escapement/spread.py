"""Spread: due times that are scattered over a span, so that many messages do not come at once.

A message for the time t with the spread s is due at a time in [t, t + s). It is never early. The
place in the span is a *stable hash* of the message's *seed*: the same seed and the same span always
give the same place. So a retry does not move a message.

| messages | seed |
|---|---|
| published with a dedup key | the digest of the dedup key |
| published without one | the name of the producer, and the message's sequence |
| rescheduled, redriven | the name of the topic, and the message's offset in it |
| of a schedule | the name of the schedule, and the time of the occurrence |

Seeds are hashed by the finalizer of splitmix64. Pure, and for columns only.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.dedup import NO_DIGEST, Digests, halves
from escapement.message import Int64s, Times

UInt64s = npt.NDArray[np.uint64]

_NO_DIGEST: Final = np.frombuffer(NO_DIGEST, "<u8")
# The constants of splitmix64 (Steele, Lea, Flood 2014), which are used widely.
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def seeds(name: str, numbers: Int64s, digests: Digests | None = None) -> UInt64s:
    """Return the seed of each message; uint64[n].

    Args:
      name: the name of the producer, topic or schedule.
      numbers: the number of each message under this name: its sequence, offset or occurrence.
      digests: the digests of the messages' dedup keys. A message with a dedup key gets its seed
        from the digest alone.
    """
    salt = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    found = _mixed(numbers.astype(np.uint64)) ^ np.uint64(salt)
    if digests is not None:
        pairs = halves(digests)
        found = np.where((pairs != _NO_DIGEST).any(1), pairs[:, 0], found)
    return found


def places_ms(seeds: UInt64s, span_ms: int | Int64s) -> Int64s:
    """Return the place of each message in its span, from 0 to ``span_ms - 1``; int64[n].

    Args:
      span_ms: the length of the span, for all messages or for each; 0 for no spread.
    """
    # The modulo favours low places by less than one in a million, because no span is over 2^43 ms.
    return (_mixed(seeds) % np.maximum(span_ms, 1).astype(np.uint64)).astype(np.int64)


def spread(times: Times, places_ms: Int64s, rows: npt.NDArray[np.bool_] | None = None) -> Times:
    """Return the times of a batch, each later by its place.

    A message without a delay or time gets its place as its delay.

    Args:
      rows: the messages to which this applies; None: all.
    """
    there = np.ones(len(places_ms), np.bool_) if rows is None else rows
    delay_ms, at_ms = times.delay_ms, times.at_ms
    if at_ms is not None:
        timed = there & (at_ms >= 0)
        at_ms = np.where(timed, at_ms + places_ms, at_ms)
        there = there & ~timed
    if there.any():
        given_ms = np.full(len(places_ms), -1) if delay_ms is None else delay_ms
        delay_ms = np.where(there, np.maximum(given_ms, 0) + places_ms, given_ms)
    return Times(delay_ms, at_ms)


def _mixed(values: UInt64s) -> UInt64s:
    """Return the finalizer of splitmix64 for each value; overflow is part of it."""
    with np.errstate(over="ignore"):
        mixed = values + _GAMMA
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
        return mixed ^ (mixed >> np.uint64(31))
