"""A search of the pending messages of a topic, in the delivery order.

The delivery order has a key ``(due_ms, offset)`` for each message. In bounded steps, a search reads
these keys from the delayed index. It reads messages only to compare their contents or to show them.
A search for a *message key* (the text that a publisher sets) reads only messages with the same key
hash, which the index has beside the keys of the delivery order. A search for properties reads all
messages. Each request answers with one *page*, which is bounded in the keys and messages that are
read for it, even if nothing is found. So it takes many small requests to find a rare message among
ten million, and none of them delays other work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import trio

from escapement.broker.inspection.moved_keys import with_passed
from escapement.broker.topic.topic import Topic
from escapement.message import Blobs, Int64s, MessageBatch
from escapement.properties import read_properties
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, Fetch, Key, Plan
from escapement.traits import may_have_key

# Keys read in one step. Many of them may be of finished messages.
_STEP_KEYS: Final = 16_384
# The most messages, and the most bytes, that are read and compared at once.
_READ_MESSAGES: Final = 2_048
_READ_BYTES: Final = 4 * 1024 * 1024
_ANY_OFFSET: Final = (1 << 63) - 1


class Bounds(NamedTuple):
    """The most keys of the index, messages, and bytes of messages that are read for one page."""

    keys: int
    messages: int
    size_bytes: int


# Reading each of these takes a quarter of a second.
PAGE: Final = Bounds(keys=1 << 20, messages=1 << 16, size_bytes=256 << 20)


@dataclass(frozen=True, slots=True)
class Sought:
    """The conditions that a message must fulfil.

    Its place in the delivery order lies in ``[start, stop)``. It has all of ``properties``, and one
    of the message keys ``keys`` if they are given. A property given as text also matches a value of
    another type that is written in the same way, such as a number.
    """

    start: Key = KEY_MIN
    stop: Key = KEY_MAX
    keys: frozenset[bytes] | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_content(self) -> bool:
        """Whether messages must be read to tell which of them match."""
        return self.keys is not None or bool(self.properties)

    def matching(self, batch: MessageBatch) -> Int64s:
        """Return the rows of ``batch`` with matching key and properties. O(messages)."""
        rows = np.arange(len(batch))
        if self.keys is not None:
            keys = batch.keys or Blobs.empty(len(batch))
            rows = np.flatnonzero(np.isin(keys.lengths, list(map(len, self.keys))))
            found = keys.take(rows).to_list()
            rows = rows[np.fromiter((key in self.keys for key in found), bool, len(found))]
        if self.properties:
            packed = (batch.properties or Blobs.empty(len(batch))).take(rows).to_list()
            rows = rows[np.fromiter(map(self._has_properties, packed), bool, len(packed))]
        return rows

    def _has_properties(self, packed: bytes) -> bool:
        has = read_properties(packed)
        wanted = self.properties.items()
        return all(name in has and _same(has[name], value) for name, value in wanted)


def _same(value: Any, sought: Any) -> bool:
    """Return whether a value equals the one that is sought, or its text.

    On a command line all values are text.
    """
    return bool(value == sought or (isinstance(sought, str) and str(value) == sought))


class Search:
    """The search that answers one request with a page. It counts the keys and messages it reads."""

    def __init__(
        self,
        topic: Topic,
        index: DelayedIndex,
        run: Run,
        now_ms: int,
        sought: Sought,
        bounds: Bounds | None = None,
    ) -> None:
        self.looked = 0  # number of keys read
        self._messages = 0  # number of messages read
        self._size_bytes = 0  # and their size
        self._bounds = bounds or PAGE
        self._topic = topic
        self._index = index
        self._run = run
        self._now_ms = now_ms
        self._sought = sought

    @property
    def has_read_enough(self) -> bool:
        """Whether as much was read as one page may."""
        most = self._bounds
        return (
            self.looked >= most.keys
            or self._messages >= most.messages
            or self._size_bytes >= most.size_bytes
        )

    async def keys(self, start: Key, at: Key) -> tuple[Int64s, Int64s, Key]:
        """Return the next keys of pending messages that may match, and the key to continue at.

        Args:
          start: where the search began. It also finds messages that are rescheduled meanwhile, to a
            time between ``start`` and ``at``.
          at: the key at which this step begins.
        """
        await trio.lowlevel.checkpoint()
        plan = self._index.plan(self._topic.id, at, self._sought.stop, _STEP_KEYS)
        due_ms, offsets = await self._candidates(plan)
        moves = self._topic.amendments.moves
        due_ms, offsets = with_passed(moves, due_ms, offsets, start, plan.stop)
        pending = self._topic.retention.pending(due_ms, offsets, self._now_ms)
        return due_ms[pending], offsets[pending], plan.stop

    async def _candidates(self, plan: Plan) -> tuple[Int64s, Int64s]:
        """Return the keys of one step whose messages may match, without reading messages."""
        keys = self._sought.keys
        if keys is None:
            due_ms, offsets = await self._run(plan.read)
            self.looked += len(offsets)
            return due_ms, offsets
        due_ms, offsets, traits = await self._run(plan.read_traits)
        self.looked += len(offsets)
        at = may_have_key(traits, keys, len(offsets))
        return due_ms[at], offsets[at]

    def parts(self, count: int) -> Iterator[slice]:
        """Divide ``count`` messages into parts that are small enough for one read."""
        step = self._topic.sizes.frame_messages(_READ_MESSAGES, _READ_BYTES)
        return (slice(low, low + step) for low in range(0, count, step))

    async def messages(self, due_ms: Int64s, offsets: Int64s) -> tuple[Int64s, MessageBatch]:
        """Read the messages with these keys from the index.

        Returns:
          The rows, within the given keys, of the messages that match; and these messages.
        """
        self._messages += len(offsets)
        fetch = self._index.fetch(self._topic.id, due_ms, offsets)
        rows, batch, size_bytes = await self._run(self._read, fetch)
        self._size_bytes += size_bytes
        return rows, batch

    def _read(self, fetch: Fetch) -> tuple[Int64s, MessageBatch, int]:
        """Read messages. Blocking.

        Returns:
          The rows of those that match, these messages, and the size of all that were read.
        """
        # The index may no longer have messages that finished since their keys were read.
        there, batch = fetch.read_there(0, _ANY_OFFSET)
        rows = np.arange(len(batch)) if there is None else there
        if not self._sought.by_content:
            return rows, batch, batch.size_bytes
        matching = self._sought.matching(batch)
        return rows[matching], batch.take(matching), batch.size_bytes
