"""A view of the pending messages of a topic, next due first, that consumes nothing.

Peeking reads the delayed index: keys in bounded steps, and the payloads of the messages that it
shows. A search for a message key reads only messages with the same key hash, which the index keeps
beside the keys of the delivery order. A search for properties reads all messages. A page is bounded
in keys and in messages, whatever it finds, and returns where to continue. So a rare message among
ten million is found in many small requests, and none of them delays other work.

A page has the messages that are rescheduled while it is read. It does not have messages that lie
before it when it begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import trio

from escapement.broker.inspection.moved_keys import with_passed
from escapement.broker.topic.topic import Topic
from escapement.message import Blobs, Int64s, MessageBatch
from escapement.properties import read_properties
from escapement.storage.blocking import Run
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, Fetch, Key, Plan
from escapement.traits import may_have_key

# Keys read in one step. Many of them may be done.
_STEP_KEYS: Final = 16_384
# The most keys, and the most messages, read for one page. Each takes a quarter of a second.
_PAGE_KEYS: Final = 1 << 20
_PAGE_MESSAGES: Final = 1 << 16
_PAGE_BYTES: Final = 8 * 1024 * 1024
# The most messages that are read and compared at once, with their payloads.
_READ_MESSAGES: Final = 2_048
_READ_BYTES: Final = 4 * 1024 * 1024
_ANY_OFFSET: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Sought:
    """The conditions that a message must fulfil.

    Its place in the delivery order lies in ``[start, stop)``, and it has this key and all of these
    properties. A text among the properties matches any value that is written like it.
    """

    start: Key = KEY_MIN
    stop: Key = KEY_MAX
    key: bytes | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_content(self) -> bool:
        """Whether the messages themselves must be read."""
        return self.key is not None or bool(self.properties)

    async def candidates(self, plan: Plan, run: Run) -> tuple[Int64s, Int64s, int]:
        """Return the messages of a plan that may match, without reading messages.

        Returns:
          due_ms, offsets, and how many keys were read.
        """
        if self.key is None:
            due_ms, offsets = plan.read() if plan.in_memory else await run(plan.read)
            return due_ms, offsets, len(offsets)
        read = plan.read_traits
        due_ms, offsets, traits = read() if plan.in_memory else await run(read)
        at = may_have_key(traits, self.key, len(offsets))
        return due_ms[at], offsets[at], len(offsets)

    def matching(self, batch: MessageBatch) -> Int64s:
        """Return the rows of ``batch`` that have the key and the properties. O(messages)."""
        rows = np.arange(len(batch))
        if self.key is not None:
            keys = batch.keys or Blobs.empty(len(batch))
            rows = np.flatnonzero(keys.lengths == len(self.key))
            found = keys.take(rows).to_list()
            rows = rows[np.fromiter((key == self.key for key in found), bool, len(found))]
        if self.properties:
            packed = (batch.properties or Blobs.empty(len(batch))).take(rows).to_list()
            rows = rows[np.fromiter(map(self._has_properties, packed), bool, len(packed))]
        return rows

    def _has_properties(self, packed: bytes) -> bool:
        has = read_properties(packed)
        wanted = self.properties.items()
        return all(name in has and _same(has[name], value) for name, value in wanted)


def _same(value: Any, sought: Any) -> bool:
    """Return whether two values are equal or written alike. A command line gives only text."""
    return bool(value == sought or (isinstance(sought, str) and str(value) == sought))


@dataclass(frozen=True, slots=True, eq=False)
class Peeked:
    """Messages in the delivery order, in columns.

    ``next`` is where to continue; None at the end. ``looked`` is how many keys were read.
    """

    due_ms: Int64s
    offsets: Int64s
    batch: MessageBatch
    next: Key | None
    looked: int


async def peek(
    topic: Topic,
    index: DelayedIndex,
    run: Run,
    now_ms: int,
    sought: Sought,
    count: int,
    after: Key = KEY_MIN,
) -> Peeked:
    """Return the first pending messages from ``after`` on that match, up to ``count``.

    A message is pending if it is not yet due, or if it is due and a shared subscription has not
    acknowledged it. Messages in flight or in retry are pending too.
    """
    look = _Look(topic, index, run, sought, count)
    step = topic.sizes.frame_messages(_READ_MESSAGES, _READ_BYTES)
    begin = at = max(after, sought.start)
    until = sought.stop
    while at < until and not look.done:
        here, plan = at, index.plan(topic.id, at, until, _STEP_KEYS)
        due_ms, offsets, looked = await sought.candidates(plan, run)
        look.keys += looked
        due_ms, offsets = with_passed(topic.amendments.moves, due_ms, offsets, begin, plan.stop)
        fresh = topic.retention.pending(due_ms, offsets, now_ms) & ~look.has(offsets)
        pending = np.flatnonzero(fresh)
        at = plan.stop
        for low in range(0, len(pending), step):
            part = pending[low : low + step]
            stopped = await look.take(due_ms[part], offsets[part])
            if stopped is not None:
                at = max(stopped, here)
                break
        await trio.lowlevel.checkpoint()
    return look.result(at if at < until else None)


class _Look:
    """The messages that one page has found."""

    def __init__(
        self, topic: Topic, index: DelayedIndex, run: Run, sought: Sought, count: int
    ) -> None:
        self._topic = topic
        self._index = index
        self._run = run
        self._sought = sought
        self._missing = count
        self._found: list[tuple[Int64s, Int64s, MessageBatch]] = []
        self._messages = 0
        self._found_bytes = 0
        self.keys = 0

    @property
    def done(self) -> bool:
        """Whether the page has found enough, or read enough."""
        return (
            not self._missing
            or self.keys >= _PAGE_KEYS
            or self._messages >= _PAGE_MESSAGES
            or self._found_bytes >= _PAGE_BYTES
        )

    def has(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which messages the page has found already; bool[n]."""
        found = np.zeros(len(offsets), bool)
        for _, there, _ in self._found:
            found |= np.isin(offsets, there)
        return found

    async def take(self, due_ms: Int64s, offsets: Int64s) -> Key | None:
        """Take the messages that match. Return where to continue if the page is complete."""
        if not self._sought.by_content:
            due_ms, offsets = due_ms[: self._missing], offsets[: self._missing]
        fetch = self._index.fetch(self._topic.id, due_ms, offsets)
        rows, batch = self._read(fetch) if fetch.in_memory else await self._run(self._read, fetch)
        self._messages += len(offsets)
        if len(rows) > self._missing:
            rows, batch = rows[: self._missing], batch.take(np.arange(self._missing))
        self._missing -= len(rows)
        if len(rows):
            self._found.append((due_ms[rows], offsets[rows], batch))
            self._found_bytes += batch.size_bytes
        if not self.done:
            return None
        whole = self._missing or not self._sought.by_content
        last = -1 if whole else int(rows[-1])
        return Key(int(due_ms[last]), int(offsets[last])).successor()

    def _read(self, fetch: Fetch) -> tuple[Int64s, MessageBatch]:
        """Return the rows of a fetch that match, and their messages. Blocking."""
        # Messages that were done meanwhile may have left the index.
        there, batch = fetch.read_there(0, _ANY_OFFSET)
        rows = np.arange(len(batch)) if there is None else there
        if not self._sought.by_content:
            return rows, batch
        matching = self._sought.matching(batch)
        return rows[matching], batch.take(matching)

    def result(self, following: Key | None) -> Peeked:
        if not self._found:
            none = np.zeros(0, np.int64)
            return Peeked(none, none, MessageBatch(Blobs.empty(0)), following, self.keys)
        due_ms, offsets, batches = zip(*self._found, strict=True)
        return Peeked(
            np.concatenate(due_ms),
            np.concatenate(offsets),
            MessageBatch.concat(batches),
            following,
            self.keys,
        )
