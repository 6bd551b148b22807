"""A message table that is served: its topic, its subscription and its rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from escapement.broker.limits import BrokerLimits
from escapement.broker.log.amendments import Amendments
from escapement.broker.metering.totals import Totals
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.subscription import Environment
from escapement.broker.tables.cached_rows import CachedRows
from escapement.broker.tables.claim import NANOSECONDS
from escapement.broker.tables.known_priorities import KnownPriorities
from escapement.broker.tables.polling import Pace
from escapement.broker.tables.ranking import Ranking, priority_traits
from escapement.broker.tables.table_subscription import SUBSCRIPTION, TableSubscription
from escapement.broker.topic.dedup_keys import DedupKeys
from escapement.broker.topic.key_store import KeyBudget
from escapement.broker.topic.topic import Topic
from escapement.broker.topic.window_budget import WindowBudget
from escapement.errors import EscapementError
from escapement.message import Blobs, Bools, Int64s
from escapement.names import TableName
from escapement.storage.catalog.catalog import Namespace, SubscriptionRecord
from escapement.storage.catalog.policy import SubscriptionPolicy, TopicPolicy
from escapement.storage.commit.items import Acks, Attempts
from escapement.storage.encoding.attempts import MOST_ATTEMPTS
from escapement.storage.index.delivery_order import DeliveryOrder
from escapement.tables.directives import Directives
from escapement.tables.discovery import MessageTable
from escapement.tables.poll import FoundRow, Polled, Target
from escapement.tables.row_ids import as_key
from escapement.tables.row_statements import NO_TIME_NS, RowStatements, Versions
from escapement.traits import traits_of_keys

# The resolution of deliveries, and the span of time that the wheel loads at once.
_TICK_MS: Final = 10
_GRANULARITY_MS: Final = 300_000
# The due rows of a table in memory are refilled when they are fewer than this part of
# ``cache_size``.
_REFILL: Final = 2
# The most refused rows of a table that take no room in memory from other rows. Each poll reads them
# again.
_MOST_REFUSED: Final = 10_000


class ServedTable:
    """One table, as long as it is not dropped.

    Args:
      id: the id of its topic; no other topic has it.
      first_offset: the offset of its first row in memory; no earlier broker has used it or a later
        one.
      submit: writes acknowledgements and attempts into the rows of this table.
    """

    def __init__(
        self,
        id: int,
        name: TableName,
        table: MessageTable,
        first_offset: int,
        index: DeliveryOrder,
        budget: WindowBudget,
        limits: BrokerLimits,
        rng: np.random.Generator,
        clock_ms: Callable[[], int],
        submit: Callable[[ServedTable, Acks | Attempts], None],
        totals: Totals,
    ) -> None:
        now_ms = clock_ms()
        self._clock_ms = clock_ms
        self._totals = totals
        self.table = table
        self.statements = RowStatements(table)
        self.cached = CachedRows(first_offset)
        self.pace = Pace(table.directives.poll_interval_ms / 1000)
        self.priorities = KnownPriorities()
        self._fruitless = 0  # how many polls in a row found no new messages
        self._ranking = Ranking()
        # Whether the last poll left messages in the table for lack of room: any, and due ones.
        self.overflows = self.is_full = False
        self.is_gone = False  # whether the table was dropped, or cannot be served any more
        self.had_consumers = False
        self._removed: set[object] = set()  # ids of rows removed since the last poll began
        self.topic = Topic(
            id,
            name,
            Namespace(0, name.tenant, name.database, True, _GRANULARITY_MS, _TICK_MS, now_ms),
            TopicPolicy(),
            first_offset,
            index,
            budget,
            DedupKeys(KeyBudget(0)),
            KeyBudget(0),
        )
        self.topic.frame_messages = table.directives.batch_size
        record = SubscriptionRecord(
            id, id, SUBSCRIPTION, "shared", 0, 0, 0, 0, 0, id, _policy(table.directives)
        )
        environment = Environment(
            limits, lambda item: submit(self, item), rng, Amendments(), lambda _: None, totals
        )
        self.subscription = TableSubscription(record, environment, clock_ms, self.removed)

    def begin(self, now_ms: int) -> None:
        """Serve the table. The index must know it."""
        self.topic.add_shared(self.subscription, now_ms)

    def redefine(self, table: MessageTable, now_ms: int) -> None:
        """Apply an altered definition of the table from now on."""
        self.table, self.statements = table, RowStatements(table)
        self.pace.altered()
        self.pace.longest_s = table.directives.poll_interval_ms / 1000
        self.topic.frame_messages = table.directives.batch_size
        self.topic.set_subscription_policy(SUBSCRIPTION, _policy(table.directives), now_ms)
        self.priorities = KnownPriorities()

    def end(self, error: EscapementError) -> None:
        """Close the consumers with an error."""
        for consumer in list(self.subscription.consumers):
            consumer.closed = True
            self.subscription.consumers.remove(consumer)
            consumer.outlet.consumer_closed(consumer.wire_id, error)
        self.topic.releasing()()
        self.is_gone = True
        self.cached.clear()

    # -- polls -----------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many rows in memory wait to be sent."""
        return max(len(self.cached) - self._sent, 0)

    @property
    def _sent(self) -> int:
        return len(self.subscription.in_flight) + len(self.subscription.acked.undurable)

    @property
    def _later(self) -> int:
        """How many of the waiting rows wait for their time.

        They must not take the room of due rows, which would wait until the others are due.
        """
        # Rows that were sent have their ack deadline as their time.
        return self._unsent(self.cached.later(self._clock_ms() * NANOSECONDS))

    @property
    def _eligible(self) -> int:
        """How many of the waiting rows may be sent now.

        Refused rows do not count, up to a limit. They must not take the room of other due rows.
        """
        refused = self._unsent(self.cached.refused(self._clock_ms() * NANOSECONDS))
        return self.waiting - self._later - min(refused, _MOST_REFUSED)

    def _unsent(self, offsets: Int64s) -> int:
        """Return how many of these rows were not sent."""
        if not len(offsets):
            return 0
        sent = self.subscription.in_flight.offsets.contains(offsets)
        sent |= self.subscription.acked.undurable.contains(offsets)
        return int(np.count_nonzero(~sent))

    @property
    def wants_refill(self) -> bool:
        """Whether there is room again for due messages that the last poll left in the table."""
        if not self.is_full:
            return False
        most = self.table.directives.cache_size // _REFILL
        return self.waiting <= most or self._eligible <= most

    @property
    def is_cramped(self) -> bool:
        """Whether memory has no room for more due rows."""
        most = self.table.directives.cache_size
        return self.waiting >= most and self._eligible >= most

    @property
    def is_used(self) -> bool:
        """Whether the table has consumers. Nobody needs its messages in memory otherwise."""
        return bool(self.subscription.consumers)

    def target(self, now_ms: int) -> Target:
        """Return what the next poll is to find, and begin to note which rows are removed."""
        self._removed.clear()
        room = max(self.table.directives.cache_size - self._eligible, 0)
        until_ns = (now_ms + int(self.pace.ahead_s * 1000)) * NANOSECONDS
        priorities = self.priorities
        return Target(
            self.table,
            priorities.turn,
            until_ns,
            len(self.cached) - len(self.cached.later(until_ns)),
            room,
            priorities.all,
            priorities.wants_new(now_ms),
            priorities.after,
        )

    def take(self, polled: Polled, poll: int, claimed: Int64s, now_ms: int) -> bool:
        """Take the messages that a poll has found; return whether some were new.

        Args:
          poll: the number of the poll.
          claimed: the offsets of rows whose claims have begun and are not settled.
        """
        self.priorities.polled(polled.in_use, now_ms)
        if polled.in_use is not None and self.priorities.all is not None:
            self._ranking.forget_others(self.priorities.all)
        # A row whose priority was changed during the poll may have been found twice.
        by_id = {row.id: row for row in polled.rows}
        rows = [row for id, row in by_id.items() if id not in self._removed]
        are_new = self._are_new(rows, poll, claimed, now_ms)
        fresh = [row for row, new in zip(rows, are_new, strict=True) if new]
        due, later = self._by_time(fresh, now_ms)
        most = self.table.directives.cache_size
        room, later_room = most - self._eligible, most - self._later
        ageing_ms = self.subscription.record.policy.priority_ageing_ms
        kept = self._ranking.first(due, room, ageing_ms, now_ms)
        fresh = [*kept, *self._ranking.first(later, later_room, ageing_ms, now_ms)]
        self._fruitless = 0 if fresh else self._fruitless + 1
        # If polls take turns, others may find more, until all have found nothing.
        takes_turns = self.priorities.turns > 1
        may_find = self._fruitless < self.priorities.turns
        # A poll returns the due rows first. So more are due only if it has found some.
        self.is_full = len(due) > room or (polled.is_full and bool(due))
        self.is_full |= takes_turns and may_find
        self.overflows = polled.is_full or len(fresh) < len(due) + len(later) or takes_turns
        if fresh:
            self._enter(fresh, now_ms)
        self._ranking.kept(kept, due, now_ms)
        return may_find

    def _by_time(
        self, rows: Sequence[FoundRow], now_ms: int
    ) -> tuple[list[FoundRow], list[FoundRow]]:
        """Divide rows into those that are due, and those that are due later."""
        now_ns = now_ms * NANOSECONDS
        due = [row for row in rows if (row.time_ns or 0) <= now_ns]
        return due, [row for row in rows if (row.time_ns or 0) > now_ns]

    def _are_new(self, rows: Sequence[FoundRow], poll: int, claimed: Int64s, now_ms: int) -> Bools:
        """Return which rows are not in memory. Forget rows that were changed by SQL.

        A row in flight keeps its ack deadline, whatever has changed, unless it is due again.
        """
        offsets = self.cached.offsets_of([row.id for row in rows])
        new = offsets < 0
        at = np.flatnonzero(~new)
        known = offsets[at]
        before, after = self.cached.versions(known), _versions([rows[row] for row in at.tolist()])
        changed = np.zeros(len(at), bool)
        for old, now in zip(before, after, strict=True):
            changed |= old != now
        subscription = self.subscription
        changed &= ~self.cached.changed_since(known, poll)
        keeps = subscription.in_flight.offsets.contains(known)
        keeps &= after.times_ns > now_ms * NANOSECONDS
        keeps |= np.isin(known, claimed)
        changed &= ~keeps & ~subscription.acked.contains(known)
        if changed.any():
            subscription.in_flight.take_back(known[changed])
            subscription.forget(known[changed])
            self._removed.difference_update(rows[row].id for row in at[changed].tolist())
            new[at[changed]] = True
        return new

    def _enter(self, rows: Sequence[FoundRow], now_ms: int) -> None:
        """Add rows that are not in memory, and offer the messages that are due."""
        versions = _versions(rows)
        keys = [as_key(row.id) if row.key is None else row.key for row in rows]
        due_ms = self._ranking.due_ms(rows, now_ms)
        traits = traits_of_keys(Blobs.of(keys)) | priority_traits(rows)
        offsets = self.cached.add([row.id for row in rows], keys, due_ms, traits, versions)
        self.topic.next_offset = self.cached.next_offset
        tried = versions.epochs > 0
        if not tried.all():
            fresh = ~tried
            self.topic.found(due_ms[fresh], offsets[fresh], traits[fresh], now_ms)
            self._totals.published += int(np.count_nonzero(fresh))
        if tried.any():
            attempts = np.minimum(versions.epochs[tried], MOST_ATTEMPTS)
            # The time of the next attempt is known, and the first due time is not.
            first_ms = np.minimum(due_ms[tried], now_ms)
            again = Rows(first_ms, offsets[tried], attempts, traits[tried])
            self.subscription.take_tried(again, due_ms[tried], now_ms)

    def removed(self, offsets: Int64s) -> None:
        """Remove rows from memory. A poll that has begun already does not add them again."""
        self._removed.update(self.cached.remove(offsets))


def _versions(rows: Sequence[FoundRow]) -> Versions:
    times = [NO_TIME_NS if row.time_ns is None else row.time_ns for row in rows]
    return Versions(
        np.array([row.epoch for row in rows], np.int64),
        np.array(times, np.int64),
        np.array([row.priority for row in rows], np.int64),
    )


def _policy(directives: Directives) -> SubscriptionPolicy:
    return SubscriptionPolicy(
        ack_wait_ms=directives.ack_wait_ms,
        min_backoff_ms=directives.min_backoff_ms,
        max_backoff_ms=directives.max_backoff_ms or 0,
    )
