"""A shared subscription: reads the delivery order, hands to whoever has credit.

Each band of priorities reads for itself (:mod:`~escapement.broker.band`); what they have
ready is handed out in one order, by rank. A message's *rank* is when it is due, moved by
the policy's ``priority_ageing_ms`` for each step of its priority away from the default.
It never changes, so whoever waits is passed only by what becomes due a bounded time
later, and none starves. V5.

Where the policy asks for an order by key or of the topic, of each key one message is out
of ready at a time (:mod:`~escapement.broker.keyhold`); where consumers ask for ranges of
keys, they get those (:mod:`~escapement.broker.keyranges`), and what is in nobody's is
passed over: it waits in the index until somebody comes or goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.amendments import Amendments
from escapement.broker.band import BANDS, NORMAL, Band, bands_of
from escapement.broker.deadletter import Reason
from escapement.broker.dispatcher import level_out, share_out
from escapement.broker.keyhold import KeyHold
from escapement.broker.keyranges import KeyRanges
from escapement.broker.limits import BrokerLimits
from escapement.broker.ready import Ready, Rows
from escapement.broker.subscription import HandOver, Subscription
from escapement.message import Int64s, UInt32s
from escapement.storage.catalog import SubscriptionRecord
from escapement.storage.group import Acks, Attempts
from escapement.storage.index import Key
from escapement.storage.policy import ANY_ORDER, HOLD, TOPIC_ORDER, SubscriptionPolicy

# Where keys matter, so many rows are looked at in one go, at least.
_WINDOW_ROWS: Final = 8192


class SharedSubscription(Subscription):
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
        doubtful_until_ms: int,
        on_dead: Callable[[Subscription], None],
    ) -> None:
        """As the base class, and:

        Args:
          mark: where reading begins; a new or recovered subscription starts behind.
          doubtful_until_ms: what was due by then is marked redelivered, because a broker
            that did not stop cleanly may have delivered it.
        """
        super().__init__(record, limits, submit, rng, now_ms, amendments, on_dead)
        self._bands: dict[int, Band] = {}
        self.normal = self._add_band(NORMAL, mark)
        self._doubtful_until_ms = doubtful_until_ms
        self._early_ms: int | None = None  # what is ready waits: the clock was set back
        self._turn = 0
        self._hold: KeyHold | None = None  # where the policy asks for an order
        self._dealer = KeyRanges([])
        self._ranges: KeyRanges | None = None  # the dealer, where a consumer asked for keys
        self._passed: Key | None = None  # the lowest key that was of nobody's range
        self._set_order(record.policy)

    # -- what is mine -----------------------------------------------------------

    def covers(self, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which messages this subscription is to get at all; bool[n].

        Created at latest, it gets what was published after its creation and what
        comes due after it; at earliest, everything.
        """
        record = self.record
        return (offsets >= record.start_offset) | (due_ms >= record.start_due_ms)

    def may_want(self, low: int, high: int, max_due_ms: int) -> bool:
        """Whether any of ``[low, high)``, due by ``max_due_ms``, is not durably acknowledged.

        May say so of what is not covered, or was cancelled.
        """
        if max_due_ms < self.record.start_due_ms:
            low = max(low, self.record.start_offset)
        return self.acked.first_missing(low) < high or self._has_undurable(low, high)

    def _fresh(self, rows: Rows) -> Rows:
        """Those of the rows that are mine, neither acknowledged nor held, and asked for."""
        rows = self._open(rows)
        return rows if self._ranges is None else self._pass_over(rows, self._ranges)

    def _open(self, rows: Rows) -> Rows:
        """Those of the rows that are mine and neither acknowledged nor held."""
        if int(rows.offsets.min()) < self.record.start_offset:
            rows = rows.pick(self.covers(rows.due_ms, rows.offsets))
        for taken in (self.acked, self.held):
            if taken.intersects(rows.offsets):
                rows = rows.pick(~taken.contains(rows.offsets))
        standing = self._amendments.standing(rows.due_ms, rows.offsets)
        return rows if standing is None else rows.pick(standing)

    # -- bands ---------------------------------------------------------------------

    @property
    def bands(self) -> Iterable[Band]:
        """Those that there are, the normal one among them."""
        return self._bands.values()

    @property
    def ready_count(self) -> int:
        """How many messages could be handed out now."""
        return sum(len(band.ready) for band in self.bands)

    @property
    def behind(self) -> bool:
        """Whether something is due that has not been read yet."""
        return any(band.mark is not None for band in self.bands)

    @property
    def unread_from(self) -> Key | None:
        """The lowest key that may not have been looked at; None if there is none."""
        return min((b.unread_from for b in self.bands if b.unread_from is not None), default=None)

    def expect_priorities(self) -> None:
        """There are messages of other priorities in the index: look for them at once."""
        for which in BANDS:
            self._band(which)

    def _band(self, which: int) -> Band:
        """A band. Where the normal one has been, there was nothing for a new one."""
        return self._bands.get(which) or self._add_band(which, self.normal.unread_from)

    def _add_band(self, which: int, mark: Key | None) -> Band:
        ageing_ms = self.record.policy.priority_ageing_ms
        band = Band(which, self.limits.ready_messages, ageing_ms, mark, self._fresh, self.held)
        self._bands[which] = band
        return band

    def _split(self, rows: Rows) -> list[tuple[Band, Rows]]:
        """The rows of each band."""
        if rows.traits is None:
            return [(self.normal, rows)]
        bands = bands_of(rows.traits)
        of_each = [(which, bands == which) for which in BANDS]
        return [(self._band(which), rows.pick(mine)) for which, mine in of_each if mine.any()]

    def offer(self, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None) -> None:
        """These are due; sorted by key. Takes what it may, remembers the rest by marks."""
        if len(offsets):
            self.expiry.keeps(int(due_ms[0]))
            for band, rows in self._split(Rows.fresh(due_ms, offsets, traits)):
                band.offer(rows)

    def fall_behind(self, key: Key) -> None:
        """Everything from ``key`` on may be in the index without having been offered."""
        self.expiry.keeps(key.due_ms)
        for band in self.bands:
            band.fall_behind(key)

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

    def to_scan(self, now_ms: int) -> list[Band]:
        """The bands that are behind, and have room for a worthwhile piece or expired messages."""
        until_ms = self.expiry.until_ms(now_ms)
        return [
            band
            for band in self.bands
            if (
                self.may_let_go
                if band.has_unread(until_ms)
                else bool(self.consumers) and band.wants_scan
            )
        ]

    def end_scan(
        self,
        band: Band,
        due_ms: Int64s,
        offsets: Int64s,
        traits: UInt32s | None = None,
        expired_until_ms: int = -1,
    ) -> None:
        """Give a band what its scan found, sorted by key and without repeats.

        Args:
          expired_until_ms: what was due by then has expired.
        """
        rows = Rows.fresh(due_ms, offsets, traits)
        if traits is not None:
            for which in np.unique(bands_of(traits)).tolist():
                self._band(which)  # what has no band yet begins where this scan began
        rows = band.mine(rows)
        over = int(np.searchsorted(rows.due_ms, expired_until_ms, "right"))
        if over:
            self._expire_open(rows.pick(slice(0, over)))
            rows = rows.pick(slice(over, None))
        if rows.height:
            self.expiry.keeps(int(rows.due_ms[0]))
        band.end_scan(rows)

    # -- expiry --------------------------------------------------------------------

    def _expire_open(self, rows: Rows) -> None:
        rows = self._open(rows)
        if rows.height:
            self.expire(rows)

    def sweep(self, now_ms: int) -> None:
        """Let go of what is ready and has expired, if it may be time to look for it."""
        if not self.expiry.begin_sweep():
            return
        until_ms = self.expiry.until_ms(now_ms)
        if self._passed is not None:  # what nobody asks for expires too
            self.expiry.keeps(self._passed.due_ms)
            if self._passed.due_ms <= until_ms:
                self.look_again()
        for band in self.bands:
            rows = band.ready.rows()
            over = rows.due_ms <= until_ms
            if over.any() and self.may_let_go:
                band.ready.withdraw(rows.offsets[over])
                self.expire(rows.pick(over))
                rows = rows.pick(~over)
            if rows.height:
                self.expiry.keeps(int(rows.due_ms.min()))
            if band.unread_from is not None:
                self.expiry.keeps(band.unread_from.due_ms)
        self.expiry.end_sweep(now_ms)

    # -- dropping ------------------------------------------------------------------

    @property
    def waits_from(self) -> Key | None:
        """The lowest key that is not held and may still be to be done; None if there is none."""
        lowest = [key for key in (self.unread_from, self._passed) if key is not None]
        return min(lowest, default=None)

    def look_again(self) -> None:
        """Read once more what was passed over, because it was of nobody's range."""
        if self._passed is not None:
            self.fall_behind(self._passed)
            self._passed = None

    def count_open(self, due_ms: Int64s, offsets: Int64s) -> int:
        """How many of these keys are to be done and not held."""
        return self._open(Rows.fresh(due_ms, offsets)).height if len(offsets) else 0

    def drop_held(self, most: int, below: Key | None) -> int:
        """Let the oldest go of what is held and in nobody's hands; returns how many.

        Args:
          most: how many at most.
          below: only those with smaller keys; None for all.
        """
        rows = self._at_rest(below)
        rows = rows.pick(slice(0, most))
        if rows.height:
            for band in self.bands:
                band.ready.withdraw(rows.offsets)
            self.retries.cancel(rows.offsets)
            if self._hold is not None:
                self._hold.release(rows.offsets)
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
        unheld = self._open(rows) if rows.height else rows
        both = Rows.concat([unheld, self._at_rest(stop)]).in_order().pick(slice(0, most))
        ours = np.isin(both.offsets, unheld.offsets)
        if ours.any():
            self._drop(both.pick(ours))
        self.drop_held(both.height - int(ours.sum()), stop)
        for band in bands:
            band.end_scan(band.mine(rows))

    def _at_rest(self, below: Key | None) -> Rows:
        """What is ready or in retry, with a key below this; sorted by key."""
        waiting, _ = self.retries.waiting()
        waiting = waiting.pick(self.held.contains(waiting.offsets))
        rows = Rows.concat([*(band.ready.rows() for band in self.bands), waiting])
        if below is not None:
            same = (rows.due_ms == below.due_ms) & (rows.offsets < below.offset)
            rows = rows.pick((rows.due_ms < below.due_ms) | same)
        return rows.in_order()

    def _alive(self, rows: Rows, now_ms: int) -> Rows:
        """Those that have not expired; the others, just taken out of ready, are let go."""
        over = rows.due_ms <= self.expiry.until_ms(now_ms)
        if not over.any():
            return rows
        self.expire(rows.pick(over))
        return rows.pick(~over)

    # -- handing out ---------------------------------------------------------------

    def assign(self, now_ms: int, frame_messages: int, *, tried: bool = True) -> list[HandOver]:
        """Take runs for the consumers that have credit, and put them in flight."""
        # In flight and in retry: what is held and not ready.
        there = self.ready_count
        unacked = len(self.held) - there
        if not tried:
            there = sum(band.ready.untried for band in self.bands)
        ready = min(there, self.limits.unacked_messages - unacked)
        if ready <= 0 or not self.consumers:
            return []
        ready = self.throttle.grant(ready, len(self.in_flight), now_ms)
        if self._hold is not None or self._ranges is not None:
            return self._assign_by_key(ready, now_ms, frame_messages, tried)
        capacities = [consumer.capacity for consumer in self.consumers]
        turn = self._turn % len(capacities)
        if self.record.policy.dispatch == "least_busy":
            held = self.in_flight.by_consumer()
            busy = [held.get(consumer.id, 0) for consumer in self.consumers]
            runs, self._turn = level_out(ready, capacities, busy, turn, frame_messages)
        else:
            runs, self._turn = share_out(ready, capacities, turn, frame_messages)
        taken: list[HandOver] = []
        for position, count in runs:
            parts = self._take_apart(count, with_tried=tried)
            due = 0
            for part, is_old in zip(parts, (False, True), strict=True):
                rows = self._due_of(part, now_ms)
                due += rows.height
                if rows.height:
                    hand = self._hand_over(self.consumers[position], rows, now_ms)
                    taken.append(hand._replace(tried=is_old))
            if due < count:
                break
        return taken

    def _due_of(self, rows: Rows, now_ms: int) -> Rows:
        """Those that are due; the others are put back, or have expired and are let go."""
        rows = self._alive(rows, now_ms)
        due = self._are_due(rows, now_ms)
        if due.all():
            return rows
        self._put_back(rows.pick(~due))
        return rows.pick(due)

    def _are_due(self, rows: Rows, now_ms: int) -> npt.NDArray[np.bool_]:
        """Which are due; bool[n]."""
        due = rows.due_ms <= now_ms
        if not due.all():
            # The clock went back: far, and we shall be rewound, or else these wait.
            early_ms = int(rows.due_ms[~due].min())
            self._early_ms = early_ms if self._early_ms is None else min(self._early_ms, early_ms)
        return due

    def _take_apart(self, most: int, *, with_tried: bool) -> tuple[Rows, Rows]:
        """Remove and return up to ``most`` rows of all bands, the lowest rank first.

        In two parts, of which the second has waited out a back-off.
        """
        stores = [band.ready for band in self.bands]
        return Ready.take_apart(stores, most, with_tried=with_tried)

    def _put_back(self, rows: Rows) -> None:
        """Return rows that were just taken, in their order."""
        for band, part in self._split(rows):
            band.ready.put_back(part)

    def was_sent_before(self, rows: Rows) -> npt.NDArray[np.bool_] | None:
        first_ms = rows.due_ms
        if not self._amendments.moves.empty:
            first_ms = self._amendments.moves.first(rows.offsets, first_ms)
        before = (rows.attempts > 1) | (first_ms <= self._doubtful_until_ms)
        return before if before.any() else None

    def _again(self, rows: Rows, *, waited: bool) -> None:
        self.expiry.keeps(int(rows.due_ms.min()))
        if self._hold is not None:
            self._hold.release(rows.offsets)
            waited = False  # it may not come behind what is due later
        for band, part in self._split(rows):
            push = band.ready.push_tried if waited else band.ready.push
            push(part.in_order(band.ready.ageing_ms))

    def _forget_ready(self, offsets: Int64s) -> None:
        for band in self.bands:
            band.ready.withdraw(offsets)

    def _never_sent(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(offsets), bool)
        for band in self.bands:
            found |= band.ready.never_sent(offsets)
        return found

    def _ready_again(self) -> Rows:
        return Rows.concat([band.ready.rows() for band in self.bands])

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        old = self.record.policy
        super().set_policy(policy)
        if (policy.order, policy.on_retry) != (old.order, old.on_retry):
            self._set_order(policy)
        if policy.priority_ageing_ms != old.priority_ageing_ms:
            for band in self.bands:
                band.ready.set_ageing(policy.priority_ageing_ms)

    # -- keys ----------------------------------------------------------------------

    def _set_order(self, policy: SubscriptionPolicy) -> None:
        self._hold = None
        if policy.order == ANY_ORDER:
            return
        self._dealer = KeyRanges(self.consumers)
        self._hold = KeyHold(whole=policy.order == TOPIC_ORDER)
        self._hold.take(self.in_flight.rows())
        if policy.on_retry == HOLD:
            self._hold.take(self.retries.waiting()[0])
        for band in self.bands:
            band.ready.push(band.ready.drain())  # what has waited comes in its order now

    def _return(self, rows: Rows, next_ms: Int64s, now_ms: int, reason: Reason | None) -> None:
        if self._hold is not None:
            self._hold.release(rows.offsets)  # those that wait take their keys again
        super()._return(rows, next_ms, now_ms, reason)

    def _retry(self, rows: Rows, next_ms: Int64s, now_ms: int, *, waited: bool = False) -> None:
        if self._hold is not None and self.record.policy.on_retry == HOLD:
            self._hold.take(rows.pick(next_ms > now_ms))
        super()._retry(rows, next_ms, now_ms, waited=waited)

    def _consumers_changed(self) -> None:
        asked = any(consumer.key_range is not None for consumer in self.consumers)
        if not asked and self._ranges is None and self._hold is None:
            return
        self._dealer = KeyRanges(self.consumers)
        self._ranges = self._dealer if asked else None
        self.look_again()
        if self._ranges is None:
            return
        for band in self.bands:
            rows = band.ready.rows().in_order()
            fresh = rows.pick(rows.attempts == 0)
            kept = self._pass_over(fresh, self._ranges)
            gone = fresh.offsets[~np.isin(fresh.offsets, kept.offsets)]
            if len(gone):
                band.ready.withdraw(gone)
                self.held.discard(gone)

    def _pass_over(self, rows: Rows, ranges: KeyRanges) -> Rows:
        """Those of rows, sorted by key, that somebody gets; the others wait in the index."""
        wanted = ranges.wanted(rows)
        if wanted.all():
            return rows
        at = int(np.argmin(wanted))
        first = Key(int(rows.due_ms[at]), int(rows.offsets[at]))
        self._passed = first if self._passed is None else min(self._passed, first)
        return rows.pick(wanted)

    def _assign_by_key(
        self, ready: int, now_ms: int, frame_messages: int, tried: bool
    ) -> list[HandOver]:
        """As ``assign``, where it matters which message goes, or to whom."""
        hold = self._hold
        room = [min(consumer.capacity, frame_messages) for consumer in self.consumers]
        wanted = min(ready, sum(room))
        seen = np.zeros(0, bool)
        if hold is not None:
            hold.settle(self.held)
            seen = hold.busy.copy()
            wanted = min(wanted, 1) if hold.whole else wanted
        runs: dict[tuple[int, bool], list[Rows]] = {}
        aside: tuple[list[Rows], list[Rows]] = [], []
        # What lies deeper is looked at only where nothing was found before it.
        while wanted > 0 and not runs:
            parts = self._take_apart(max(2 * wanted, _WINDOW_ROWS), with_tried=tried)
            if not any(part.height for part in parts):
                break
            for part, is_old in zip(parts, (False, True), strict=True):
                rows = self._alive(part, now_ms)
                free = self._are_due(rows, now_ms)
                if hold is not None:
                    free &= hold.next_of_each(rows, seen)
                open_rows, left = np.flatnonzero(free), np.ones(rows.height, bool)
                for position, at in self._dealer.deal(
                    rows, open_rows, self.consumers, room, wanted
                ):
                    runs.setdefault((position, is_old), []).append(rows.pick(at))
                    room[position] -= len(at)
                    wanted -= len(at)
                    left[at] = False
                aside[is_old].append(rows.pick(left))
        for band, part in self._split(Rows.concat(aside[0])):
            band.ready.put_first(part)
        for band, part in self._split(Rows.concat(aside[1])):
            band.ready.push_tried(part)
        hands = []
        for (position, is_old), found in runs.items():
            run = Rows.concat(found)
            hand = self._hand_over(self.consumers[position], run, now_ms)
            hands.append(hand._replace(tried=is_old))
            if hold is not None:
                hold.take(run)
        return hands

    # -- time ----------------------------------------------------------------------

    def advance(self, now_ms: int) -> bool:
        if self._early_ms is not None and self._early_ms <= now_ms:
            self._early_ms = None
        may_let_go = self.expiry.advance(now_ms)
        return super().advance(now_ms) or may_let_go

    def next_wake_ms(self) -> int | None:
        wakes = (super().next_wake_ms(), self._early_ms, self.expiry.next_wake_ms())
        return min((wake for wake in wakes if wake is not None), default=None)

    def rewind(self, now_ms: int) -> None:
        """Forget what is ready and not yet due again; what is handed over stays so."""
        super().rewind(now_ms)
        for band in self.bands:
            rows = band.ready.drain()
            early = rows.due_ms > now_ms
            again = early & (rows.attempts > 0)
            band.ready.push(rows.pick(~early))
            self.held.discard(rows.offsets[early & ~again])
            if again.any():
                rows = rows.pick(again)
                self._retry(rows, rows.due_ms, now_ms)
