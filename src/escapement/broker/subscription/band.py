"""A band of priorities: reads the delivery order for a shared subscription.

There are three: *urgent* (a priority below the default), *normal* and *low*. Each reads
the same order by itself and keeps what it found in a store of its own, so that a backlog
of one never stands in the way of another, however long it is. A subscription has the
normal one, and the others once it has met a message for them.

Fresh messages arrive in two ways, and the *read mark* decides which.

- While the mark is at the frontier (``mark is None``) every message of the band with a
  smaller key is acknowledged, held or passed over. What the wheel returns is *offered*
  and goes into ready.
- When an offer finds no room, or is left for *later* because it is large and is better read
  together with its messages, the mark stays at its first key and the band is *behind*.
  It then reads the index from the mark on by itself: ``begin_scan`` says how far,
  ``end_scan`` takes what was found. Offers at or past the mark may be ignored, because
  the scan will come to them; offers before it lower it.

A scan is read while the world goes on. Offers that fall into the range being read
lower the mark again when the scan ends; those beyond the range are taken as if the
band were not behind, if the scan is the one that catches up. So the mark only ever
passes keys that are acknowledged, held or passed over, and nothing due is forgotten
without traffic (invariant 4).

Where an order is asked for, a band is stricter: it keeps no message that was never sent in
ready past a key that it has not read. Offers beyond a scan wait for the next scan. A scan drops
the keys past an offer that came inside it. When an offer finds no room, messages that are ready
past it go back to the index. Otherwise a message could be handed out while an earlier one of its
key is still unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from escapement.broker.subscription.ready import Ready, Rows
from escapement.message import DEFAULT_PRIORITY, Int64s, UInt32s
from escapement.storage.index import KEY_MIN, Key
from escapement.storage.offsets import OffsetSet
from escapement.traits import priorities_of

URGENT, NORMAL, LOW = -1, 0, 1
BANDS: Final = (URGENT, NORMAL, LOW)
# Who has room for one in so many of those takes part in the scan of another.
_JOIN_SHARE: Final = 4


def bands_of(traits: UInt32s) -> Int64s:
    """The band of each message; int64[n]."""
    return np.sign(priorities_of(traits) - DEFAULT_PRIORITY)


class Queues(Protocol):
    """Where what is ready lies if an order is asked for, together for all bands."""

    def push(self, rows: Rows) -> None:
        """Add rows, in any order."""
        ...

    def fresh_of(self, which: int) -> int:
        """How many rows of a band there are that were never sent."""
        ...


class Band:
    """See the module's docstring.

    Args:
      which: ``URGENT``, ``NORMAL`` or ``LOW``.
      limit: how many fresh rows ready takes.
      mark: where reading begins.
      fresh: of some rows, those that the subscription wants and does not hold.
      held: the subscription's; what goes into ready is added to it.
      took: told what of an offer went into ready.
      recall: gives messages of a band that were never sent back to the index, from a key on.
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
        self.queues: Queues | None = None  # in the place of ready, where there are any
        self.mark = mark
        self._fresh = fresh
        self._held = held
        self._took = took
        self._recall = recall
        self._reached = KEY_MIN  # no message in ``queues`` that was never sent is past this
        self._scan_until: Key | None = None  # a scan is under way up to here
        self._scan_catches_up = False  # and that is the frontier of when it began
        self._scan_low: Key | None = None  # the lowest key offered inside it
        self._scan_over: Key | None = None  # the first key beyond it that found no room

    # -- offers --------------------------------------------------------------------

    def offer(self, rows: Rows, *, later: bool = False) -> None:
        """These of the band are due; sorted by key. Takes what it may, or notes its mark.

        Args:
          later: take none now, though there may be room; a scan comes to them.
        """
        if not rows.height:
            return
        first = _key(rows, 0)
        if self._scan_until is not None:
            inside = rows_below(rows, self._scan_until)
            if inside:
                self._scan_low = first if self._scan_low is None else min(self._scan_low, first)
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
        """These are past the scan under way, which is the one that catches up."""
        later = later or self.queues is not None
        if self._scan_over is None:
            self._scan_over = _key(rows, 0) if later else self._take(rows, self._took)
        else:
            # Something found no room already. This may come before it in order: what the
            # wheel passes with its next tick is often due earlier than what came due at once.
            self._scan_over = min(self._scan_over, _key(rows, 0))

    def _stop_at(self, key: Key) -> None:
        """Where an order is asked for, give back messages past this key, which is unread."""
        if self.queues is not None and key <= self._reached:
            self._reached = key
            self._recall(self.which, key)

    def fall_behind(self, key: Key) -> None:
        """Everything from ``key`` on may be in the index without having been offered."""
        if self._scan_until is not None:
            self._scan_low = key if self._scan_low is None else min(self._scan_low, key)
        elif self.mark is None or key < self.mark:
            self.mark = key

    def _take(self, rows: Rows, took: Callable[[Rows], None] | None = None) -> Key | None:
        """Hold what has room; returns the first key that has none."""
        rows = self._fresh(rows)
        room = self.room
        left = None
        if rows.height > room:
            left = _key(rows, room)
            rows = rows.pick(slice(0, room))
        if rows.height:
            if self._held.add(rows.offsets) < rows.height:
                # What was moved, is done and was forgotten may be in the index under both of its
                # keys, and wanted again by a subscription that was made since.
                rows = rows.once()
            if self.queues is not None:
                self.queues.push(rows)
                self._reached = max(self._reached, _key(rows, -1))
            else:
                in_order = rows.traits is None
                self.ready.push(rows if in_order else rows.in_order(self.ready.ageing_ms))
            if took is not None:
                took(rows)
        return left

    @property
    def room(self) -> int:
        """How many fresh rows find room."""
        if self.queues is None:
            return self.ready.room
        return max(0, self.ready.limit - self.queues.fresh_of(self.which))

    # -- scans ---------------------------------------------------------------------

    def wants_scan(self, piece: int) -> bool:
        """Behind, nothing being read, and room for a worthwhile piece."""
        return self.mark is not None and self._scan_until is None and self.room >= piece

    def lies_below(self, key: Key) -> bool:
        """Behind, and not as far as this key."""
        return self.mark is not None and self.mark < key

    def may_join(self, piece: int) -> bool:
        """Whether there is some room, if another that is as far wants a scan."""
        return self.room * _JOIN_SHARE >= piece

    @property
    def may_precede(self) -> bool:
        """Whether what was not read yet may belong before all that is ready of the band."""
        unread = self.unread_from
        if unread is None:
            return False
        if self.queues is not None:
            return not self.queues.fresh_of(self.which)
        first_ms = self.ready.first_ms
        # The ready of other bands is in the order of priorities rather than due times.
        return first_ms is None or (self.which == NORMAL and unread.due_ms < first_ms)

    @property
    def is_idle(self) -> bool:
        """Nothing is ready, all has been read, and nothing is being read."""
        return self.mark is None and self._scan_until is None and not self.ready

    @property
    def is_reading(self) -> bool:
        """Whether a scan is under way."""
        return self._scan_until is not None

    def is_stuck(self, piece: int) -> bool:
        """Behind, nothing being read, and too little room."""
        return self.mark is not None and self._scan_until is None and self.room < piece

    def has_unread(self, until_ms: int) -> bool:
        """Whether what was due by then may not have been looked at, and nobody is looking."""
        return self.mark is not None and self._scan_until is None and self.mark.due_ms <= until_ms

    @property
    def unread_from(self) -> Key | None:
        """The lowest key that may not have been looked at; None if there is none."""
        marks = [mark for mark in (self.mark, self._scan_low) if mark is not None]
        return min(marks, default=None)

    @property
    def scan_until(self) -> Key | None:
        """Up to where a scan is under way; None if none is."""
        return self._scan_until

    def begin_scan(self, stop: Key, catches_up: bool) -> None:
        """A scan of ``[mark, stop)`` begins; ``end_scan`` or ``break_scan`` must follow.

        Args:
          catches_up: whether ``stop`` is the frontier of this moment.
        """
        assert self.mark is not None
        assert self._scan_until is None, "two scans at once"
        self._scan_until = stop
        self._scan_catches_up = catches_up
        self._scan_low = None
        self._scan_over = None

    def end_scan(self, rows: Rows) -> None:
        """Take what the scan found of the band, sorted by key and without repeats."""
        stop = self._scan_until
        assert stop is not None
        self._scan_until = None
        marks = [self._scan_low]
        if self.queues is not None and self._scan_low is not None:
            rows = rows.pick(slice(0, rows_below(rows, self._scan_low)))
        self._scan_low = None
        if rows.height:
            marks.append(self._take(rows))
        marks.append(self._scan_over if self._scan_catches_up else stop)
        self.mark = min((mark for mark in marks if mark is not None), default=None)

    def break_scan(self) -> None:
        """The scan failed or its subscription is stopping; the mark stays where it was."""
        self._scan_until = None
        low, self._scan_low = self._scan_low, None
        if low is not None and self.mark is not None:
            self.mark = min(self.mark, low)


def _key(rows: Rows, at: int) -> Key:
    return Key(int(rows.due_ms[at]), int(rows.offsets[at]))


def rows_below(rows: Rows, key: Key) -> int:
    """How many of these sorted rows are below ``key``."""
    low = int(np.searchsorted(rows.due_ms, key.due_ms, "left"))
    high = int(np.searchsorted(rows.due_ms, key.due_ms, "right"))
    return low + int(np.searchsorted(rows.offsets[low:high], key.offset, "left"))
