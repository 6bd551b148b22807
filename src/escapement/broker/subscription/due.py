"""What of the delivery order a shared subscription has, and how far it has read it.

Each band of priorities reads for itself (:mod:`~escapement.broker.subscription.band`). What it
finds is held and put where what is ready lies: a store for each band, or, where the policy asks
for an order by key, queues for all of them together
(:mod:`~escapement.broker.subscription.keyorder`). What is *passed over* is neither: it waits in
the index, and the lowest such key is remembered, so that reading can begin again there. It is of
a key in nobody's range (:mod:`~escapement.broker.subscription.keyranges`), or of one of which
too much is ready (:mod:`~escapement.broker.subscription.skipping`).

What has expired, or is dropped by a quota, goes from ready, from what waits for another
attempt, and from what has not been read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.limits import BrokerLimits
from escapement.broker.log.amendments import Amendments
from escapement.broker.subscription.band import Band
from escapement.broker.subscription.bands import Bands, Scan
from escapement.broker.subscription.keyorder import KeyOrder
from escapement.broker.subscription.keyqueues import KeyQueues
from escapement.broker.subscription.keyranges import KeyRanges
from escapement.broker.subscription.ready import Ready, Rows
from escapement.broker.subscription.skipping import Skipping, Slots, slots_of
from escapement.broker.subscription.staged import Staged
from escapement.broker.subscription.subscription import Subscription
from escapement.message import Int64s, UInt32s
from escapement.storage.catalog import SubscriptionRecord
from escapement.storage.commit.items import Acks, Attempts
from escapement.storage.index import Key
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offsetbits import OffsetBits

# Where messages are read ahead, so many are worth a scan, and one of twice as many does not take
# too long: what is ready must last until what is read is there.
_PIECE: Final = 32_768
# Above every offset.
_ANY_OFFSET: Final = 1 << 62


class DueSubscription(Subscription):
    """See the module's docstring."""

    def __init__(
        self,
        record: SubscriptionRecord,
        limits: BrokerLimits,
        submit: Callable[[Acks | Attempts], None],
        rng: np.random.Generator,
        now_ms: int,
        amendments: Amendments,
        mark: Key,
        on_dead: Callable[[Subscription], None],
    ) -> None:
        """As the base class, and:

        Args:
          mark: where reading begins; a new or recovered subscription starts behind.
        """
        super().__init__(record, limits, submit, rng, now_ms, amendments, on_dead)
        self._order: KeyOrder | None = None  # where the policy asks for one
        self._ranges: KeyRanges | None = None  # where a consumer asked for keys
        self._skipping: Skipping | None = None  # where there is one of the two
        self._passed: Key | None = None  # the lowest key that was of nobody's range
        # While the filler adds the past: the index has every message that is due earlier.
        self.filled_until_ms = 0
        self.staged = Staged()
        self.bands = Bands(self._make_band, mark)

    # -- what is mine -----------------------------------------------------------

    def covers(self, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.bool_]:
        # Created at latest, it gets what was published after its creation and what
        # comes due after it; at earliest, everything.
        record = self.record
        return (offsets >= record.start_offset) | (due_ms >= record.start_due_ms)

    def may_want(self, low: int, high: int, max_due_ms: int) -> bool:
        """Whether any of ``[low, high)``, due by ``max_due_ms``, is not durably acknowledged.

        May say so of what is not covered, or was cancelled.
        """
        if max_due_ms < self.record.start_due_ms:
            low = max(low, self.record.start_offset)
        return self.acked.first_missing(low) < high or self.acked.is_waiting(low, high)

    @property
    def keeps_nothing(self) -> bool:
        # What is ready and was never sent is read again from the index.
        held = self.held.to_array(0, _ANY_OFFSET) if len(self.held) else None
        unsent = held is None or bool(self._never_sent(held).all())
        return super().keeps_nothing and unsent and not self.bands.is_reading

    def _fresh(self, rows: Rows) -> Rows:
        """Those of the rows that are mine, neither acknowledged nor held, and asked for."""
        rows = self._open(rows)
        if self._ranges is not None:
            rows = self._pass_over(rows, self._ranges)
        if self._skipping is None or not self._skipping.skips:
            return rows
        return self._skipping.pass_over(rows, self._slots_of(rows))

    def _slots_of(self, rows: Rows) -> Slots:
        """What of the rows stands in each other's way; ``NO_SLOT`` for nothing. intp[n]."""
        return slots_of(rows, self._order is not None and self._order.whole)

    def _open(self, rows: Rows) -> Rows:
        """Those of the rows that are mine and neither acknowledged nor held."""
        if int(rows.offsets.min()) < self.record.start_offset:
            rows = rows.pick(self.covers(rows.due_ms, rows.offsets))
        bits = OffsetBits(rows.offsets)
        for taken in (self.acked, self.held):
            if taken.intersects(bits):
                rows = rows.pick(~taken.contains(rows.offsets))
                bits = OffsetBits(rows.offsets)
        standing = self._amendments.standing(rows.due_ms, rows.offsets)
        return rows if standing is None else rows.pick(standing)

    def _pass_over(self, rows: Rows, ranges: KeyRanges) -> Rows:
        """Those of rows, sorted by key, that somebody gets; the others wait in the index."""
        wanted = ranges.wanted(rows)
        if wanted.all():
            return rows
        at = int(np.argmin(wanted))
        first = Key(int(rows.due_ms[at]), int(rows.offsets[at]))
        self._passed = first if self._passed is None else min(self._passed, first)
        return rows.pick(wanted)

    # -- bands ---------------------------------------------------------------------

    @property
    def keeps_order(self) -> bool:
        """Whether its policy asks for the order of due times, by key or of the topic."""
        return self._order is not None

    @property
    def scatters(self) -> bool:
        return self._order is not None or len(self.bands) > 1

    def _took(self, rows: Rows) -> None:
        """These of an offer went into ready."""
        if self.scatters:
            self.staged.expect(rows)

    def found(self, scan: Scan, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None) -> Rows:
        """What a scan found that will be ready, if its messages are worth reading ahead."""
        if not self.scatters or not len(offsets):
            return Rows.none()
        rows = self._open(Rows.fresh(due_ms, offsets, traits))
        rows = rows.pick(rows.due_ms > scan.expired_until_ms)
        if len(scan.bands) == len(self.bands):
            return rows
        parts = self.bands.split(rows)
        return Rows.concat([part for band, part in parts if band in scan.bands])

    def to_stage(
        self, found: Rows | None, room_bytes: Callable[[], int], mean_bytes: float
    ) -> Rows:
        """Which messages to read into ``staged`` now, sorted by key.

        Args:
          found: what is to be ready next; None for what is ready and expected there.
          room_bytes: how much may be added there.
          mean_bytes: what a message weighs.
        """
        staged = self.staged
        rows = staged.take_expected(self._waits) if found is None else found
        if not rows.height:
            return rows
        if staged.is_untidy:
            staged.keep(self.held.contains)
        room = room_bytes()
        if room < rows.height * mean_bytes:
            ready = OffsetSet()
            ready.add(self._ready_again().offsets)
            staged.keep(ready.contains)
            room = room_bytes()
        return staged.begin_read(rows, self.record.policy.priority_ageing_ms, room, mean_bytes)

    def _waits(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these are held, and in nobody's hands."""
        return self.held.contains(offsets) & ~self.in_flight.offsets.contains(offsets)

    @property
    def ready_count(self) -> int:
        """How many messages could be handed out now."""
        return sum(len(store) for store in self._stores)

    @property
    def _stores(self) -> list[Ready] | list[KeyQueues]:
        """Where what is ready lies."""
        if self._order is not None:
            return [self._order.queues]
        return [band.ready for band in self.bands]

    def _forget_ready(self, offsets: Int64s) -> None:
        for store in self._stores:
            store.withdraw(offsets)

    def _never_sent(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(offsets), bool)
        for store in self._stores:
            found |= store.never_sent(offsets)
        return found

    def _ready_again(self) -> Rows:
        return Rows.concat([store.rows() for store in self._stores])

    @property
    def _passed_from(self) -> Key | None:
        """The lowest key that was passed over; None if there is none."""
        skipped_from = None if self._skipping is None else self._skipping.skipped_from
        if skipped_from is None or self._passed is None:
            return skipped_from or self._passed
        return min(skipped_from, self._passed)

    def _make_band(self, which: int, mark: Key | None) -> Band:
        ageing_ms = self.record.policy.priority_ageing_ms
        limit = self.limits.ready_messages
        band = Band(which, limit, ageing_ms, mark, self._fresh, self.held, self._took, self._recall)
        band.queues = self._order
        return band

    def _recall(self, which: int, key: Key) -> None:
        """Give a band's messages that were never sent back to the index, from a key on.

        This ends skipping, which needs the first messages of each skipped key in ready:
        messages of the key that were sent before must not pass them.
        """
        assert self._order is not None
        self.held.discard(self._order.queues.recall(which, key))
        self._skip_none()

    def _skip_none(self) -> None:
        """Read the keys that were skipped, and skip none."""
        if self._skipping is not None:
            self._read_from(self._skipping.skip_none())

    def offer(self, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None) -> None:
        """These are due; sorted by key. Takes what it may, remembers the rest by marks."""
        if len(offsets):
            self.expiry.keeps(int(due_ms[0]))
            rows = Rows.fresh(due_ms, offsets, traits)
            # Of so many, those that go first lie nowhere near each other in the index, and each
            # frame would look for its messages among all of them: a scan reads them before.
            later = self.scatters and len(offsets) >= self.limits.large_offer
            for band, part in self.bands.split(self.bands.outline(rows) if later else rows):
                band.offer(part, later=later)

    def fall_behind(self, key: Key) -> None:
        """Everything from ``key`` on may be in the index without having been offered."""
        self.expiry.keeps(key.due_ms)
        self.bands.fall_behind(key)

    def begin_past(self, gone: OffsetSet, mark: Key) -> None:
        """Read on from ``mark``; of what lies there the log has forgotten these for all."""
        if gone:
            self.acked.union_update(gone)
            self.lapses().union_update(gone)
        self.fall_behind(mark)

    def await_fill(self, offsets: Int64s) -> None:
        """These were handed out, but have left the index before the fill came to them.

        They were done for all others when a checkpoint or a merge began, and are no longer
        for this subscription. The fill brings them again, or has just done so.
        """
        rows = self.in_flight.take_back(offsets)
        self.held.discard(rows.offsets)
        if rows.height:
            first = rows.in_order()
            self.fall_behind(Key(int(first.due_ms[0]), int(first.offsets[0])))

    # -- scans ---------------------------------------------------------------------

    @abstractmethod
    def _skip_keys(self, now_ms: int) -> None:
        """Leave out what there is too much of, and take in again what was left out."""

    def to_scan(self, now_ms: int) -> list[Band]:
        """The bands that are behind, and have room for a worthwhile piece or expired messages."""
        self._skip_keys(now_ms)
        until_ms, limit = self.expiry.until_ms(now_ms), self._read_limit
        return [
            band
            for band in self.bands
            if (limit is None or band.lies_below(limit))
            and (
                self.may_let_go
                if band.has_unread(until_ms)
                else bool(self.consumers) and band.wants_scan(self._piece)
            )
        ]

    @property
    def _read_limit(self) -> Key | None:
        """Where to stop reading; None if nowhere.

        The filler adds rows in the order in which they were accepted, and no message is due
        before its row was accepted. So later rows have no message that is due before this key.
        """
        bounded = self._order is not None and self.record.is_filling
        return Key(self.filled_until_ms, 0) if bounded else None

    @property
    def is_stuck(self) -> bool:
        """Whether a band is behind, and has too little room."""
        return self.bands.is_stuck(self._piece)

    @property
    def _piece(self) -> int:
        """How much room is worth a scan."""
        half = self.limits.ready_messages - self.limits.ready_messages // 2
        return min(_PIECE, half) if self.scatters else half

    def next_scan(self, frontier: Key, now_ms: int) -> Scan | None:
        """What to read next; None if nothing is to be read now.

        Args:
          frontier: what lies below it is due.
        """
        wanting = self.to_scan(now_ms)
        if not wanting:
            return None
        until_ms, limit = self.expiry.until_ms(now_ms), self._read_limit
        frontier = frontier if limit is None else min(frontier, limit)
        most = 2 * _PIECE if self.scatters else self.limits.ready_messages
        return self.bands.scan(wanting, self._piece, most, until_ms, frontier)

    def end_scan(
        self,
        bands: list[Band],
        due_ms: Int64s,
        offsets: Int64s,
        traits: UInt32s | None = None,
        expired_until_ms: int = -1,
    ) -> None:
        """Give bands what their scan found, sorted by key and without repeats.

        Args:
          expired_until_ms: what was due by then has expired.
        """
        found = Rows.fresh(due_ms, offsets, traits)
        # A new one, of which something was found, begins where this scan began.
        parts = {band.which: rows for band, rows in self.bands.split(found)}
        for band in bands:
            rows = parts.get(band.which, Rows.none())
            over = int(np.searchsorted(rows.due_ms, expired_until_ms, "right"))
            if over:
                self._expire_open(rows.pick(slice(0, over)))
                rows = rows.pick(slice(over, None))
            if rows.height:
                self.expiry.keeps(int(rows.due_ms[0]))
            band.end_scan(rows)

    # -- expiry --------------------------------------------------------------------

    def _expire_open(self, rows: Rows) -> None:
        rows = self._open(rows).once()
        if rows.height:
            self.expire(rows)

    def sweep(self, now_ms: int) -> None:
        """Let go of what is ready and has expired, if it may be time to look for it."""
        if not self.expiry.begin_sweep():
            return
        until_ms = self.expiry.until_ms(now_ms)
        passed = self._passed_from  # what nobody asks for expires too
        if passed is not None:
            self.expiry.keeps(passed.due_ms)
            if passed.due_ms <= until_ms:
                self.look_again()
        for store in self._stores:
            rows = store.rows()
            over = rows.due_ms <= until_ms
            if over.any() and self.may_let_go:
                store.withdraw(rows.offsets[over])
                self.expire(rows.pick(over))
                rows = rows.pick(~over)
            if rows.height:
                self.expiry.keeps(int(rows.due_ms.min()))
        unread = self.bands.unread_from
        if unread is not None:
            self.expiry.keeps(unread.due_ms)
        self.expiry.end_sweep(now_ms)

    # -- dropping ------------------------------------------------------------------

    @property
    def waits_from(self) -> Key | None:
        """The lowest key that is not held and may still be to be done; None if there is none."""
        lowest = [key for key in (self.bands.unread_from, self._passed_from) if key is not None]
        return min(lowest, default=None)

    def _read_from(self, key: Key | None) -> None:
        """Read again what was passed over, if anything was."""
        if key is not None:
            self.fall_behind(key)

    def look_again(self) -> None:
        """Read once more what was passed over; what is passed over again is noted again."""
        self._read_from(self._passed_from)
        self._passed = None
        if self._skipping is not None:
            self._skipping.skipped_from = None

    def count_open(self, due_ms: Int64s, offsets: Int64s) -> int:
        """How many of these keys are to be done and not held."""
        return self._open(Rows.fresh(due_ms, offsets)).once().height if len(offsets) else 0

    def drop_held(self, most: int, below: Key | None) -> int:
        """Let the oldest go of what is held and in nobody's hands; returns how many.

        Args:
          most: how many at most.
          below: only those with smaller keys; None for all.
        """
        rows = self._at_rest(below)
        rows = rows.pick(slice(0, most))
        if rows.height:
            self._forget_ready(rows.offsets)
            self.retries.cancel(rows.offsets)
            if self._order is not None:
                self._order.release(rows)
            self._drop(rows)
        return rows.height

    def drop_read(
        self,
        bands: list[Band],
        due_ms: Int64s,
        offsets: Int64s,
        traits: UInt32s | None,
        most: int,
        stop: Key,
    ) -> None:
        """Let up to ``most`` go of what was read up to ``stop``, or is held; the oldest.

        Args:
          bands: those for which it was read; they take what stays.
          due_ms, offsets, traits: the keys, sorted, without repeats.
        """
        rows = Rows.fresh(due_ms, offsets, traits)
        unheld = self._open(rows).once() if rows.height else rows
        both = Rows.concat([unheld, self._at_rest(stop)]).in_order().pick(slice(0, most))
        ours = np.isin(both.offsets, unheld.offsets)
        if ours.any():
            self._drop(both.pick(ours))
        self.drop_held(both.height - int(ours.sum()), stop)
        self.end_scan(bands, due_ms, offsets, traits)

    def _at_rest(self, below: Key | None) -> Rows:
        """What is ready or in retry, with a key below this; sorted by key."""
        waiting, _ = self.retries.waiting()
        waiting = waiting.pick(self.held.contains(waiting.offsets))
        rows = Rows.concat([self._ready_again(), waiting])
        if below is not None:
            same = (rows.due_ms == below.due_ms) & (rows.offsets < below.offset)
            rows = rows.pick((rows.due_ms < below.due_ms) | same)
        return rows.in_order()
