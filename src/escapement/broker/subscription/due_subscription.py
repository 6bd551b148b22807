"""The part of a shared subscription that takes due messages from the delivery order.

The delivery order sorts a topic's messages by *position key*, the pair ``(due_ms, offset)``. The
timing wheel *offers* messages when they fall due. Messages that find no room are found again by a
*scan*, which reads a piece of the delayed index. Each priority band has a *read mark*, the position
key at which its next scan begins (:mod:`~escapement.broker.subscription.priorities.band`). A band
is *behind* while it has a mark.

A message is *open* if it belongs to the subscription, is neither acknowledged, held nor cancelled,
and is read under its current due time. Open messages become held and ready. Each band has a store
of ready messages. If the policy asks for an order by message key or of the topic, all bands share
queues instead (:mod:`~escapement.broker.subscription.keys.key_order`).

Some open messages are *passed over*: they stay in the index, and the lowest of their position keys
is remembered, so that a scan can find them later. A message is passed over if its message key is in
no consumer's range (:mod:`~escapement.broker.subscription.keys.key_ranges`), or if its message key
is skipped because too many such messages are ready
(:mod:`~escapement.broker.subscription.priorities.skipping`).

If messages are delivered in another order than that of the index, their payloads are *read ahead*
into a cache (:mod:`~escapement.broker.subscription.priorities.staged`).

Expired messages, and messages that a quota drops, are removed from ready, from retry, and from the
part of the delivery order that was not scanned yet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.dead_letters.dead_letter import Reason
from escapement.broker.subscription.delivery.assumed_deliveries import AssumedDeliveries, due_ms_of
from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.delivery.hand_over import HandOver
from escapement.broker.subscription.keys.key_order import KeyOrder
from escapement.broker.subscription.keys.key_queues import KeyQueues
from escapement.broker.subscription.keys.key_ranges import KeyRanges
from escapement.broker.subscription.number_map import NOWHERE
from escapement.broker.subscription.priorities.band import Band
from escapement.broker.subscription.priorities.bands import Bands, Scan
from escapement.broker.subscription.priorities.ready import Ready, Rows
from escapement.broker.subscription.priorities.skipping import Skipping, Slots, slots_of
from escapement.broker.subscription.priorities.staged import Staged
from escapement.broker.subscription.subscription import ANY_OFFSET, Environment, Subscription
from escapement.message import Int64s, UInt32s
from escapement.sorting import lowest
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.encoding.attempts import RELEASED, AttemptTable
from escapement.storage.index.keys import Key, position
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offset_bits import OffsetBits

# When messages are read ahead, a scan begins as soon as a band has room for this many, and reads up
# to twice as many. The ready messages must last until the scan ends, so it must not take long.
_PIECE: Final = 32_768


class DueSubscription(Subscription):
    """A subscription that takes messages from the delivery order through priority bands."""

    def __init__(
        self, record: SubscriptionRecord, environment: Environment, now_ms: int, mark: Key
    ) -> None:
        """Create a subscription that holds no messages and is behind.

        Args:
          mark: the position key at which the first scan begins.
        """
        super().__init__(record, environment, now_ms)
        self._order: KeyOrder | None = None  # set if the policy asks for an order
        self._ranges: KeyRanges | None = None  # set if a consumer asked for a range of keys
        self._skipping: Skipping | None = None  # set if there is an order or there are ranges
        # The lowest position key that was passed over because of the consumers' ranges.
        self._passed: Key | None = None
        # The filler adds messages of the past to the index. It has added all due before this time.
        self.filled_until_ms = 0
        # Whether the subscription may read its past; see ``begin_past``.
        self._reads_past = not record.is_filling
        self.staged = Staged()
        self.bands = Bands(self._make_band, mark)
        self._assumed = AssumedDeliveries()

    # -- coverage --------------------------------------------------------------------

    def covers(self, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.bool_]:
        # A subscription that begins at "latest" gets the messages that were published, or fell due,
        # after its creation. A subscription that begins at "earliest" gets all messages.
        record = self.record
        return (offsets >= record.start_offset) | (due_ms >= record.start_due_ms)

    def may_want(self, low: int, high: int, max_due_ms: int) -> bool:
        """Return whether any message with an offset in ``[low, high)`` may still be needed.

        A message is needed until its acknowledgement is durable. May return True although the
        messages do not belong to this subscription, or were cancelled.

        Args:
          max_due_ms: no message of the range is due later.
        """
        if max_due_ms < self.record.start_due_ms:
            low = max(low, self.record.start_offset)
        return self.acked.first_missing(low) < high or self.acked.is_waiting(low, high)

    @property
    def keeps_nothing(self) -> bool:
        # Ready messages that were never sent can be read from the index again.
        held = self.held.to_array(0, ANY_OFFSET) if len(self.held) else None
        unsent = held is None or bool(self._never_sent(held).all())
        idle = unsent and not self.bands.is_reading and not self._pending_assumed().height
        return super().keeps_nothing and idle

    def _fresh(self, rows: Rows) -> Rows:
        """Return the open rows that are not passed over; the caller makes them ready."""
        rows = self._open(rows)
        if self._ranges is not None:
            rows = self._pass_over(rows, self._ranges)
        if self._skipping is None or not self._skipping.skips:
            return rows
        return self._skipping.pass_over(rows, self._slots_of(rows))

    def _slots_of(self, rows: Rows) -> Slots:
        """Return the slot of each row's message key, ``NO_SLOT`` without a key; intp[n].

        If the whole topic is kept in order, all rows are in slot 0.
        """
        return slots_of(rows, self._order is not None and self._order.table.whole)

    def _open(self, rows: Rows) -> Rows:
        """Return the rows that are open; see the module docstring."""
        if int(rows.offsets.min()) < self.record.start_offset:
            rows = rows.pick(self.covers(rows.due_ms, rows.offsets))
        bits = OffsetBits(rows.offsets)
        for taken in (self.acked, self.held):
            if taken.intersects(bits):
                rows = rows.pick(~taken.contains(rows.offsets))
                bits = OffsetBits(rows.offsets)
        deliverable = self._amendments.deliverable(rows.due_ms, rows.offsets)
        if len(self._assumed):
            assumed_ms = self._assumed.due_ms(rows.offsets)
            others = True if deliverable is None else deliverable
            deliverable = np.where(assumed_ms == NOWHERE, others, assumed_ms == rows.due_ms)
        return rows if deliverable is None else rows.pick(deliverable)

    # -- messages that may have been delivered before a start ----------------------------

    def assume_delivered(self, rows: Rows) -> None:
        # The messages keep their places: one that came before earlier messages of its key would
        # break the order.
        rows = rows._replace(attempts=rows.attempts | RELEASED)
        self.attempts.state(rows, rows.due_ms)
        self._assumed.add(rows)

    def _pending_assumed(self) -> Rows:
        """Return the assumed messages that were not delivered since the start."""
        rows = self._assumed.rows
        return rows.pick(~super().was_handed(rows.offsets)) if rows.height else rows

    def was_handed(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        handed = super().was_handed(offsets)
        if len(self._assumed):
            handed |= self._assumed.contains(offsets)
        return handed

    def holds(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        holds = super().holds(offsets)
        if len(self._assumed):
            holds |= self._assumed.contains(offsets) & ~self.acked.contains(offsets)
        return holds

    def kept(self) -> OffsetSet:
        pending = self._pending_assumed()
        if not pending.height:
            return self.held
        kept = self.held.copy()
        kept.add(pending.offsets)
        return kept

    def kept_ms(self, offsets: Int64s) -> Int64s:
        """Return the due time under which each message stays here if it is cancelled or moved.

        These are the pending messages that were delivered, or may have been. For other messages
        the time is ``NOWHERE``; int64[n]. O(n) in the messages that are held.
        """
        kept = Rows.concat([self._tried(), self.retries.waiting()[0], self.in_flight.rows()])
        return due_ms_of(kept.pick(kept.attempts > 0).by_offset(), offsets)

    def _resume(self, rows: Rows, next_ms: Int64s, now_ms: int) -> None:
        untried = (rows.counts == 0) & (next_ms <= rows.due_ms)
        self._assumed.add(rows.pick(untried))
        super()._resume(rows.pick(~untried), next_ms[~untried], now_ms)

    def all_attempts(self, now_ms: int) -> AttemptTable:
        self._assumed.keep(~super().was_handed(self._assumed.rows.offsets))
        return super().all_attempts(now_ms)

    @property
    def most_attempts(self) -> int:
        return super().most_attempts + len(self._assumed)

    def _tried(self) -> Rows:
        return Rows.concat([super()._tried(), self._pending_assumed()])

    def _deliver(
        self,
        takers: Sequence[tuple[Consumer, int]],
        rows: Rows,
        now_ms: int,
        wanted_ms: Int64s | None = None,
    ) -> list[HandOver]:
        if int(rows.due_ms.max()) > now_ms:
            self._totals.early += int(np.count_nonzero(rows.due_ms > now_ms))
        return super()._deliver(takers, self._assumed.with_attempts(rows), now_ms, wanted_ms)

    def _finish_undelivered(self, rows: Rows, reason: Reason, to_dead_letter: bool) -> None:
        super()._finish_undelivered(self._assumed.with_attempts(rows), reason, to_dead_letter)

    def _pass_over(self, rows: Rows, ranges: KeyRanges) -> Rows:
        """Return the rows that are in some consumer's range; note the others as passed over.

        Args:
          rows: sorted by position key.
        """
        wanted = ranges.wanted(rows)
        if wanted.all():
            return rows
        self._passed = lowest((self._passed, rows.key(int(np.argmin(wanted)))))
        return rows.pick(wanted)

    # -- bands ---------------------------------------------------------------------

    @property
    def keeps_order(self) -> bool:
        """Whether the policy asks for an order by message key or of the topic."""
        return self._order is not None

    @property
    def scatters(self) -> bool:
        return self._order is not None or len(self.bands) > 1

    def _took(self, rows: Rows) -> None:
        """Note offered rows that went into ready, so that their payloads are read ahead."""
        if self.scatters:
            self.staged.expect(rows)

    def found(self, scan: Scan, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None) -> Rows:
        """Return the rows of a scan whose payloads are to be read ahead.

        These are the open rows of the scan's bands that have not expired. Returns no rows if the
        subscription reads nothing ahead.
        """
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
        """Return the messages to read ahead into ``staged`` now, sorted by position key.

        Args:
          found: the messages that a scan found and that become ready next. None for the ready
            messages that were noted to be read ahead.
          room_bytes: returns how many bytes may be added to ``staged``.
          mean_bytes: the mean size of a message.
        """
        staged = self.staged
        # A message that left ready and came back was noted twice: keep one row.
        rows = staged.take_expected(self._waits).once() if found is None else found
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

    def _waits(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows are held, not in flight, and have their current due time; bool[n].

        The message of a row with an old due time may be held under its new one. The index may have
        dropped the entry for the old due time.
        """
        offsets = rows.offsets
        waits = self.held.contains(offsets) & ~self.in_flight.offsets.contains(offsets)
        stale = self._amendments.moves.stale(rows.due_ms, offsets)
        return waits if stale is None else waits & ~stale

    @property
    def ready_count(self) -> int:
        """The number of ready messages."""
        return sum(len(store) for store in self._stores)

    @property
    def _stores(self) -> list[Ready] | list[KeyQueues]:
        """The stores of ready messages: the queues of the order, or one store for each band."""
        if self._order is not None:
            return [self._order.queues]
        return [band.ready for band in self.bands]

    def oldest_ready_ms(self) -> int | None:
        """Return the lowest due time of a ready message; None if none is ready. O(n)."""
        due_ms = self._ready_again().due_ms
        return int(due_ms.min()) if len(due_ms) else None

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
        """The lowest position key that was passed over for any reason; None if there is none."""
        skipped_from = None if self._skipping is None else self._skipping.skipped_from
        return lowest((skipped_from, self._passed))

    def _make_band(self, which: int, mark: Key | None) -> Band:
        ageing_ms = self.record.policy.priority_ageing_ms
        limit = self.limits.ready_messages
        band = Band(which, limit, ageing_ms, mark, self._fresh, self.held, self._took, self._recall)
        band.queues = self._order
        return band

    def _recall(self, which: int, key: Key) -> None:
        """Remove a band's never-sent messages from ready, from a position key on.

        They stay in the index, and a scan finds them again. No message key is skipped any more. A
        key may be skipped only while its first messages are ready. Otherwise a scan would pass over
        them, and a later message of the key that is redelivered would be delivered before them.
        """
        assert self._order is not None
        self.held.discard(self._order.queues.recall(which, key))
        self._skip_none()

    def _skip_none(self) -> None:
        """Stop skipping message keys, and scan again from the first message that was skipped."""
        if self._skipping is not None:
            self._read_from(self._skipping.skip_none())

    def offer(self, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None) -> None:
        """Make due messages ready as far as there is room; leave the others to a scan.

        Args:
          due_ms, offsets, traits: the messages, sorted by position key.
        """
        if len(offsets):
            self.expiry.keeps(int(due_ms[0]))
            rows = self._below_limit(Rows.fresh(due_ms, offsets, traits))
            # The messages of a large offer that are delivered first are scattered over the index.
            # Each frame would read many blocks for them. So a scan takes them and reads them ahead.
            later = self.scatters and len(offsets) >= self.limits.large_offer
            for band, part in self.bands.split(rows):
                band.offer(part, later=later)

    def fall_behind(self, key: Key) -> None:
        """Make each band scan the index from ``key`` on, unless it is further behind already."""
        self.expiry.keeps(key.due_ms)
        self.bands.fall_behind(key)

    def _below_limit(self, rows: Rows) -> Rows:
        """Return the offered rows below the read limit; scans find the others later."""
        limit = self._read_limit
        if limit is None:
            return rows
        end = position(rows.due_ms, rows.offsets, limit)
        if end < rows.height:
            self.fall_behind(rows.key(end))
        return rows.pick(slice(0, end))

    def read_again_from(self, key: Key) -> None:
        """Make each band scan the index from ``key`` on: messages were added that it lacked.

        Before the filler has begun, the subscription reads none of its past.
        """
        if not self._reads_past:
            key = max(key, Key(self.record.created_at_ms + 1, 0))
        self.fall_behind(key)

    def begin_past(self, gone: OffsetSet, mark: Key) -> None:
        """Begin to read the past, which the filler is about to add to the index.

        Args:
          gone: the offsets of messages of the past that the log has forgotten. They count as
            acknowledged and as lapsed.
          mark: the position key at which the past begins.
        """
        if gone:
            self.acked.union_update(gone)
            self.lapses().union_update(gone)
        self._reads_past = True
        self.fall_behind(mark)

    def await_fill(self, offsets: Int64s) -> None:
        """Take back messages that were put in flight and are no longer in the index.

        A checkpoint or a merge left them out because every other subscription had acknowledged
        them. The filler adds them to the index again for this subscription, or has just done so.
        """
        rows = self.in_flight.take_back(offsets)
        if rows.height:
            # The delivery did not happen, so it does not count as an attempt. But if a message was
            # cancelled or moved meanwhile, the broker answered that this subscription has it. So
            # RELEASED marks it as delivered before, and the subscription keeps it.
            kept = np.where(self._amendments.changed(rows.offsets), RELEASED, 0)
            self._read_again(rows._replace(attempts=(rows.attempts - 1) | kept))

    def _read_again(self, rows: Rows) -> None:
        """Let a scan find messages that the caller has taken back; keep the attempts of each."""
        self.held.discard(rows.offsets)
        if self._order is not None:
            self._order.release(rows)
        self._assumed.add(rows.pick(rows.attempts > 0))
        self.fall_behind(rows.in_order().key(0))

    def _until_read_limit(self, rows: Rows) -> Rows:
        """Return the rows below the read limit; a scan finds the others when the limit passes them.

        Without this, a message could be delivered before an earlier message of its key, which the
        filler has still to add.
        """
        limit = self._read_limit
        if limit is None or not rows.height:
            return rows
        below = rows.due_ms < limit.due_ms
        if not below.all():
            self._read_again(rows.pick(~below))
        return rows.pick(below)

    # -- scans ---------------------------------------------------------------------

    @abstractmethod
    def _skip_keys(self, now_ms: int) -> None:
        """Skip message keys that fill ready and block others; end the skipping of others.

        See :mod:`~escapement.broker.subscription.priorities.skipping`.
        """

    def to_scan(self, now_ms: int) -> list[Band]:
        """Return the bands to scan now.

        These are the bands that are behind and have enough room in ready, and those that may have
        expired messages to remove.
        """
        self._skip_keys(now_ms)
        until_ms, limit = self.expiry.until_ms(now_ms), self._read_limit
        return [
            band
            for band in self.bands
            if (limit is None or band.lies_below(limit))
            and (
                self.has_room_for_dead
                if band.has_unread(until_ms)
                else bool(self.consumers) and band.wants_scan(self._piece)
            )
        ]

    @property
    def _read_limit(self) -> Key | None:
        """The position key at which scans stop while the filler adds the past; None for no limit.

        It matters only if there is an order. The filler adds log rows in arrival order, and no
        message is due before its row was accepted. So no message that the filler has still to add
        is due before this key. The backfill of a lost index has a horizon for this.
        """
        if self._order is None or not self.is_filling:
            return None
        limits_ms = [self.filled_until_ms] if self.record.is_filling else []
        if self._backfill.is_running:
            limits_ms.append(self._backfill.reached_ms)
        return Key(min(limits_ms), 0)

    @property
    def is_stuck(self) -> bool:
        """Whether a band is behind, is not being scanned, and has too little room for a scan."""
        return self.bands.is_stuck(self._piece)

    @property
    def _piece(self) -> int:
        """The number of messages for which a band must have room before it scans."""
        half = self.limits.ready_messages - self.limits.ready_messages // 2
        return min(_PIECE, half) if self.scatters else half

    def next_scan(self, frontier: Key, now_ms: int) -> Scan | None:
        """Return the next scan; None if nothing is to be read now.

        Args:
          frontier: the position key below which messages are due.
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
        """End a scan: make the messages that it found ready, and expire those past their time.

        Args:
          bands: the bands that were scanned.
          due_ms, offsets, traits: the messages found, sorted by position key, each once.
          expired_until_ms: messages due by then have expired.
        """
        found = Rows.fresh(due_ms, offsets, traits)
        # Messages of another band are not lost: ``split`` creates their band with a read mark at
        # the beginning of this scan.
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
        """Expire ready messages, if the timer of expiry has fired.

        Expired messages that were passed over are scanned again; the scan expires them.
        """
        if not self.expiry.begin_sweep():
            return
        until_ms = self.expiry.until_ms(now_ms)
        passed = self._passed_from
        if passed is not None:
            self.expiry.keeps(passed.due_ms)
            if passed.due_ms <= until_ms:
                self.look_again()
        for store in self._stores:
            rows = store.rows()
            over = rows.due_ms <= until_ms
            if over.any() and self.has_room_for_dead:
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
        """The lowest position key of a message that may be due and open; None if there is none."""
        return lowest((self.bands.unread_from, self._passed_from))

    def _read_from(self, key: Key | None) -> None:
        """Scan the index again from ``key`` on; do nothing if it is None."""
        if key is not None:
            self.fall_behind(key)

    def look_again(self) -> None:
        """Scan again from the first passed-over message on; the scan may pass over it again."""
        self._read_from(self._passed_from)
        self._passed = None
        if self._skipping is not None:
            self._skipping.skipped_from = None

    def open_of(self, due_ms: Int64s, offsets: Int64s) -> Rows:
        """Return which of these messages are open; they are sorted by position key."""
        rows = Rows.fresh(due_ms, offsets)
        return self._open(rows).once() if len(offsets) else rows

    def drop_held(self, most: int, below: Key | None) -> int:
        """Drop the oldest messages that are ready or in retry; return how many were dropped.

        Args:
          most: the most messages to drop.
          below: drop only messages with a smaller position key; None for no limit.
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
        """Drop the oldest of the messages that a scan found and of those in ready and in retry.

        Ends the scan: messages that it found and that are not dropped become ready.

        Args:
          bands: the bands that were scanned.
          due_ms, offsets, traits: the messages found, sorted by position key, each once.
          most: the most messages to drop.
          stop: the position key at which the scan ended; later messages are not dropped.
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
        """Return the messages in ready and in retry, sorted by position key.

        Args:
          below: return only messages with a smaller position key; None for no limit.
        """
        waiting, _ = self.retries.waiting()
        waiting = waiting.pick(self.held.contains(waiting.offsets))
        rows = Rows.concat([self._ready_again(), waiting])
        rows = rows.in_order()
        end = None if below is None else position(rows.due_ms, rows.offsets, below)
        return rows.pick(slice(0, end))
