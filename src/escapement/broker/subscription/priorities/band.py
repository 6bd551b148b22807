"""A priority band: it takes a shared subscription's messages of some priorities as they fall due.

There are three bands: *urgent* (a priority below the default), *normal* and *low*. Each reads the
same delivery order separately and keeps its messages in a ready store of its own, so that the
backlog of one band never blocks another. A subscription has the normal band, and creates the others
when it meets their first message.

The delivery order sorts messages by *key*, the pair ``(due_ms, offset)``. The *frontier* is the key
up to which messages are due. Messages reach ready in two ways: they are *offered* when the timing
wheel returns them, or a *scan* reads them from the index. The band's *read mark* decides which way.

- While the mark is at the frontier (``mark is None``), every message of the band with a smaller key
  is acknowledged, held or passed over. Offered messages go into ready.
- When an offer finds no room, the mark stays at the first key without room, and the band is
  *behind*. The same happens to a large offer, which is left for *later* because a scan can read its
  payloads at the same time. A band that is behind scans the index from the mark on: ``begin_scan``
  sets the end of the scan, and ``end_scan`` takes the messages that were found. Meanwhile the band
  ignores offers at or past the mark, because the scan reaches them. Offers before the mark lower
  it.

Messages may be offered during a scan. Offers inside the range being scanned lower the mark again
when the scan ends. Offers beyond the range go into ready if the scan ends at the frontier, so that
the band *catches up*. So the mark only passes messages that are acknowledged, held or passed over,
and no due message is forgotten, even without traffic (invariant 4).

If the policy asks for an order by message key, a band is stricter: it keeps no never-sent message
in ready past a key that it has not read. Offers beyond a scan wait for the next scan. If an offer
arrives inside the range of a scan, the scan takes no messages past it. When an offer finds no room,
ready messages past it are removed, to be read from the index again. Otherwise a message could be
delivered while an earlier one with the same message key is still unread.
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
# A band joins the scan of another band if it has room for this share of the usual scan (a quarter).
_JOIN_SHARE: Final = 4


def bands_of(traits: UInt32s) -> Int64s:
    """Return the band of each message: ``URGENT``, ``NORMAL`` or ``LOW``; int64[n]."""
    return np.sign(priorities_of(traits) - DEFAULT_PRIORITY)


class Queues(Protocol):
    """The ready messages of all bands together, used if the policy asks for an order."""

    def push(self, rows: Rows) -> None:
        """Add rows, in any order."""
        ...

    def fresh_of(self, which: int) -> int:
        """Return the number of never-sent rows of the band ``which``."""
        ...


class Band:
    """One priority band of a shared subscription.

    Args:
      which: ``URGENT``, ``NORMAL`` or ``LOW``.
      limit: the most fresh rows, which were never sent, in ready.
      ageing_ms: how many ms a step of priority is worth; see ``Rows.ranks``.
      mark: the key at which the first scan begins; None if the band is not behind.
      fresh: returns those of the given rows that the subscription is to get and does not hold.
      held: the set of messages that the subscription holds. Rows that go into ready are added.
      took: called with rows of an offer that went into ready.
      recall: called with a band and a key. Removes the never-sent messages of the band from ready,
        from that key on.
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
        self._reached = KEY_MIN  # no never-sent message in ``queues`` has a higher key
        self._scan_until: Key | None = None  # the end of the current scan; None without a scan
        self._scan_catches_up = False  # whether this end was the frontier when the scan began
        self._scan_low: Key | None = None  # the lowest key offered inside the scan's range
        self._scan_over: Key | None = None  # the first key beyond the range without room

    # -- offers --------------------------------------------------------------------

    def offer(self, rows: Rows, *, later: bool = False) -> None:
        """Put due rows of the band into ready as far as there is room; leave the rest to a scan.

        Args:
          rows: sorted by key.
          later: leave all rows to a scan, even if there is room.
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
        """Put offered rows beyond the current scan into ready; the scan ends at the frontier.

        With an order, or without room, leave them to the next scan.
        """
        later = later or self.queues is not None
        if self._scan_over is None:
            self._scan_over = rows.key(0) if later else self._take(rows, self._took)
        else:
            # An earlier offer found no room. These rows may precede its rows: messages of the
            # wheel's next tick are often due before a message that was already due when published.
            self._scan_over = min(self._scan_over, rows.key(0))

    def _stop_at(self, key: Key) -> None:
        """Remove ready messages past an unread key, if the policy asks for an order.

        They are read from the index again.
        """
        if self.queues is not None and key <= self._reached:
            self._reached = key
            self._recall(self.which, key)

    def fall_behind(self, key: Key) -> None:
        """Lower the mark to ``key``: messages from there on may not have been offered.

        During a scan, this happens when the scan ends.
        """
        if self._scan_until is not None:
            self._scan_low = lowest((self._scan_low, key))
        elif self.mark is None or key < self.mark:
            self.mark = key

    def _take(self, rows: Rows, took: Callable[[Rows], None] | None = None) -> Key | None:
        """Put rows into ready as far as there is room; return the first key without room or None.

        Leaves out rows that the subscription is not to get, or holds already.
        """
        rows = self._fresh(rows)
        room = self.room
        left = None
        if rows.height > room:
            left = rows.key(room)
            rows = rows.pick(slice(0, room))
        if rows.height:
            if self._held.add(rows.offsets) < rows.height:
                # A message is there twice. The index may have a moved message under both its keys
                # after the broker has forgotten the move. That matters to a subscription that was
                # created since then.
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
        """The number of fresh rows that still fit into ready."""
        if self.queues is None:
            return self.ready.room
        return max(0, self.ready.limit - self.queues.fresh_of(self.which))

    # -- scans ---------------------------------------------------------------------

    def wants_scan(self, piece: int) -> bool:
        """Whether the band is behind, no scan of it is running, and it has room for a scan.

        Args:
          piece: for how many rows there must be room.
        """
        return self.mark is not None and self._scan_until is None and self.room >= piece

    def lies_below(self, key: Key) -> bool:
        """Whether the band is behind and its mark is below this key."""
        return self.mark is not None and self.mark < key

    def may_join(self, piece: int) -> bool:
        """Whether there is enough room to join a scan of another band with the same mark.

        Args:
          piece: for how many rows there must be room to begin a scan; less room is needed to join.
        """
        return self.room * _JOIN_SHARE >= piece

    @property
    def may_precede(self) -> bool:
        """Whether unread messages of the band may come before all of its ready messages."""
        unread = self.unread_from
        if unread is None:
            return False
        if self.queues is not None:
            return not self.queues.fresh_of(self.which)
        first_ms = self.ready.first_ms
        # In other bands, a lower due time does not mean a lower rank, because priorities differ.
        return first_ms is None or (self.which == NORMAL and unread.due_ms < first_ms)

    @property
    def is_idle(self) -> bool:
        """Whether no message is ready, the band is not behind, and no scan is running."""
        return self.mark is None and self._scan_until is None and not self.ready

    @property
    def is_reading(self) -> bool:
        """Whether a scan of the band is running."""
        return self._scan_until is not None

    def is_stuck(self, piece: int) -> bool:
        """Whether the band is behind, no scan of it is running, and it has no room for one.

        Args:
          piece: for how many rows there must be room.
        """
        return self.mark is not None and self._scan_until is None and self.room < piece

    def has_unread(self, until_ms: int) -> bool:
        """Whether messages due by ``until_ms`` may be unread, and no scan is running."""
        return self.mark is not None and self._scan_until is None and self.mark.due_ms <= until_ms

    @property
    def unread_from(self) -> Key | None:
        """The lowest key at which a due message may be unread; None if there is none."""
        return lowest((self.mark, self._scan_low))

    def begin_scan(self, stop: Key, catches_up: bool) -> None:
        """Begin a scan of ``[mark, stop)``; ``end_scan`` or ``break_scan`` must follow.

        Args:
          catches_up: whether ``stop`` is the current frontier, so that nothing due is left unread.
        """
        assert self.mark is not None
        assert self._scan_until is None, "two scans at once"
        self._scan_until = stop
        self._scan_catches_up = catches_up
        self._scan_low = None
        self._scan_over = None

    def end_scan(self, rows: Rows) -> None:
        """End the scan: put the rows that it found into ready, and set the mark.

        Args:
          rows: the rows of this band, sorted by key, each once.
        """
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
        """Abandon the scan. The mark stays, or is lowered to an offer that arrived meanwhile."""
        self._scan_until = None
        low, self._scan_low = self._scan_low, None
        if low is not None and self.mark is not None:
            self.mark = min(self.mark, low)
