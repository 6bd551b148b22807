"""The part of a shared subscription that reads the delivery order.

Each priority band reads separately (:mod:`~escapement.broker.subscription.priorities.band`).
Messages that a band finds are held and become ready. Each band has a store of ready messages. If
the policy asks for an order by key, all bands share queues instead
(:mod:`~escapement.broker.subscription.keys.key_order`). Some messages are *passed over*: they stay
in the index, and the lowest such key is remembered, so that reading can begin there again. A
message is passed over if its key is in no consumer's range
(:mod:`~escapement.broker.subscription.keys.key_ranges`), or if too many messages like it are ready
(:mod:`~escapement.broker.subscription.priorities.skipping`).

Expired messages, and messages that a quota drops, are removed from ready, from retries, and from
the unread part of the delivery order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.keys.key_order import KeyOrder
from escapement.broker.subscription.keys.key_queues import KeyQueues
from escapement.broker.subscription.keys.key_ranges import KeyRanges
from escapement.broker.subscription.priorities.band import Band
from escapement.broker.subscription.priorities.bands import Bands, Scan
from escapement.broker.subscription.priorities.ready import Ready, Rows
from escapement.broker.subscription.priorities.skipping import Skipping, Slots, slots_of
from escapement.broker.subscription.priorities.staged import Staged
from escapement.broker.subscription.subscription import Environment, Subscription
from escapement.message import Int64s, UInt32s
from escapement.sorting import lowest
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.index.keys import Key, position
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offset_bits import OffsetBits

# The room that is worth a scan when messages are read ahead. A scan of twice as many must not take
# too long, because the ready messages must last until the scan ends.
_PIECE: Final = 32_768
# Above every offset.
_ANY_OFFSET: Final = 1 << 62


class DueSubscription(Subscription):
    """A subscription that reads the delivery order through priority bands."""

    def __init__(
        self, record: SubscriptionRecord, environment: Environment, now_ms: int, mark: Key
    ) -> None:
        """Create the subscription as the base class does.

        Args:
          mark: where reading begins; a new or recovered subscription begins behind.
        """
        super().__init__(record, environment, now_ms)
        self._order: KeyOrder | None = None  # set if the policy asks for an order
        self._ranges: KeyRanges | None = None  # set if a consumer asked for keys
        self._skipping: Skipping | None = None  # set if there is an order or there are ranges
        self._passed: Key | None = None  # the lowest key that was in no consumer's range
        # While the filler adds past messages, the index has every message due before this.
        self.filled_until_ms = 0
        self.staged = Staged()
        self.bands = Bands(self._make_band, mark)

    # -- coverage --------------------------------------------------------------------

    def covers(self, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.bool_]:
        # A subscription created at latest gets messages that were published, or come due, after its
        # creation. One created at earliest gets all messages.
        record = self.record
        return (offsets >= record.start_offset) | (due_ms >= record.start_due_ms)

    def may_want(self, low: int, high: int, max_due_ms: int) -> bool:
        """Return whether messages of ``[low, high)`` due by ``max_due_ms`` may be unacknowledged.

        An acknowledgement counts once it is durable. May return True for messages that are not
        covered, or were cancelled.
        """
        if max_due_ms < self.record.start_due_ms:
            low = max(low, self.record.start_offset)
        return self.acked.first_missing(low) < high or self.acked.is_waiting(low, high)

    @property
    def keeps_nothing(self) -> bool:
        # Ready messages that were never sent are read from the index again.
        held = self.held.to_array(0, _ANY_OFFSET) if len(self.held) else None
        unsent = held is None or bool(self._never_sent(held).all())
        return super().keeps_nothing and unsent and not self.bands.is_reading

    def _fresh(self, rows: Rows) -> Rows:
        """Return the rows that are open and are not passed over."""
        rows = self._open(rows)
        if self._ranges is not None:
            rows = self._pass_over(rows, self._ranges)
        if self._skipping is None or not self._skipping.skips:
            return rows
        return self._skipping.pass_over(rows, self._slots_of(rows))

    def _slots_of(self, rows: Rows) -> Slots:
        """Return the slot of each row, ``NO_SLOT`` if it has none; intp[n]. See ``slots_of``."""
        return slots_of(rows, self._order is not None and self._order.table.whole)

    def _open(self, rows: Rows) -> Rows:
        """Return the rows that are covered, standing, and neither acknowledged nor held."""
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
        """Return the rows, sorted by key, that a consumer gets; note the others as passed over."""
        wanted = ranges.wanted(rows)
        if wanted.all():
            return rows
        self._passed = lowest((self._passed, rows.key(int(np.argmin(wanted)))))
        return rows.pick(wanted)

    # -- bands ---------------------------------------------------------------------

    @property
    def keeps_order(self) -> bool:
        """Whether the policy asks for the order of due times, by key or of the topic."""
        return self._order is not None

    @property
    def scatters(self) -> bool:
        return self._order is not None or len(self.bands) > 1

    def _took(self, rows: Rows) -> None:
        """Expect rows of an offer, which went into ready, to be read ahead."""
        if self.scatters:
            self.staged.expect(rows)

    def found(self, scan: Scan, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None) -> Rows:
        """Return the rows of a scan that will be ready, if messages are read ahead."""
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
        """Return the messages to read into ``staged`` now, sorted by key.

        Args:
          found: the messages that become ready next; None for the ready ones that ``staged``
            expects.
          room_bytes: returns how many bytes may be added.
          mean_bytes: the mean size of a message.
        """
        staged = self.staged
        # A message that left ready and came back is expected twice.
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
        """Return which rows are held, not in flight, and have their current key.

        A moved message may be held again under its new key, when the index has dropped the old one.
        """
        offsets = rows.offsets
        waits = self.held.contains(offsets) & ~self.in_flight.offsets.contains(offsets)
        stale = self._amendments.moves.stale(rows.due_ms, offsets)
        return waits if stale is None else waits & ~stale

    @property
    def ready_count(self) -> int:
        """The number of messages that could be delivered now."""
        return sum(len(store) for store in self._stores)

    @property
    def _stores(self) -> list[Ready] | list[KeyQueues]:
        """The stores of ready messages."""
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
        return lowest((skipped_from, self._passed))

    def _make_band(self, which: int, mark: Key | None) -> Band:
        ageing_ms = self.record.policy.priority_ageing_ms
        limit = self.limits.ready_messages
        band = Band(which, limit, ageing_ms, mark, self._fresh, self.held, self._took, self._recall)
        band.queues = self._order
        return band

    def _recall(self, which: int, key: Key) -> None:
        """Return a band's never-sent messages from a key on to the index.

        This ends skipping, which needs the first messages of each skipped key in ready: messages of
        the key that were sent before must not pass them.
        """
        assert self._order is not None
        self.held.discard(self._order.queues.recall(which, key))
        self._skip_none()

    def _skip_none(self) -> None:
        """End skipping, and read the skipped keys."""
        if self._skipping is not None:
            self._read_from(self._skipping.skip_none())

    def offer(self, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None) -> None:
        """Take due messages, sorted by key, as far as there is room; remember the rest by marks."""
        if len(offsets):
            self.expiry.keeps(int(due_ms[0]))
            rows = Rows.fresh(due_ms, offsets, traits)
            # In a large offer, the messages delivered first are scattered over the index, and each
            # frame would search all of them. A scan reads them ahead.
            later = self.scatters and len(offsets) >= self.limits.large_offer
            for band, part in self.bands.split(rows):
                band.offer(part, later=later)

    def fall_behind(self, key: Key) -> None:
        """Note that keys from ``key`` on may be in the index without having been offered."""
        self.expiry.keeps(key.due_ms)
        self.bands.fall_behind(key)

    def begin_past(self, gone: OffsetSet, mark: Key) -> None:
        """Read on from ``mark``.

        Args:
          gone: offsets from there on that the log has forgotten; they count as lapsed.
        """
        if gone:
            self.acked.union_update(gone)
            self.lapses().union_update(gone)
        self.fall_behind(mark)

    def await_fill(self, offsets: Int64s) -> None:
        """Take back delivered messages that left the index before the fill reached them.

        Every other subscription was done with them when a checkpoint or a merge began; this
        subscription wants them again. The fill adds them again, or has just done so.
        """
        rows = self.in_flight.take_back(offsets)
        self.held.discard(rows.offsets)
        if rows.height:
            self.fall_behind(rows.in_order().key(0))

    # -- scans ---------------------------------------------------------------------

    @abstractmethod
    def _skip_keys(self, now_ms: int) -> None:
        """Leave out messages that block others, and take messages in again that were left out."""

    def to_scan(self, now_ms: int) -> list[Band]:
        """Return the bands that are behind and have room for a piece, or have expired messages."""
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
        """Where to stop reading; None for no limit.

        The filler adds rows in arrival order, and no message is due before its row was accepted. So
        no row that is still to be added has a message due before this key.
        """
        bounded = self._order is not None and self.record.is_filling
        return Key(self.filled_until_ms, 0) if bounded else None

    @property
    def is_stuck(self) -> bool:
        """Whether a band is behind and has too little room."""
        return self.bands.is_stuck(self._piece)

    @property
    def _piece(self) -> int:
        """The room that is worth a scan."""
        half = self.limits.ready_messages - self.limits.ready_messages // 2
        return min(_PIECE, half) if self.scatters else half

    def next_scan(self, frontier: Key, now_ms: int) -> Scan | None:
        """Return the next scan; None if nothing is to be read now.

        Args:
          frontier: messages below it are due.
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
        """Give bands the messages that their scan found, sorted by key and without repeats.

        Args:
          expired_until_ms: messages due by then have expired.
        """
        found = Rows.fresh(due_ms, offsets, traits)
        # A band created for found messages begins where this scan began.
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
        """Expire ready messages, if it may be time to look for them."""
        if not self.expiry.begin_sweep():
            return
        until_ms = self.expiry.until_ms(now_ms)
        passed = self._passed_from  # passed-over messages expire, too
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
        """The lowest key that is not held and may be pending; None if there is none."""
        return lowest((self.bands.unread_from, self._passed_from))

    def _read_from(self, key: Key | None) -> None:
        """Read from ``key`` on again; nothing if it is None."""
        if key is not None:
            self.fall_behind(key)

    def look_again(self) -> None:
        """Read passed-over messages again; those passed over again are noted again."""
        self._read_from(self._passed_from)
        self._passed = None
        if self._skipping is not None:
            self._skipping.skipped_from = None

    def count_open(self, due_ms: Int64s, offsets: Int64s) -> int:
        """Return how many of these keys are pending and not held."""
        return self._open(Rows.fresh(due_ms, offsets)).once().height if len(offsets) else 0

    def drop_held(self, most: int, below: Key | None) -> int:
        """Drop the oldest messages that are held and not in flight; return how many.

        Args:
          most: the most to drop.
          below: drop only smaller keys; None for all.
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
        """Drop up to ``most`` of the oldest messages that were read up to ``stop`` or are held.

        Args:
          bands: the bands that were read; they take the messages that stay.
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
        """Return messages in ready or in retry with a key below this; sorted by key."""
        waiting, _ = self.retries.waiting()
        waiting = waiting.pick(self.held.contains(waiting.offsets))
        rows = Rows.concat([self._ready_again(), waiting])
        rows = rows.in_order()
        end = None if below is None else position(rows.due_ms, rows.offsets, below)
        return rows.pick(slice(0, end))
