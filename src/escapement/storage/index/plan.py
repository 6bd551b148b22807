"""Plans: which part of the delivery order to read next, and from where.

This module decides where a scan stops. It has two pinned reads, :class:`Plan` (the keys of a
range) and :class:`Fetch` (the messages of given keys). Making one is synchronous and does no
I/O, so it can be one step with moving a horizon. Reading it may happen later and in another
thread, because it holds references to all it needs: tables only grow, segments never change, and
an unlinked file stays readable while it is open.

It does not know tables or segments, only what both can do (:class:`Span`, :class:`Store`).
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
    """Raised when a block would have to be read from disk and the caller forbids that."""


class Landmarks(NamedTuple):
    """Keys of a source that are known without a read: the first and last keys of blocks.

    A block wholly in range weighs half at its first key and half at its last. So sums over
    sources with overlapping blocks estimate without bias how many messages lie below a key.
    """

    due_ms: Int64s
    offsets: Int64s
    weights: npt.NDArray[np.float64]
    is_last: Bools


class Source(NamedTuple):
    """The place of the messages of some keys: their columns, to be read if necessary, and rows."""

    columns: Callable[[], Columns]
    rows: Int64s


class Span(Protocol):
    """The part of one source that lies in a range of keys."""

    @property
    def on_disk(self) -> bool: ...

    @property
    def count(self) -> int:
        """An upper bound of the number of messages."""
        ...

    @property
    def likely_count(self) -> int:
        """An estimate of the number of messages that looks at no key."""
        ...

    def landmarks(self, wanted: int, stride: int) -> Landmarks:
        """Return known keys in range, ascending, until blocks of ``wanted`` messages are named.

        A source that knows every key returns each ``stride``-th.
        """
        ...

    def keys(self, stop: Key) -> list[Keys]:
        """Return the keys in range that are smaller than ``stop``, in sorted parts."""
        ...

    def traits(self, stop: Key) -> list[UInt32s | None]:
        """Return the traits of those keys, part by part; None for a part without any."""
        ...

    def sources(self, stop: Key) -> list[Source]:
        """Return the places of the messages of those keys, part by part."""
        ...


class Store(Protocol):
    """A source of messages by key."""

    def find(self, due_ms: Int64s, offsets: Int64s) -> list[Pick]:
        """Return the places of those of the given keys that this store has."""
        ...


class Table(Store, Protocol):
    """A source in memory that covers a range of offsets."""

    @property
    def offset_range(self) -> tuple[int, int]:
        """The first and the last offset. ``find`` must not be asked for others."""
        ...


class SlowStore(Protocol):
    """A source of messages by key that may have to be read from the disk."""

    def find(self, due_ms: Int64s, offsets: Int64s, at_hand: bool = False) -> list[Pick]:
        """As ``Store.find``; with ``at_hand`` raises ``NotAtHand`` instead of reading."""
        ...


class Plan:
    """A pinned read of the keys in the spans that are smaller than ``stop``."""

    __slots__ = ("_keys", "_rows", "_sources", "_spans", "stop")

    def __init__(self, spans: Sequence[Span], until: Key, max_messages: int) -> None:
        assert max_messages > 0
        self._spans = spans
        # The keys that ``read_traits`` found, and the row of each among all parts.
        self._keys, self._rows = NO_KEYS, np.zeros(0, np.int64)
        self._sources: list[Source] | None = None  # the messages of these parts; None: unknown
        self.stop = until
        if sum(span.count for span in spans) > max_messages:
            self.stop = _cut(spans, until, max_messages)

    @property
    def in_memory(self) -> bool:
        """Whether ``read`` touches no disk."""
        return not self.files

    @property
    def files(self) -> int:
        """The number of segments that ``read`` looks into, at most."""
        return sum(span.on_disk for span in self._spans)

    def read(self) -> Keys:
        """Return ``(due_ms, offsets)`` of the range, sorted, each key once. Blocking.

        Raises:
          IndexDamaged: if a block on disk fails its checksum.
        """
        return merge([part for span in self._spans for part in span.keys(self.stop)])

    def read_traits(self) -> tuple[Int64s, Int64s, UInt32s | None]:
        """Return the keys as ``read`` does, and their traits or None if all are 0. Blocking."""
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
        """Whether ``read_traits`` noted the rows of the messages; it does if any has traits."""
        return bool(len(self._rows))

    def locate(self, keys: Keys, size_bytes: int) -> Iterator[tuple[Int64s, list[Pick]]]:
        """Yield the places of messages whose keys ``read_traits`` returned. Blocking.

        The keys may be in any order. The places come in pieces and in storage order, so that
        ``assemble`` copies neighbours together.

        Args:
          size_bytes: a piece ends with the source that makes its payloads reach this size.

        Yields:
          The indexes of some of the keys, and the places of their messages in the same order.

        Raises:
          IndexDamaged: if a block on disk fails its checksum.
        """
        if self._sources is None:
            self._sources = [part for span in self._spans for part in span.sources(self.stop)]
        at = match(self._keys, keys)
        assert bool((at >= 0).all()), "keys of another range"
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
    """Return a key below which about ``wanted`` messages lie: the successor of a known key.

    Only the last keys of blocks are candidates. They are keys of messages in range, so at
    least one message lies before the cut, however small ``wanted`` is. A cut after the first
    key of a block would read the block for one message.
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


def places_missing(count: int, picks: Sequence[Pick]) -> Int64s:
    """Return which of ``count`` places the picks leave empty; ascending."""
    if not picks:
        return np.arange(count)
    empty = np.ones(count, np.bool_)
    for pick in picks:
        empty[pick.places] = False
    return np.flatnonzero(empty)


class Fetch:
    """A pinned read of the messages of given keys, in the order of the keys.

    Args:
      found: places of some of the messages, if already known.
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
        """Whether ``read`` touches no disk: blocks of segments are cached, and pinned now.

        Looks for the messages at the first use.
        """
        if self._at_hand is None:
            with suppress(NotAtHand):
                self._at_hand = self._find(at_hand=True)
        return self._at_hand is not None

    def read(self) -> MessageBatch:
        """Return one row for each key. Blocking.

        Raises:
          IndexDamaged: if a block fails its checksum, or a key is in no source. An intact index
            has every live key that a plan returned.
        """
        return self.read_there(0, 0)[1]

    def read_there(self, low: int, high: int) -> tuple[Int64s | None, MessageBatch]:
        """Read as ``read`` does, but allow messages with offsets in ``[low, high)`` to be gone.

        Returns which rows are there, ascending, or None for all; and their messages. Blocking.
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
        place = np.cumsum(there) - 1
        moved = [Pick(place[pick.places], pick.columns, pick.rows) for pick in picks]
        return np.flatnonzero(there), assemble(int(there.sum()), moved)

    def _find(self, at_hand: bool) -> tuple[list[Pick], Int64s]:
        """Return the places of the messages, and the rows of those found nowhere.

        Raises:
          NotAtHand: only with ``at_hand``: if a block would have to be read.
        """
        picks = list(self._found)
        missing = places_missing(len(self._due_ms), picks)
        if self._memory and len(missing):
            found, missing = self._find_in_memory(missing)
            picks += found
        due_ms, offsets = self._due_ms[missing], self._offsets[missing]
        if self._disk and len(missing) and not is_sorted(due_ms, offsets):
            missing = missing[sorted_order(due_ms, offsets)]
        for store in self._disk:
            if not len(missing):
                break
            found = store.find(self._due_ms[missing], self._offsets[missing], at_hand=at_hand)
            if not found:
                continue
            if not picks and len(found) == 1 and len(found[0].places) == len(missing):
                only = found[0]  # the usual case
                return [only._replace(places=missing[only.places])], missing[:0]
            left = np.ones(len(missing), np.bool_)
            for places, columns, rows in found:
                left[places] = False
                picks.append(Pick(missing[places], columns, rows))
            missing = missing[left]
        return picks, missing

    def _find_in_memory(self, missing: Int64s) -> tuple[list[Pick], Int64s]:
        """Return the places in memory of these rows, and the rows not found there, ascending.

        A burst may lie in a hundred tables, each with its own range of offsets. So each table is
        asked only for offsets in its range.
        """
        offsets = self._offsets[missing]
        by_offset = argsort(offsets)
        places, offsets = missing[by_offset], offsets[by_offset]
        due_ms = self._due_ms[places]
        bounds = np.array([store.offset_range for store in self._memory])
        lows = offsets.searchsorted(bounds[:, 0]).tolist()
        highs = offsets.searchsorted(bounds[:, 1], "right").tolist()
        picks: list[Pick] = []
        left = np.ones(len(places), np.bool_)
        for store, low, high in zip(self._memory, lows, highs, strict=True):
            if low == high:
                continue
            asked = np.arange(low, high)
            if not left[low:high].all():  # ranges may overlap
                asked = asked[left[low:high]]
            for found, columns, rows in store.find(due_ms[asked], offsets[asked]):
                left[asked[found]] = False
                picks.append(Pick(places[asked[found]], columns, rows))
        return picks, np.sort(places[left])
