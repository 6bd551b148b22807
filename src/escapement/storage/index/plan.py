"""Plans: which part of the delivery order to read next, and from where.

Owns the choice of where a scan stops and the two pinned reads, :class:`Plan` (keys of
a range) and :class:`Fetch` (the messages of given keys). Making one is a synchronous
step without I/O, so that it can be one step with moving a horizon; reading it may
happen later and in another thread, because all it needs is held by reference: tables
only grow, segments never change, and an unlinked file stays readable while it is open.

Knows neither tables nor segments, only what both can do (:class:`Span`,
:class:`Store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from escapement.errors import IndexDamaged
from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.sorting import argsort
from escapement.storage.index.columns import Columns, Pick, assemble
from escapement.storage.index.keys import (
    NO_KEYS,
    Bools,
    Key,
    Keys,
    is_sorted,
    match,
    merge,
    merge_rows,
    sorted_order,
)
from escapement.traits import concat_traits


class NotAtHand(Exception):
    """Is raised where a block would have to be read from the disk, and must not be."""


class Landmarks(NamedTuple):
    """Keys of a source that are known without reading it: firsts and lasts of blocks.

    A block wholly in range weighs half at its first key and half at its last, so that
    sums over sources whose blocks overlap estimate without bias how many messages lie
    below a key.
    """

    due_ms: Int64s
    offsets: Int64s
    weights: npt.NDArray[np.float64]
    is_last: Bools


class Source(NamedTuple):
    """Where messages of some keys are: ``columns`` may have to be read; the row of each key."""

    columns: Callable[[], Columns]
    rows: Int64s


class Span(Protocol):
    """The part of one source that lies in a range of keys."""

    @property
    def on_disk(self) -> bool: ...

    @property
    def count(self) -> int:
        """At most so many messages."""
        ...

    @property
    def likely_count(self) -> int:
        """About so many, without a look at any key."""
        ...

    def landmarks(self, wanted: int, stride: int) -> Landmarks:
        """Known keys in range, ascending, until blocks of ``wanted`` messages are named.

        Sources that could name every key name each ``stride``-th.
        """
        ...

    def keys(self, stop: Key) -> list[Keys]:
        """The keys in range that are smaller than ``stop``, in sorted parts."""
        ...

    def traits(self, stop: Key) -> list[UInt32s | None]:
        """The traits of those, part by part; None where none has any."""
        ...

    def sources(self, stop: Key) -> list[Source]:
        """Where the messages of those are, part by part."""
        ...


class Store(Protocol):
    """A source of messages by key."""

    def find(self, due_ms: Int64s, offsets: Int64s) -> list[Pick]:
        """Those of the wanted keys that are here."""
        ...


class Table(Store, Protocol):
    """A source in memory, of a range of offsets."""

    @property
    def offset_range(self) -> tuple[int, int]:
        """The first and the last. ``find`` is asked for no other."""
        ...


class SlowStore(Protocol):
    """A source of messages by key that may have to be read from the disk."""

    def find(self, due_ms: Int64s, offsets: Int64s, at_hand: bool = False) -> list[Pick]:
        """As of a ``Store``; with ``at_hand`` raises ``NotAtHand`` rather than read."""
        ...


class Plan:
    """The keys in ``[start, stop)``; everything before ``stop`` that ``start`` bounds."""

    __slots__ = ("_keys", "_rows", "_sources", "_spans", "start", "stop")

    def __init__(
        self,
        spans: Sequence[Span],
        start: Key,
        until: Key,
        max_messages: int,
    ) -> None:
        assert max_messages > 0
        self.start = start
        self._spans = spans
        # What ``read_traits`` found, and which row of all parts each is.
        self._keys, self._rows = NO_KEYS, np.zeros(0, np.int64)
        self._sources: list[Source] | None = None  # where those are, once somebody asks
        self.stop = until
        if sum(span.count for span in spans) > max_messages:
            self.stop = _cut(spans, until, max_messages)

    @property
    def empty(self) -> bool:
        """Nothing can be in the range."""
        return not self._spans

    @property
    def in_memory(self) -> bool:
        """``read`` touches no disk."""
        return not self.files

    @property
    def files(self) -> int:
        """How many segments ``read`` looks into, at most."""
        return sum(span.on_disk for span in self._spans)

    def read(self) -> Keys:
        """``(due_ms, offsets)`` of the range, sorted, each key once. Blocking.

        Raises:
          IndexDamaged: a block on disk fails its checksum.
        """
        return merge([part for span in self._spans for part in span.keys(self.stop)])

    def read_traits(self) -> tuple[Int64s, Int64s, UInt32s | None]:
        """As ``read``, with the messages' traits; None if none has any. Blocking."""
        traits = [part for span in self._spans for part in span.traits(self.stop)]
        if all(part is None or not len(part) for part in traits):
            return (*self.read(), None)
        keys = [part for span in self._spans for part in span.keys(self.stop)]
        rows, (due_ms, offsets) = merge_rows(keys)
        heights = [len(part[0]) for part in keys]
        found = concat_traits(list(zip(heights, traits, strict=True)))
        assert found is not None
        self._keys, self._rows = (due_ms, offsets), rows
        return due_ms, offsets, found[rows] if found.any() else None

    @property
    def can_locate(self) -> bool:
        """Whether ``read_traits`` has noted which rows the messages are: if some have traits."""
        return bool(len(self._rows))

    def locate(self, keys: Keys, size_bytes: int) -> Iterator[tuple[Int64s, list[Pick]]]:
        """Where the messages of keys are that ``read_traits`` gave, in any order. Blocking.

        They come as they lie, so that ``assemble`` copies neighbours as one, and in pieces.

        Args:
          size_bytes: a piece ends with the source that makes its payloads come to this.

        Yields:
          Which of the keys, and where those are, in the same order.

        Raises:
          IndexDamaged: a block on disk fails its checksum.
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
    """Where about ``wanted`` messages lie below: past a key that is known to exist.

    Only lasts of blocks are candidates: they are keys of messages in range, so at least
    one message lies before the cut however small ``wanted`` is; and a cut after a first
    would read a block for one message.
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
    """Which of ``count`` places the picks leave empty; ascending."""
    if not picks:
        return np.arange(count)
    empty = np.ones(count, np.bool_)
    for pick in picks:
        empty[pick.places] = False
    return np.flatnonzero(empty)


class Fetch:
    """The messages of given keys, in the order they were asked for.

    Args:
      found: where some of them are already known to be.
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
        """``read`` touches no disk: what lies in segments is in the cache, and pinned now.

        Looks for the messages, unless it has found them before.
        """
        if self._at_hand is None:
            with suppress(NotAtHand):
                self._at_hand = self._find(at_hand=True)
        return self._at_hand is not None

    def read(self) -> MessageBatch:
        """One row for each key asked. Blocking.

        Raises:
          IndexDamaged: a block fails its checksum, or a key is in no source (which an
            intact index never shows for a key that a plan returned and somebody wants).
        """
        return self.read_there(0, 0)[1]

    def read_there(self, low: int, high: int) -> tuple[Int64s | None, MessageBatch]:
        """As ``read``, but that messages with offsets in ``[low, high)`` may be gone. Blocking.

        Returns which rows are there, ascending, None for all; and these.
        """
        picks, missing = self._at_hand or self._find(at_hand=False)
        count = len(self._due_ms)
        if not len(missing):
            return None, assemble(count, picks)
        offsets = self._offsets[missing]
        lost = int(((offsets < low) | (offsets >= high)).sum())
        if lost:
            raise IndexDamaged(
                f"the delayed index lacks {lost} of {count} messages of topic"
                f" {self._topic_id} that were asked for; it must be rebuilt from the log"
            )
        there = np.ones(count, np.bool_)
        there[missing] = False
        place = np.cumsum(there) - 1
        moved = [Pick(place[pick.places], pick.columns, pick.rows) for pick in picks]
        return np.flatnonzero(there), assemble(int(there.sum()), moved)

    def _find(self, at_hand: bool) -> tuple[list[Pick], Int64s]:
        """Where the messages are, and which rows are nowhere.

        Raises:
          NotAtHand: only with ``at_hand``: a block would have to be read.
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
                only = found[0]  # as it mostly is
                return [only._replace(places=missing[only.places])], missing[:0]
            left = np.ones(len(missing), np.bool_)
            for places, columns, rows in found:
                left[places] = False
                picks.append(Pick(missing[places], columns, rows))
            missing = missing[left]
        return picks, missing

    def _find_in_memory(self, missing: Int64s) -> tuple[list[Pick], Int64s]:
        """Where in memory these rows are, and which are not there, ascending.

        A burst lies in a hundred tables, each of a range of offsets: so each is asked only for
        what is in its range.
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
