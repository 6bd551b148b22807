"""A shared subscription: reads the delivery order, hands to whoever has credit.

Each band of priorities reads for itself (:mod:`~escapement.broker.band`); what they have
ready is handed out in one order, by rank. A message's *rank* is when it is due, moved by
the policy's ``priority_ageing_ms`` for each step of its priority away from the default.
It never changes, so whoever waits is passed only by what becomes due a bounded time
later, and none starves. V5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from escapement.broker.amendments import Amendments
from escapement.broker.band import BANDS, NORMAL, Band, bands_of
from escapement.broker.dispatcher import level_out, share_out
from escapement.broker.limits import BrokerLimits
from escapement.broker.ready import Ready, Rows
from escapement.broker.subscription import HandOver, Subscription
from escapement.message import Int64s, UInt32s
from escapement.storage.catalog import SubscriptionRecord
from escapement.storage.group import Acks, Attempts
from escapement.storage.index import Key
from escapement.storage.policy import SubscriptionPolicy


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

    # -- what is mine -----------------------------------------------------------

    def covers(self, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which messages this subscription is to get at all; bool[n].

        Created at latest, it gets what was published after its creation and what
        comes due after it; at earliest, everything.
        """
        record = self.record
        return (offsets >= record.start_offset) | (due_ms >= record.start_due_ms)

    def _fresh(self, rows: Rows) -> Rows:
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
        return [
            (self._band(which), rows.pick(bands == which)) for which in np.unique(bands).tolist()
        ]

    def offer(self, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None) -> None:
        """These are due; sorted by key. Takes what it may, remembers the rest by marks."""
        if len(offsets):
            for band, rows in self._split(Rows.fresh(due_ms, offsets, traits)):
                band.offer(rows)

    def fall_behind(self, key: Key) -> None:
        """Everything from ``key`` on may be in the index without having been offered."""
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

    def to_scan(self) -> list[Band]:
        """The bands that are behind and have room for a worthwhile piece."""
        return [band for band in self.bands if band.wants_scan] if self.consumers else []

    def end_scan(
        self, band: Band, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None
    ) -> None:
        """Give a band what its scan found, sorted by key and without repeats."""
        rows = Rows.fresh(due_ms, offsets, traits)
        if traits is not None:
            for which in np.unique(bands_of(traits)).tolist():
                self._band(which)  # what has no band yet begins where this scan began
        band.end_scan(band.mine(rows))

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
        """Those that are due; the others are put back."""
        due = rows.due_ms <= now_ms
        if due.all():
            return rows
        # The clock went back: far, and we shall be rewound, or else these wait.
        early = rows.pick(~due)
        early_ms = int(early.due_ms.min())
        self._early_ms = early_ms if self._early_ms is None else min(self._early_ms, early_ms)
        self._put_back(early)
        return rows.pick(due)

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
        changed = policy.priority_ageing_ms != self.record.policy.priority_ageing_ms
        super().set_policy(policy)
        if changed:
            for band in self.bands:
                band.ready.set_ageing(policy.priority_ageing_ms)

    # -- time ----------------------------------------------------------------------

    def advance(self, now_ms: int) -> bool:
        if self._early_ms is not None and self._early_ms <= now_ms:
            self._early_ms = None
        return super().advance(now_ms)

    def next_wake_ms(self) -> int | None:
        wakes = [wake for wake in (super().next_wake_ms(), self._early_ms) if wake is not None]
        return min(wakes, default=None)

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
