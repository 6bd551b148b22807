"""Plans and fetches: reads of the delayed index that are prepared now and done later.

The *keys* of the index are the pairs ``(due_ms, offset)`` of its messages. A :class:`Plan` reads
the keys in a range, and this module decides where it stops. A :class:`Fetch` reads the messages of
given keys. Creating either is synchronous and does no I/O, so the caller can record in the same
step how far it will have read. Reading may happen later and in another thread, because a plan or
fetch is *pinned*: it has references to all tables and segments that it reads. Tables only grow,
segments never change, and an unlinked file stays readable while it is open.

The sources of messages are memory tables and the parts of a topic in segments (files). This module
does not import them. It defines their interfaces as protocols: :class:`Span`, :class:`Store`,
:class:`Table` and :class:`SlowStore`. A :class:`Pick` names messages found in a source: their rows
there, and their positions in the result. *Traits* are 32 bits for each message, with its priority
and a hash of its message key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from escapement.errors import IndexDamaged
from escapement.message import Bools, Int64s, MessageBatch, UInt32s, concat_columns
from escapement.sorting import argsort
from escapement.storage.index.columns import Columns, Pick, assemble
from escapement.storage.index.keys import (
    NO_KEYS,
    Key,
    Keys,
    concat,
    is_sorted,
    match,
    merge,
    sorted_order,
    unique_sorted,
)


class NotAtHand(Exception):
    """Raised when a message is not in memory and the caller forbids reading from disk."""


class Landmarks(NamedTuple):
    """Some keys of a source that are known without a read: the first and last keys of its blocks.

    A weight is a number of messages: half of a block's messages belong to its first key and half
    to its last. So the sum of the weights up to a key estimates without bias how many messages lie
    below that key, also for several sources with overlapping blocks. ``is_last`` tells the last
    keys from the first ones.
    """

    due_ms: Int64s
    offsets: Int64s
    weights: npt.NDArray[np.float64]
    is_last: Bools


class Source(NamedTuple):
    """Where messages are: a function that returns or reads their columns, and their rows there."""

    columns: Callable[[], Columns]
    rows: Int64s


class Span(Protocol):
    """The part of one source of messages that lies in a range of keys."""

    @property
    def on_disk(self) -> bool: ...

    @property
    def count(self) -> int:
        """An upper bound of the number of messages in the range."""
        ...

    @property
    def likely_count(self) -> int:
        """An estimate of the number of messages in the range, made without reading keys."""
        ...

    def landmarks(self, wanted: int, stride: int) -> Landmarks:
        """Return landmarks in the range, from its start on, that cover ``wanted`` messages.

        A source on disk returns the first and last keys of its blocks. A source in memory returns
        those of imaginary blocks of ``stride`` messages.
        """
        ...

    def keys(self, stop: Key) -> list[Keys]:
        """Return the keys in the range that are smaller than ``stop``, as sorted columns.

        The columns are the *parts* that ``traits`` and ``sources`` refer to.
        """
        ...

    def traits(self, stop: Key) -> list[UInt32s | None]:
        """Return the traits of the keys that ``keys`` returns, for each part.

        The traits of a part are None if all are 0.
        """
        ...

    def sources(self, stop: Key) -> list[Source]:
        """Return the sources of the messages of the keys that ``keys`` returns, for each part."""
        ...


class Store(Protocol):
    """A source of messages in memory that finds messages by key."""

    def find(self, due_ms: Int64s, offsets: Int64s) -> list[Pick]:
        """Return the messages of the given keys, as far as this store has them.

        The positions in the result are indexes of the given keys.
        """
        ...


class Table(Store, Protocol):
    """A store whose messages lie in one range of offsets."""

    @property
    def offset_range(self) -> tuple[int, int]:
        """The first and the last offset. Pass only offsets in this range to ``find``."""
        ...


class SlowStore(Protocol):
    """A source of messages that finds messages by key, and may have to read them from disk."""

    def find(self, due_ms: Int64s, offsets: Int64s, at_hand: bool = False) -> list[Pick]:
        """Return the messages of the given keys, as far as this store has them.

        The positions in the result are indexes of the given keys.

        Args:
          at_hand: do not read from disk.

        Raises:
          NotAtHand: if ``at_hand`` is true and a message would have to be read from disk.
        """
        ...


class Plan:
    """A pinned read of the keys in some spans, up to but without the key ``stop``."""

    __slots__ = ("_keys", "_rows", "_sources", "_spans", "stop")

    def __init__(self, spans: Sequence[Span], until: Key, max_messages: int) -> None:
        assert max_messages > 0
        self._spans = spans
        # The keys that ``read_traits`` found, and the index of each in the joined parts of all
        # spans.
        self._keys, self._rows = NO_KEYS, np.zeros(0, np.int64)
        self._sources: list[Source] | None = None  # of each part; None: not asked for yet
        self.stop = until
        if sum(span.count for span in spans) > max_messages:
            self.stop = _cut(spans, until, max_messages)

    @property
    def in_memory(self) -> bool:
        """Whether ``read`` needs no access to the disk."""
        return not self.files

    @property
    def files(self) -> int:
        """An upper bound of the number of segments (files) that ``read`` reads."""
        return sum(span.on_disk for span in self._spans)

    def read(self) -> Keys:
        """Return the keys ``(due_ms, offsets)`` of the plan, sorted, each key once. Blocking.

        Raises:
          IndexDamaged: if a block on disk fails its checksum.
        """
        return merge([part for span in self._spans for part in span.keys(self.stop)])

    def read_traits(self) -> tuple[Int64s, Int64s, UInt32s | None]:
        """Return due times and offsets as ``read`` does, and the traits of these keys. Blocking.

        The traits are None if all are 0. Also notes where the messages are, for ``locate``.

        Raises:
          IndexDamaged: if a block on disk fails its checksum.
        """
        traits = [part for span in self._spans for part in span.traits(self.stop)]
        if all(part is None or not len(part) for part in traits):
            return (*self.read(), None)
        keys = [part for span in self._spans for part in span.keys(self.stop)]
        rows, (due_ms, offsets) = unique_sorted(*concat(keys))
        heights = [len(part[0]) for part in keys]
        found = concat_columns(list(zip(heights, traits, strict=True)), 0, np.uint32)
        assert found is not None
        self._keys, self._rows = (due_ms, offsets), rows
        return due_ms, offsets, found[rows] if found.any() else None

    @property
    def can_locate(self) -> bool:
        """Whether ``locate`` may be called: ``read_traits`` has found keys, and traits not 0."""
        return bool(len(self._rows))

    def locate(self, keys: Keys, size_bytes: int) -> Iterator[tuple[Int64s, list[Pick]]]:
        """Find the messages of keys that ``read_traits`` returned. Blocking.

        The result comes in pieces and in the order in which the messages are stored, so that
        ``assemble`` can copy neighbours together.

        Args:
          keys: some of the keys, in any order.
          size_bytes: a piece ends when its payloads reach this size, at the end of a source.

        Yields:
          The indexes in ``keys`` of the messages of a piece, and picks from which ``assemble``
          makes a batch of these messages in the same order.

        Raises:
          IndexDamaged: if a block on disk fails its checksum.
        """
        if self._sources is None:
            self._sources = [part for span in self._spans for part in span.sources(self.stop)]
        at = match(self._keys, keys)
        assert bool((at >= 0).all()), "locate takes only keys that read_traits returned"
        rows = self._rows[at]
        order = argsort(rows)
        rows = rows[order]
        bounds = np.cumsum([0, *(len(part.rows) for part in self._sources)])
        cuts = pairwise(rows.searchsorted(bounds).tolist())
        picks: list[Pick] = []
        begin = taken_bytes = 0
        for part, first, (low, high) in zip(self._sources, bounds.tolist(), cuts, strict=False):
            if low == high:
                continue
            columns, which = part.columns(), part.rows[rows[low:high] - first]
            picks.append(Pick(np.arange(low - begin, high - begin), columns, which))
            taken_bytes += int(columns.payloads.lengths[which].sum())
            if taken_bytes >= size_bytes or high == len(rows):
                yield order[begin:high], picks
                picks, begin, taken_bytes = [], high, 0


def _cut(spans: Sequence[Span], until: Key, wanted: int) -> Key:
    """Return a key below which about ``wanted`` messages of the spans lie, at most ``until``.

    It is the successor of the last key of a block. Such keys belong to messages in the range, so
    at least one message lies below the result, however small ``wanted`` is. The successor of the
    first key of a block would not do: a plan would read the whole block for one message.
    """
    stride = max(1, wanted // (2 * len(spans)))
    marks = [span.landmarks(wanted, stride) for span in spans]
    due_ms = np.concatenate([mark.due_ms for mark in marks])
    offsets = np.concatenate([mark.offsets for mark in marks])
    order = sorted_order(due_ms, offsets)
    below = np.cumsum(np.concatenate([mark.weights for mark in marks])[order])
    enough = below >= wanted
    enough &= np.concatenate([mark.is_last for mark in marks])[order]
    if not enough.any():
        return until
    row = order[int(enough.argmax())]
    return min(until, Key(int(due_ms[row]), int(offsets[row])).successor())


def missing_positions(count: int, picks: Sequence[Pick]) -> Int64s:
    """Return the positions from 0 to ``count - 1`` that no pick fills; ascending."""
    if not picks:
        return np.arange(count)
    empty = np.ones(count, np.bool_)
    for pick in picks:
        empty[pick.positions] = False
    return np.flatnonzero(empty)


class Fetch:
    """A pinned read of the messages of given keys. The result has the same order as the keys.

    Args:
      topic_id: the topic, for error messages.
      keys: the keys of the messages, in any order.
      memory: the memory tables to look into first.
      disk: the parts of segments to look into then.
      found: picks of messages that the caller has found elsewhere; their positions are indexes of
        ``keys``.
    """

    __slots__ = ("_at_hand", "_disk", "_due_ms", "_found", "_memory", "_offsets", "_topic_id")

    def __init__(
        self,
        topic_id: int,
        keys: Keys,
        memory: Sequence[Table],
        disk: Sequence[SlowStore],
        found: Sequence[Pick] = (),
    ) -> None:
        self._topic_id = topic_id
        self._due_ms, self._offsets = keys
        self._memory = memory
        self._disk = disk
        self._found = found
        self._at_hand: tuple[list[Pick], Int64s] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether ``read`` needs no access to the disk, because all blocks are cached.

        The first use of this property looks for the messages. If all are in memory, the fetch keeps
        references to them, so that the answer stays true.
        """
        if self._at_hand is None:
            with suppress(NotAtHand):
                self._at_hand = self._find(at_hand=True)
        return self._at_hand is not None

    def read(self) -> MessageBatch:
        """Return a batch with the message of each key. Blocking.

        Raises:
          IndexDamaged: if a block fails its checksum, or the message of a key is in no source. An
            intact index has the message of every key that a plan returned, unless a compaction
            removed it because it was no longer needed.
        """
        return self.read_there(0, 0)[1]

    def read_there(self, low: int, high: int) -> tuple[Int64s | None, MessageBatch]:
        """Return the messages that exist; those with offsets in ``[low, high)`` may be missing.

        Blocking. Returns the indexes of the keys whose messages exist, ascending, or None if all
        exist; and a batch of these messages.

        Raises:
          IndexDamaged: if a block fails its checksum, or another message is missing.
        """
        picks, missing = self._at_hand or self._find(at_hand=False)
        count = len(self._due_ms)
        if not len(missing):
            return None, assemble(count, picks)
        offsets = self._offsets[missing]
        lost = int(((offsets < low) | (offsets >= high)).sum())
        if lost:
            raise IndexDamaged(
                f"The delayed index lacks {lost} of {count} messages of topic"
                f" {self._topic_id} that were requested. It must be rebuilt from the log."
            )
        there = np.ones(count, np.bool_)
        there[missing] = False
        new_positions = np.cumsum(there) - 1
        moved = [Pick(new_positions[pick.positions], pick.columns, pick.rows) for pick in picks]
        return np.flatnonzero(there), assemble(int(there.sum()), moved)

    def _find(self, at_hand: bool) -> tuple[list[Pick], Int64s]:
        """Find the messages in all sources.

        Returns the picks of the messages found, and the indexes of the keys not found.

        Args:
          at_hand: do not read from disk.

        Raises:
          NotAtHand: if ``at_hand`` is true and a message would have to be read from disk.
        """
        picks = list(self._found)
        missing = missing_positions(len(self._due_ms), picks)
        if self._memory and len(missing):
            found, missing = self._find_in_memory(missing)
            picks += found
        if not len(missing):
            return picks, missing
        due_ms, offsets = self._due_ms[missing], self._offsets[missing]
        if self._disk and not is_sorted(due_ms, offsets):
            missing = missing[sorted_order(due_ms, offsets)]
        for store in self._disk:
            if not len(missing):
                break
            found = store.find(self._due_ms[missing], self._offsets[missing], at_hand=at_hand)
            if not found:
                continue
            if not picks and len(found) == 1 and len(found[0].positions) == len(missing):
                only = found[0]  # the usual case: all messages are in one block of one source
                return [only._replace(positions=missing[only.positions])], missing[:0]
            left = np.ones(len(missing), np.bool_)
            for positions, columns, rows in found:
                left[positions] = False
                picks.append(Pick(missing[positions], columns, rows))
            missing = missing[left]
        return picks, missing

    def _find_in_memory(self, missing: Int64s) -> tuple[list[Pick], Int64s]:
        """Find messages in the memory tables.

        Returns the picks of the messages found, and the indexes of the keys not found, ascending.
        The messages may lie in a hundred tables, each with its own range of offsets. So each table
        is asked only for offsets in its range.

        Args:
          missing: the indexes of the keys to look for.
        """
        if len(missing) == 1:
            return self._find_one_in_memory(missing)
        offsets = self._offsets[missing]
        by_offset = argsort(offsets)
        positions, offsets = missing[by_offset], offsets[by_offset]
        due_ms = self._due_ms[positions]
        bounds = np.array([store.offset_range for store in self._memory])
        lows = offsets.searchsorted(bounds[:, 0]).tolist()
        highs = offsets.searchsorted(bounds[:, 1], "right").tolist()
        picks: list[Pick] = []
        left = np.ones(len(positions), np.bool_)
        for store, low, high in zip(self._memory, lows, highs, strict=True):
            if low == high:
                continue
            asked = np.arange(low, high)
            # The ranges of tables may overlap, so an earlier table may have some of these messages.
            if not left[low:high].all():
                asked = asked[left[low:high]]
            for found, columns, rows in store.find(due_ms[asked], offsets[asked]):
                left[asked[found]] = False
                picks.append(Pick(positions[asked[found]], columns, rows))
        return picks, np.sort(positions[left])

    def _find_one_in_memory(self, missing: Int64s) -> tuple[list[Pick], Int64s]:
        """Find the message of one key in the memory tables; as ``_find_in_memory``."""
        due_ms, offsets = self._due_ms[missing], self._offsets[missing]
        offset = int(offsets[0])
        for store in self._memory:
            low, high = store.offset_range
            if low <= offset <= high and (found := store.find(due_ms, offsets)):
                return [found[0]._replace(positions=missing)], missing[:0]
        return [], missing
