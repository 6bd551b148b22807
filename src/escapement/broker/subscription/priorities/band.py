"""A priority band: reads the delivery order for a shared subscription.

There are three bands: *urgent* (a priority below the default), *normal* and *low*. Each reads the
same order separately and keeps its messages in a store of its own, so that the backlog of one band
never blocks another. A subscription has the normal band, and creates the others when it meets their
first message.

Fresh messages arrive in two ways, and the *read mark* decides which.

- While the mark is at the frontier (``mark is None``), every message of the band with a smaller key
  is acknowledged, held or passed over. Messages that the wheel returns are *offered* and go into
  ready.
- When an offer finds no room, the mark stays at its first key and the band is *behind*. The same
  happens to a large offer, which is left for *later* because it is better read together with its
  messages. The band then reads the index from the mark on: ``begin_scan`` says how far,
  ``end_scan`` takes the keys found. Offers at or past the mark may be ignored, because the scan
  reaches them; offers before it lower the mark.

Messages may be offered during a scan. Offers that fall into the range being read lower the mark
again when the scan ends. Offers beyond the range are taken as if the band were not behind, if the
scan is the one that catches up. So the mark only passes keys that are acknowledged, held or passed
over, and no due message is forgotten, even without traffic (invariant 4).

If the policy asks for an order, a band is stricter: it keeps no never-sent message in ready past a
key that it has not read. Offers beyond a scan wait for the next scan. A scan drops the keys past an
offer that arrived inside it. When an offer finds no room, ready messages past it go back to the
index. Otherwise a message could be delivered while an earlier one with the same key is still
unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from escapement.broker.subscription.priorities.ready import Ready, Rows
from escapement.message import DEFAULT_PRIORITY, Int64s, UInt32s
from escapement.sorting import lowest
from escapement.storage.index import KEY_MIN, Key
from escapement.storage.index.keys import position
from escapement.storage.offsets import OffsetSet
from escapement.traits import priorities_of

URGENT, NORMAL, LOW = -1, 0, 1
BANDS: Final = (URGENT, NORMAL, LOW)
# A band with room for a quarter of a piece joins the scan of another band.
_JOIN_SHARE: Final = 4


def bands_of(traits: UInt32s) -> Int64s:
    """Return the band of each message; int64[n]."""
    return np.sign(priorities_of(traits) - DEFAULT_PRIORITY)


class Queues(Protocol):
    """The store of ready messages of all bands, used if the policy asks for an order."""

    def push(self, rows: Rows) -> None:
        """Add rows, in any order."""
        ...

    def fresh_of(self, which: int) -> int:
        """Return the number of never-sent rows of a band."""
        ...


class Band:
    """One priority band of a shared subscription.

    Args:
      which: ``URGENT``, ``NORMAL`` or ``LOW``.
      limit: the most fresh rows in ready.
      mark: where reading begins.
      fresh: returns the rows that the subscription wants and does not hold.
      held: the subscription's set; rows that go into ready are added to it.
      took: called with the rows of an offer that went into ready.
      recall: returns never-sent messages of a band from a key on to the index.
    """

    __slots__ = (
        "_fresh",
        "_held",
        "_reached",
        "_recall",
        "_scan_catches_up",
        "_scan_low",
        "_scan_over",
        "_scan_until",
        "_took",
        "mark",
        "queues",
        "ready",
        "which",
    )

    def __init__(
        self,
        which: int,
        limit: int,
        ageing_ms: int,
        mark: Key | None,
        fresh: Callable[[Rows], Rows],
        held: OffsetSet,
        took: Callable[[Rows], None],
        recall: Callable[[int, Key], None],
    ) -> None:
        self.which = which
        self.ready = Ready(limit, ageing_ms)
        self.queues: Queues | None = None  # used instead of ``ready`` if set
        self.mark = mark
        self._fresh = fresh
        self._held = held
        self._took = took
        self._recall = recall
        self._reached = KEY_MIN  # no never-sent message in ``queues`` is past this
        self._scan_until: Key | None = None  # the end of the scan under way
        self._scan_catches_up = False  # whether that was the frontier when the scan began
        self._scan_low: Key | None = None  # the lowest key offered inside it
        self._scan_over: Key | None = None  # the first key beyond it without room

    # -- offers --------------------------------------------------------------------

    def offer(self, rows: Rows, *, later: bool = False) -> None:
        """Take due rows of the band, sorted by key, as far as there is room, or set the mark.

        Args:
          later: take none now, even if there is room; a scan reads them.
        """
        if not rows.height:
            return
        first = rows.key(0)
        if self._scan_until is not None:
            inside = position(rows.due_ms, rows.offsets, self._scan_until)
            if inside:
                self._scan_low = lowest((self._scan_low, first))
                self._stop_at(first)
            if inside < rows.height and self._scan_catches_up:
                self._offer_beyond(rows.pick(slice(inside, None)), later)
            return
        if self.mark is None:
            self.mark = first if later else self._take(rows, self._took)
        elif first < self.mark:
            self.mark = first
        else:
            return
        if self.mark is not None:
            self._stop_at(self.mark)

    def _offer_beyond(self, rows: Rows, later: bool) -> None:
        """Take rows past the scan under way, which is the one that catches up."""
        later = later or self.queues is not None
        if self._scan_over is None:
            self._scan_over = rows.key(0) if later else self._take(rows, self._took)
        else:
            # An earlier offer found no room. These rows may precede it in order: messages of the
            # wheel's next tick are often due earlier than a message that was due when published.
            self._scan_over = min(self._scan_over, rows.key(0))

    def _stop_at(self, key: Key) -> None:
        """Give back messages past this unread key, if the policy asks for an order."""
        if self.queues is not None and key <= self._reached:
            self._reached = key
            self._recall(self.which, key)

    def fall_behind(self, key: Key) -> None:
        """Note that keys from ``key`` on may be in the index without having been offered."""
        if self._scan_until is not None:
            self._scan_low = lowest((self._scan_low, key))
        elif self.mark is None or key < self.mark:
            self.mark = key

    def _take(self, rows: Rows, took: Callable[[Rows], None] | None = None) -> Key | None:
        """Hold the rows that find room; return the first key without room."""
        rows = self._fresh(rows)
        room = self.room
        left = None
        if rows.height > room:
            left = rows.key(room)
            rows = rows.pick(slice(0, room))
        if rows.height:
            if self._held.add(rows.offsets) < rows.height:
                # The index may hold a moved message under both its keys after it is done and
                # forgotten. A subscription created since then wants it again.
                rows = rows.once()
            if self.queues is not None:
                self.queues.push(rows)
                self._reached = max(self._reached, rows.key(-1))
            else:
                in_order = rows.traits is None
                self.ready.push(rows if in_order else rows.in_order(self.ready.ageing_ms))
            if took is not None:
                took(rows)
        return left

    @property
    def room(self) -> int:
        """The number of fresh rows that still fit."""
        if self.queues is None:
            return self.ready.room
        return max(0, self.ready.limit - self.queues.fresh_of(self.which))

    # -- scans ---------------------------------------------------------------------

    def wants_scan(self, piece: int) -> bool:
        """Whether the band is behind, is not being read, and has room for a piece."""
        return self.mark is not None and self._scan_until is None and self.room >= piece

    def lies_below(self, key: Key) -> bool:
        """Whether the band is behind and its mark is below this key."""
        return self.mark is not None and self.mark < key

    def may_join(self, piece: int) -> bool:
        """Whether there is enough room to join a scan of another band with the same mark."""
        return self.room * _JOIN_SHARE >= piece

    @property
    def may_precede(self) -> bool:
        """Whether unread messages may precede all ready messages of the band."""
        unread = self.unread_from
        if unread is None:
            return False
        if self.queues is not None:
            return not self.queues.fresh_of(self.which)
        first_ms = self.ready.first_ms
        # Ready messages of other bands are in the order of priorities, not of due times.
        return first_ms is None or (self.which == NORMAL and unread.due_ms < first_ms)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ready, unread or being read."""
        return self.mark is None and self._scan_until is None and not self.ready

    @property
    def is_reading(self) -> bool:
        """Whether a scan is under way."""
        return self._scan_until is not None

    def is_stuck(self, piece: int) -> bool:
        """Whether the band is behind, is not being read, and has room for less than a piece."""
        return self.mark is not None and self._scan_until is None and self.room < piece

    def has_unread(self, until_ms: int) -> bool:
        """Whether messages due by ``until_ms`` may be unread, and no scan is under way."""
        return self.mark is not None and self._scan_until is None and self.mark.due_ms <= until_ms

    @property
    def unread_from(self) -> Key | None:
        """The lowest key that may be unread; None if there is none."""
        return lowest((self.mark, self._scan_low))

    def begin_scan(self, stop: Key, catches_up: bool) -> None:
        """Begin a scan of ``[mark, stop)``; ``end_scan`` or ``break_scan`` must follow.

        Args:
          catches_up: whether ``stop`` is the current frontier.
        """
        assert self.mark is not None
        assert self._scan_until is None, "two scans at once"
        self._scan_until = stop
        self._scan_catches_up = catches_up
        self._scan_low = None
        self._scan_over = None

    def end_scan(self, rows: Rows) -> None:
        """Take the rows of the band that the scan found, sorted by key and without repeats."""
        stop = self._scan_until
        assert stop is not None
        self._scan_until = None
        marks = [self._scan_low]
        if self.queues is not None and self._scan_low is not None:
            rows = rows.pick(slice(0, position(rows.due_ms, rows.offsets, self._scan_low)))
        self._scan_low = None
        if rows.height:
            marks.append(self._take(rows))
        marks.append(self._scan_over if self._scan_catches_up else stop)
        self.mark = lowest(marks)

    def break_scan(self) -> None:
        """Abandon the scan, which failed or whose subscription stops; the mark stays."""
        self._scan_until = None
        low, self._scan_low = self._scan_low, None
        if low is not None and self.mark is not None:
            self.mark = min(self.mark, low)
