"""The base class of all subscriptions: which messages are ready, in flight, in retry or done.

A message of a subscription is in one of these places. *Held* messages are those that are ready, in
flight or in retry::

    not held ──► ready ──► in flight ──► acknowledged
                   ▲           │  ack
                   │           │ nack, timeout, disconnect
                   └── retry ◄─┘

A message is *given back* by a nack, a release, an ack timeout, or a consumer that leaves. A message
waits in *retry* until its back-off ends. Methods pass messages as *rows*: columns with the due
time, offset, attempts and traits of each.

``acked`` has the offsets of all acknowledged messages. An offset is added the moment its
acknowledgement arrives, so that no acknowledged message is sent again (V2). It becomes durable with
a later group commit.

A *dead* message failed its last attempt, or expired or was dropped under a policy that wants a dead
letter for it. It stays held, in ``dead``, until it is acknowledged in one commit with its dead
letter. A message has *lapsed* if it expired or was dropped, and no consumer ever got it.

Every change here is one synchronous step. Time arrives as an argument. Records that must become
durable are passed to ``submit``. Subclasses decide where fresh messages, which were never sent,
come from: :mod:`~escapement.broker.subscription.shared` takes them from the delivery order,
:mod:`~escapement.broker.subscription.ordered` from the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.limits import BrokerLimits
from escapement.broker.log.amendments import Amendments
from escapement.broker.log.backfill import WHOLE, Backfill
from escapement.broker.log.cursor import Cursor
from escapement.broker.metering.totals import Totals
from escapement.broker.subscription.counts import Counts
from escapement.broker.subscription.dead_letters.dead_letter import Dead, Reason
from escapement.broker.subscription.dead_letters.dead_messages import DeadMessages
from escapement.broker.subscription.dead_letters.expiry import Expiry
from escapement.broker.subscription.delivery.ack_waits import AckWaits
from escapement.broker.subscription.delivery.attempt_book import AttemptBook, counted
from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.delivery.delivery import DeliveryPart
from escapement.broker.subscription.delivery.hand_over import HandOver
from escapement.broker.subscription.delivery.in_flight import InFlight
from escapement.broker.subscription.delivery.throttle import Throttle
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.retries.backoff import CEILING_MS
from escapement.broker.subscription.retries.retries import Retries
from escapement.broker.subscription.start_position import NEVER_MS
from escapement.message import Int64s
from escapement.sorting import lowest
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.commit.items import Acks, Attempts
from escapement.storage.encoding.attempts import RELEASED, AttemptTable
from escapement.storage.encoding.lag import Timing
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.offsets import OffsetSet

# Above every offset.
ANY_OFFSET: Final = 1 << 62


class Environment(NamedTuple):
    """The parts of a broker that a subscription uses.

    Args:
      submit: passes records to the next group commit.
      rng: random numbers for the jitter of back-offs.
      amendments: which messages of the topic were cancelled or moved to another due time.
      on_dead: called with a subscription when messages are added to its ``dead``.
      totals: the counters of the whole broker.
      doubtful_until_ms: the time up to which an earlier broker, which did not stop cleanly, may
        have delivered messages without recording it; 0 if there is none. Messages that it may have
        delivered are marked redelivered.
      backfill: whether the index lacks messages of the log that are being added.
    """

    limits: BrokerLimits
    submit: Callable[[Acks | Attempts], None]
    rng: np.random.Generator
    amendments: Amendments
    on_dead: Callable[[Subscription], None]
    totals: Totals
    doubtful_until_ms: int = 0
    backfill: Backfill = WHOLE


class Subscription(ABC):
    """The state of one subscription."""

    def __init__(self, record: SubscriptionRecord, environment: Environment, now_ms: int) -> None:
        """Create a subscription that holds no messages."""
        limits, submit, rng, amendments, on_dead, totals, doubtful_until_ms, backfill = environment
        self.record = record
        self.limits = limits
        self.doubtful_until_ms = doubtful_until_ms
        self.acked = Cursor()
        self.lapsed: OffsetSet | None = None  # lapsed messages; None as long as there are none
        self.held = OffsetSet()
        self.in_flight = InFlight()
        self.consumers: list[Consumer] = []
        self.counts = Counts()
        self.throttle = Throttle(record.policy)
        self.expiry = Expiry()
        self.dead = DeadMessages()
        self.retries = Retries(now_ms)
        self.attempts = AttemptBook(
            record.topic_id, record.id, submit, self.in_flight, self.retries, amendments
        )
        # How many due messages a backlog quota leaves; the oldest of the others are to be dropped.
        # None if none are to be dropped.
        self.keep_most: int | None = None
        self.settled_most: int | None = None  # dropping stops when ``settled`` reaches this
        self.gave_back = False  # whether messages were given back since the last quota check
        self._submit = submit
        self._on_dead = on_dead
        self._totals = totals
        self._rng = rng
        self._amendments = amendments
        self._backfill = backfill

    # -- decided by subclasses -------------------------------------------------

    @abstractmethod
    def assign(self, now_ms: int, frame_messages: int, *, tried: bool = True) -> list[HandOver]:
        """Choose ready messages to deliver now, and put them in flight.

        Returns runs of messages, each for one consumer.

        Args:
          frame_messages: the most messages of a run.
          tried: whether to deliver messages that waited out a back-off.
        """

    @abstractmethod
    def _again(self, rows: Rows, *, waited: bool) -> None:
        """Make held messages ready that were taken back, were in retry, or were recovered.

        Args:
          waited: whether they have waited out a back-off in retry.
        """

    @abstractmethod
    def covers(self, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which messages belong to this subscription, given where it begins; bool[n]."""

    @abstractmethod
    def _forget_ready(self, offsets: Int64s) -> None:
        """Remove messages from ready, because they were acknowledged or must not be delivered."""

    @abstractmethod
    def was_sent_before(self, rows: Rows) -> npt.NDArray[np.bool_] | None:
        """Return which rows must be marked redelivered; bool[n], or None for none.

        These are rows that were delivered before, and rows that an earlier broker may have
        delivered without recording it. ``attempts`` of the rows counts the present delivery.
        """

    @property
    @abstractmethod
    def ready_count(self) -> int:
        """The number of ready messages that are held."""

    @property
    def retrying(self) -> int:
        """The number of messages that wait in retry for another attempt."""
        return max(len(self.held) - self.ready_count - len(self.in_flight) - len(self.dead), 0)

    @property
    def scatters(self) -> bool:
        """Whether the messages of one frame may be far apart in the index."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to deliver, read, expire or drop now. O(1).

        It may be False although there is nothing.
        """
        return False

    @property
    def is_filling(self) -> bool:
        """Whether the index may lack messages that the subscription wants."""
        return self.record.is_filling or self._backfill.is_running

    @property
    def unfilled(self) -> tuple[int, int]:
        """The range of offsets of messages that the index may lack, because they are being added.

        They may have left the index since the subscription found them, too.
        """
        if self._backfill.is_running:
            return 0, ANY_OFFSET
        return self.record.fill_from, self.record.fill_until

    @property
    def keeps_nothing(self) -> bool:
        """Whether the subscription can leave memory: its record and durable ``acked`` suffice."""
        return not (
            self.consumers
            or len(self.in_flight)
            or len(self.acked.undurable)
            or self.dead
            or self.attempts.is_used
            or self.keep_most is not None
            or self.record.is_filling
        )

    # -- consumers -------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        """Add a consumer, which gets messages from now on."""
        consumer.obey(self.record.policy)
        self.consumers.append(consumer)
        self._consumers_changed()

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        """Follow another policy from now on; in-flight messages keep their deadlines."""
        self.record = replace(self.record, policy=policy)
        self.throttle.set_policy(policy)
        for consumer in self.consumers:
            consumer.obey(policy)

    def take_over(self, consumers: list[Consumer]) -> None:
        """Take over the consumers of the subscription that this one replaces."""
        self.consumers.extend(consumers)
        self._consumers_changed()

    def _consumers_changed(self) -> None:  # noqa: B027 (optional)
        """React to a consumer that joined or left."""

    def leave(self, consumer: Consumer, now_ms: int) -> None:
        """Remove a consumer; its in-flight messages become ready again at once."""
        self._leave(consumer, now_ms, "disconnect")

    def _leave(self, consumer: Consumer, now_ms: int, reason: Reason | None) -> None:
        if consumer.closed:
            return
        consumer.closed = True
        self.consumers.remove(consumer)
        self._consumers_changed()
        rows, unsent = self.in_flight.take_back_consumer(consumer.id)
        self._return(rows, np.full(rows.height, now_ms), now_ms, reason)
        self._return_untried(unsent, 0, now_ms)

    def give_up(self) -> list[Consumer]:
        """Remove and return all consumers, and forget all in-flight messages, for a seek.

        The subscription that replaces this one takes the consumers over.
        """
        consumers, self.consumers = self.consumers, []
        self.in_flight.clear()
        return consumers

    # -- acknowledgements --------------------------------------------------------

    def acknowledge(
        self,
        offsets: Int64s,
        done: Callable[[int], None] | None,
        inbox_entries: Callable[[Int64s], Sequence[InboxEntry]] | None = None,
        *,
        at_ms: int | None = None,
        lapsed: Int64s | None = None,
    ) -> int:
        """Acknowledge messages; return how many were not acknowledged before.

        Args:
          offsets: int64[n], any order, repeats allowed. Any consumer of the subscription may
            acknowledge any message.
          done: called with the returned number when all ``offsets`` are durable. This includes
            offsets that were acknowledged before and whose commit is still in progress.
          inbox_entries: called with the offsets that were not acknowledged before. Returns entries
            for the inbox (dead letters), which become durable in the same commit.
          at_ms: when a consumer acknowledged the messages. None if the broker did so, for example
            for expired messages, which the lag statistics do not count.
          lapsed: the offsets of messages that expired or were dropped without ever being delivered;
            each once.
        """
        bits = self.acked.new_of(offsets)
        fresh = bits.offsets
        timing = unsent = None
        if len(fresh):
            if at_ms is not None:
                # If all offsets are new, pass them in the given order. It is usually the order of
                # the delivery, in which in-flight messages are found fastest.
                named = offsets if len(fresh) == len(offsets) else fresh
                timing = self._timing(named, at_ms)
            self.acked.take(bits)
            settled = self.in_flight.settle(bits)
            if self.held.discard(bits) > settled:
                self._forget_ready(fresh)
            self.counts.acknowledged += len(fresh)
            self._totals.acknowledged += len(fresh)
            if lapsed is not None and len(lapsed):
                every = len(fresh) == len(offsets)
                unsent = lapsed if every else lapsed[np.isin(lapsed, fresh)]
                self.lapses().add(unsent)
        if len(fresh) or (done is not None and self.acked.undurable.intersects(offsets)):
            written = inbox_entries(fresh) if inbox_entries is not None and len(fresh) else ()
            acks = Acks(self.record.topic_id, self.record.id, fresh, done, written, timing, unsent)
            self._submit(acks)
        elif done is not None:
            done(0)
        return len(fresh)

    def _timing(self, offsets: Int64s, at_ms: int) -> Timing:
        """Return when newly acknowledged messages were delivered, for the lag statistics."""
        parts = self.in_flight.take_acknowledged(offsets)
        self._acknowledged(parts)
        seen = sum(part.height for part in parts)
        handed = [part.handed for part in parts]
        return Timing(self.record.origin_id, at_ms, handed, len(offsets) - seen)

    def _acknowledged(self, parts: Sequence[DeliveryPart]) -> None:  # noqa: B027 (optional)
        """React to the acknowledgement of in-flight messages."""

    # -- cancelling ----------------------------------------------------------------

    def was_handed(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which messages are acknowledged, dead, or held after a delivery; bool[n].

        Does not include a message that a previous broker may have delivered without recording it;
        see ``may_have_had``.
        """
        handed = self.acked.contains(offsets)
        held = np.flatnonzero(self.held.contains(offsets))
        if len(held):
            handed[held] |= ~self._never_sent(offsets[held])
        return handed

    @abstractmethod
    def may_have_had(self, rows: Rows, published_ms: Int64s) -> npt.NDArray[np.bool_]:
        """Return which messages a previous broker may have delivered without recording it; bool[n].

        Args:
          rows: messages that were published before this broker started.
          published_ms: when each was published; int64[n].
        """

    def assume_delivered(self, rows: Rows) -> None:
        """Record durably that a previous broker may have delivered these pending messages.

        From now on they count as delivered. If they are cancelled or moved for other subscriptions,
        this subscription keeps them as they are. Their next delivery is marked redelivered, and
        counts as the first attempt.
        """
        rows = rows._replace(attempts=rows.attempts | RELEASED)
        self.attempts.state(rows, rows.due_ms)
        if self.held.discard(rows.offsets):
            self._forget_ready(rows.offsets)  # there they count as never sent
        self.held.add(rows.offsets)
        self._again(rows, waited=False)

    @property
    def may_have_lapsed(self) -> bool:
        """Whether ``has_lapsed`` may return True for any message."""
        return self.lapsed is not None or bool(self.dead)

    def has_lapsed(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which messages expired or were dropped without ever being delivered; bool[n].

        Includes messages in ``dead``, whose dead letters are not written yet.
        """
        lapsed = np.zeros(len(offsets), bool)
        if self.lapsed is not None:
            lapsed |= self.acked.contains(offsets) & self.lapsed.contains(offsets)
        if self.dead:
            lapsed |= np.isin(offsets, self._unsent(self.dead.rows))
        return lapsed

    def forget_lapses(self, gone: OffsetSet) -> bool:
        """Count all messages that the log has forgotten as lapsed, if any message has lapsed.

        A set that has whole ranges of offsets takes little memory. Otherwise ``lapsed`` would need
        one bit for each message forever.

        Args:
          gone: the offsets of the forgotten messages.

        Returns:
          Whether ``lapsed`` has changed.
        """
        return self.lapsed is not None and self.lapsed.union_update(gone) > 0

    def lapses(self) -> OffsetSet:
        """Return the set ``lapsed``, to add offsets to it; create it if it is None."""
        if self.lapsed is None:
            self.lapsed = OffsetSet()
        return self.lapsed

    @abstractmethod
    def _never_sent(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which of these messages are ready and were never sent; bool[n]."""

    def withdraw(self, offsets: Int64s) -> None:
        """Remove cancelled or moved messages, except those that were delivered.

        A delivered message stays here without the change. The delivery is recorded, so that this
        holds after a crash too.
        """
        handed = self.was_handed(offsets)
        if handed.any():
            self.attempts.keep(offsets[handed])
        offsets = offsets[~handed]
        if self.held.discard(offsets):
            self._forget_ready(offsets)

    def kept(self) -> OffsetSet:
        """Return all messages that stay here if they are cancelled, and other held messages.

        Messages stay here if they were delivered. The caller must not change the set.
        """
        return self.held

    def holds(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which messages are held, or would be held again after a crash; bool[n].

        The latter are messages whose acknowledgement is not durable yet. During a start, messages
        with stored attempts that have not been made ready yet count as held.
        """
        holds = self.held.contains(offsets) | self.attempts.has_recovered(offsets)
        if len(self.acked.undurable):
            holds |= self.acked.undurable.contains(offsets)
        return holds

    # -- giving back -------------------------------------------------------------

    def negative_acknowledge(
        self,
        consumer: Consumer,
        offsets: Int64s,
        delay_ms: int | None,
        now_ms: int,
        reason: Reason = "nack",
        detail: str = "",
    ) -> int:
        """Give failed messages back, and retry them later.

        Returns how many messages were in flight to the consumer; the others are ignored.

        Args:
          delay_ms: the wait before the retry; None for the consumer's back-off.
          reason: "nack", or "rejected" for messages that are not to be retried. A subscription
            without dead letters, of a message table, retries these too.
          detail: why the consumer rejects them, for their dead letters; "" if it does not say.
        """
        rows = self.in_flight.take_back(offsets, consumer.id)
        if delay_ms is None:
            chance = self._rng.random(rows.height)
            next_ms = consumer.back_off.until_ms(now_ms, rows.counts, chance)
        else:
            next_ms = np.full(rows.height, now_ms + min(delay_ms, CEILING_MS), np.int64)
        self.counts.nacked += rows.height
        self._return(rows, next_ms, now_ms, reason, detail)
        return rows.height

    def release(self, consumer: Consumer, offsets: Int64s, delay_ms: int, now_ms: int) -> int:
        """Take back messages that the consumer did not try, and deliver them after ``delay_ms``.

        The previous delivery no longer counts as an attempt, but the next one is marked
        redelivered. Returns how many messages were in flight to the consumer; the others are
        ignored.
        """
        rows = self.in_flight.take_back(offsets, consumer.id)
        self._return_untried(rows, delay_ms, now_ms)
        return rows.height

    def _return_untried(self, rows: Rows, delay_ms: int, now_ms: int) -> None:
        rows = rows._replace(attempts=(rows.attempts - 1) | RELEASED)
        self.counts.released += rows.height
        next_ms = np.full(rows.height, now_ms + min(delay_ms, CEILING_MS))
        self._return(rows, next_ms, now_ms, None)

    def extend(self, consumer: Consumer, offsets: Int64s, wait_ms: int, now_ms: int) -> int:
        """Extend the ack deadlines of a consumer's in-flight messages to ``wait_ms`` from now.

        Returns how many of the messages are in flight to the consumer.
        """
        return self.in_flight.extend(offsets, consumer.id, now_ms + min(wait_ms, CEILING_MS))

    def _return(
        self, rows: Rows, next_ms: Int64s, now_ms: int, reason: Reason | None, detail: str = ""
    ) -> None:
        """Retry messages taken back from a consumer, or make them dead after their last attempt.

        Args:
          next_ms: when to retry each message; int64[n].
          reason: why the delivery failed. None if it did not fail; then no message becomes dead.
          detail: what the consumer says about it.
        """
        if not rows.height:
            return
        self.gave_back = True
        rows = counted(rows)
        if self.expiry.ttl_ms:  # a retry waits no longer than the time to live
            next_ms = np.minimum(next_ms, np.maximum(rows.due_ms + self.expiry.ttl_ms, now_ms))
        stated_ms = np.where(next_ms <= now_ms, rows.due_ms, next_ms)
        self.attempts.state(rows, stated_ms)
        most = 1 if reason == "rejected" else self.record.policy.max_deliveries
        if most and reason is not None:
            over = rows.counts >= most
            if over.any():
                self._give_up_on(rows.pick(over), reason, detail)
                rows, next_ms = rows.pick(~over), next_ms[~over]
        self._wait(rows, next_ms, now_ms)

    def _give_up_on(self, rows: Rows, reason: Reason, detail: str) -> None:
        """Make messages dead, because their last attempt failed."""
        self.dead.add(Dead.of(rows, reason, detail))
        self._on_dead(self)

    def _retry(self, rows: Rows, next_ms: Int64s, now_ms: int, *, waited: bool = False) -> None:
        """Retry recovered, dead or ready messages, which were not in flight; see ``_wait``.

        A subclass overrides this to mark their keys as busy. The keys of in-flight messages are
        busy already, so those messages go to ``_wait`` directly.
        """
        self._wait(rows, next_ms, now_ms, waited=waited)

    def _wait(self, rows: Rows, next_ms: Int64s, now_ms: int, *, waited: bool = False) -> None:
        """Put messages into retry until ``next_ms``; make those ready whose time has come.

        Args:
          next_ms: when to retry each message; int64[n].
          waited: whether the messages whose time has come have waited out a back-off; see
            ``_again``.
        """
        at_once = next_ms <= now_ms
        if at_once.any():
            self._again(rows.pick(at_once), waited=waited)
            rows, next_ms = rows.pick(~at_once), next_ms[~at_once]
        if rows.height:
            elapsed = self.retries.wait(rows, next_ms)
            if elapsed.height:
                self._again(elapsed, waited=True)

    # -- dead messages -----------------------------------------------------------

    def dead_letter(
        self, offsets: Int64s, inbox_entries: Sequence[InboxEntry], done: Callable[[], None]
    ) -> None:
        """Acknowledge dead messages in one commit with their dead letters.

        Removes from ``dead`` all messages that ``dead.next`` returned.

        Args:
          offsets: the messages among them that have a dead letter; int64[n].
          inbox_entries: the entries for the inbox with these dead letters.
          done: called when the commit is durable.
        """
        rows = self.dead.take_next().rows
        rows = rows.pick(np.isin(rows.offsets, offsets))
        dead_lettered = self.dead.dead_lettering(rows)

        def durable(count: int) -> None:
            dead_lettered()
            done()

        self.held.discard(offsets)
        self.counts.dead_lettered += len(offsets)
        self._totals.dead_lettered += len(offsets)
        self.acknowledge(offsets, durable, lambda fresh: inbox_entries, lapsed=self._unsent(rows))

    def expire(self, rows: Rows) -> None:
        """Expire messages that are neither in flight nor ready.

        Acknowledges them, or makes them dead if the policy asks for dead letters of expired
        messages.
        """
        self.counts.expired += rows.height
        self._totals.expired += rows.height
        self._finish_undelivered(rows, "expired", self.record.policy.expired_to_dead_letter)

    def _drop(self, rows: Rows) -> None:
        """Drop messages because of a backlog quota. They are neither in flight nor ready.

        Acknowledges them, or makes them dead if the policy asks for dead letters of dropped
        messages.
        """
        self.counts.dropped += rows.height
        self._totals.dropped += rows.height
        self._finish_undelivered(rows, "dropped", self.record.policy.dropped_to_dead_letter)

    def _finish_undelivered(self, rows: Rows, reason: Reason, to_dead_letter: bool) -> None:
        if to_dead_letter:
            self.held.add(rows.offsets)
            self.dead.add(Dead.of(rows, reason))
            self._on_dead(self)
        else:
            self.held.discard(rows.offsets)
            self.acknowledge(rows.offsets, None, lapsed=self._unsent(rows))

    def _unsent(self, rows: Rows) -> Int64s:
        """Return the offsets of rows that neither this nor an earlier broker can have delivered."""
        unsent = rows.attempts == 0
        before = self.was_sent_before(rows)
        offsets: Int64s = rows.offsets[unsent if before is None else unsent & ~before]
        return offsets

    @property
    def has_room_for_dead(self) -> bool:
        """Whether ``dead`` has room for more messages, which wait in memory."""
        return len(self.dead) < self.limits.ready_messages

    @property
    def settled(self) -> int:
        """The number of acknowledged, cancelled and dead messages.

        It grows by at least one for each message that leaves the backlog. A message that was
        cancelled only for other subscriptions counts too.
        """
        return len(self.acked) + len(self._amendments.cancelled) + len(self.dead)

    def revive(self, rows: Rows, next_ms: int, now_ms: int) -> None:
        """Retry messages that were taken out of ``dead``, at ``next_ms``; they are still held."""
        self._retry(rows, np.full(rows.height, next_ms), now_ms)

    # -- time ----------------------------------------------------------------------

    def advance(self, now_ms: int) -> bool:
        """Advance to ``now_ms``: take back messages past their ack deadline, and end back-offs.

        Returns whether messages may have become deliverable.
        """
        moved = self.throttle.advance(now_ms)
        if self.expiry.takes_effect():
            self.retries.live(self.expiry.ttl_ms)
        fired = self.retries.advance(now_ms)
        if fired is None:
            return moved
        for delivery_id in fired.deliveries:
            rows, deadline_ms = self.in_flight.expire(delivery_id, now_ms)
            if deadline_ms is not None:
                self._watch([delivery_id], [deadline_ms])
            if rows.height:
                self.counts.timed_out += rows.height
                self._return(rows, np.full(rows.height, now_ms), now_ms, "timeout")
                moved = True
        if fired.rows.height:
            rows = fired.rows.pick(self.held.contains(fired.rows.offsets))
            if rows.height:
                self._again(rows, waited=True)
                moved = True
        return moved

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` has something to do; None if never."""
        return lowest((self.retries.next_wake_ms(), self.throttle.next_wake_ms()))

    def rewind(self, now_ms: int) -> None:
        """Rebuild the timers after the wall clock was set back; their times do not change."""
        self.retries.rewind(now_ms)

    # -- delivery ------------------------------------------------------------------

    def _deliver(
        self,
        takers: Sequence[tuple[Consumer, int]],
        rows: Rows,
        now_ms: int,
        wanted_ms: Int64s | None = None,
    ) -> list[HandOver]:
        """Put a run of messages in flight to each of some consumers; count an attempt of each.

        Args:
          takers: each consumer and the length of its run, in the order of the rows.
          rows: the messages of all runs, at least one.
          wanted_ms: the earliest time at which each message could have been delivered; int64[n].
            None stands for the due times.
        """
        again = int(np.count_nonzero(rows.attempts))
        rows = rows._replace(attempts=rows.attempts + 1)
        deadline_ms = np.empty(rows.height, np.int64)
        firsts_ms: list[int] = []
        common_ms: list[int | None] = []
        high = 0
        for consumer, height in takers:
            low, high = high, high + height
            consumer.permits -= height
            policy = consumer.back_off
            first_ms = now_ms + policy.first_wait_ms if policy.ack_wait_ms else NEVER_MS
            deadline_ms[low:high] = first_ms
            common_ms.append(first_ms)
            if again and policy.ack_wait_ms:
                tried = low + np.flatnonzero(rows.attempts[low:high] > 1)
                common_ms[-1] = first_ms if not len(tried) else None
                chance = self._rng.random(len(tried))
                deadline_ms[tried] = policy.until_ms(now_ms, rows.counts[tried], chance)
                first_ms = int(deadline_ms[low:high].min())
            firsts_ms.append(first_ms)
        wanted_ms = self._wanted_ms(rows, wanted_ms)
        made = self.in_flight.deliver(
            [(consumer.id, height) for consumer, height in takers],
            rows,
            deadline_ms,
            now_ms,
            wanted_ms,
        )
        watched = [
            (delivery_id, first_ms)
            for (delivery_id, _), first_ms in zip(made, firsts_ms, strict=True)
            if first_ms < NEVER_MS
        ]
        if watched:
            self._watch(*zip(*watched, strict=True))
        self.throttle.delivered(rows.height, now_ms)
        self.counts.delivered += rows.height
        self.counts.redelivered += again
        self._totals.delivered += rows.height
        self._totals.redelivered += again
        late_ms = now_ms - wanted_ms
        if again:
            late_ms = late_ms[rows.attempts == 1]
        record, totals = self.record, self._totals
        totals.lateness_ms.add(late_ms)
        totals.lateness_history.add(now_ms, record.topic_id, record.origin_id, late_ms)
        return [
            HandOver(consumer, own, delivery_id, consumer.halts, deadline_ms=common)
            for (consumer, _), (delivery_id, own), common in zip(
                takers, made, common_ms, strict=True
            )
        ]

    def _wanted_ms(self, rows: Rows, wanted_ms: Int64s | None) -> Int64s:
        """Return the earliest time at which each message could have been delivered; int64[n].

        That is ``wanted_ms`` or, if it is None, the due time, but no time before the subscription
        began. The lag statistics count lateness from it.
        """
        wanted_ms = rows.due_ms if wanted_ms is None else wanted_ms
        began_ms = self.record.created_at_ms
        return wanted_ms if int(wanted_ms.min()) >= began_ms else np.maximum(wanted_ms, began_ms)

    def note_sent(self, hand: HandOver) -> None:
        """Note that a run was sent: the attempt now counts even if the consumer leaves."""
        self.in_flight.note_sent(hand.delivery_id)

    def put_back(self, hand: HandOver, now_ms: int) -> None:
        """Make a run's messages ready again, because it must not be sent. No attempt counts."""
        hand.consumer.give_back(hand.rows.height, hand.halts)
        held = hand.rows.offsets[self.still_held(hand)]
        self._return_untried(self.in_flight.take_back(held, hand.consumer.id), 0, now_ms)

    def ack_waits(self, hand: HandOver, offsets: Int64s, now_ms: int) -> AckWaits:
        """Return how long messages of a run may stay unacknowledged from now on.

        Args:
          offsets: the messages, which are in flight.
        """
        if hand.deadline_ms is not None:
            return AckWaits.until(hand.deadline_ms, now_ms)
        _, deadlines_ms = self.in_flight.terms(offsets)
        return AckWaits.until_each(deadlines_ms, now_ms)

    def still_held(self, hand: HandOver) -> npt.NDArray[np.bool_]:
        """Return which messages of a run are still in flight: not acknowledged, not taken back."""
        return self.in_flight.holds(hand.delivery_id, hand.rows.height)

    def _watch(self, delivery_ids: Sequence[int], deadlines_ms: Sequence[int]) -> None:
        if self.retries.is_untidy(len(self.held) + self.in_flight.deliveries):
            self.retries.tidy(self.in_flight.delivery_ids())
        self.retries.watch(delivery_ids, deadlines_ms)

    # -- a restart --------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """Make recovered messages ready or put them into retry, once all attempts are loaded."""
        self._resume(*self.attempts.take_recovered(self.acked), now_ms)

    def _resume(self, rows: Rows, next_ms: Int64s, now_ms: int) -> None:
        """Make messages ready that are due by ``next_ms``, or put them into retry until then."""
        if not rows.height:
            return
        self.held.add(rows.offsets)
        waited = next_ms > rows.due_ms
        if waited.any():
            self._retry(rows.pick(waited), next_ms[waited], now_ms, waited=True)
            rows = rows.pick(~waited)
        if rows.height:
            self._again(rows, waited=False)

    def all_attempts(self, now_ms: int) -> AttemptTable:
        """Return the attempts of all pending messages that were tried, for a checkpoint."""
        return self.attempts.take_all(self._tried(), now_ms)

    @property
    def most_attempts(self) -> int:
        """The most messages of which attempts are still needed.

        A crash may lose an acknowledgement that is not durable, so such messages count too.
        """
        return len(self.held) + len(self.acked.undurable)

    def _tried(self) -> Rows:
        """Return the messages that were tried and are neither in flight nor in retry, and more."""
        return Rows.concat([self._ready_again(), self.dead.rows])

    def tries_of(self, offset: int) -> tuple[int, int | None]:
        """Return how often a message was delivered, and the time of its retry.

        The message is ready or in retry. The time is None if it is ready.
        """
        rows, times_ms = self.retries.waiting()
        at = np.flatnonzero(rows.offsets == offset)
        if len(at):
            return int(rows.counts[at[0]]), int(times_ms[at[-1]])
        rows = self._ready_again()
        found = rows.counts[rows.offsets == offset]
        return (int(found[0]) if len(found) else 0), None

    @abstractmethod
    def _ready_again(self) -> Rows:
        """Return all ready messages, with the attempts of each.

        The rows of an ordered subscription include messages that were given back and must be read
        again. Their due time is 0, because it is not known.
        """

    def stop(self, now_ms: int) -> None:
        """Take back all in-flight messages, and record their attempts for the next start."""
        for consumer in list(self.consumers):
            # Stopping the broker does not count as a failed delivery.
            self._leave(consumer, now_ms, None)
