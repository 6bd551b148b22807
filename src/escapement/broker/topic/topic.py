"""A topic: its messages, its subscriptions and its upcoming deliveries; the synchronous core.

Committed messages go into the delayed index. Messages that are due are *offered* to the shared
subscriptions. The others wait in the topic's
:class:`~escapement.broker.topic.delivery_window.DeliveryWindow`, which has the next of them in a
timing wheel and returns them when they are due. A topic without a shared subscription has no
``DeliveryWindow`` and none of its cost.

Exclusive and failover subscriptions ("ordered" in this code) read the log instead and ignore due
times. The *traits* of a message are 32 bits with its priority and the hash of its key.

No I/O, no clock, no task. All methods are synchronous; time arrives as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from escapement.broker.log.amendments import Amendments
from escapement.broker.log.backfill import WHOLE, Backfill
from escapement.broker.log.restatements import Restatements
from escapement.broker.subscription.dead_letters.dead_letter import DEAD_LETTERS_SUBSCRIPTION
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.backlog_size import Counted, is_governed, quota_of, total_quota_of
from escapement.broker.topic.dedup_keys import DedupKeys
from escapement.broker.topic.delivery_window import DeliveryWindow
from escapement.broker.topic.groups import Groups
from escapement.broker.topic.key_store import KeyBudget
from escapement.broker.topic.message_sizes import Sizes
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.publish_rate import PublishRate
from escapement.broker.topic.quota_watch import QuotaWatch
from escapement.broker.topic.replace_keys import ReplaceKeys
from escapement.broker.topic.retention import Retention
from escapement.broker.topic.window_budget import WindowBudget
from escapement.errors import NotFound
from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.names import TopicName
from escapement.sorting import lowest
from escapement.storage.catalog.catalog import Namespace
from escapement.storage.catalog.delay_policy import DelayPolicy
from escapement.storage.catalog.policy import SubscriptionPolicy, TopicPolicy
from escapement.storage.commit.group import Moved, Restated
from escapement.storage.encoding.replace_keys import ReplaceTable
from escapement.storage.index.delivery_order import DeliveryOrder, KeyPlan
from escapement.storage.index.keys import Key
from escapement.storage.offsets import OffsetSet
from escapement.timewheel import Entries
from escapement.traits import traits_of


class Topic:
    """The runtime of one active topic."""

    __slots__ = (
        "__weakref__",
        "_budget",
        "_coming",
        "_index",
        "amendments",
        "archive_awaited_since_ms",
        "backlog",
        "dedup",
        "delays",
        "deleting",
        "doubtful_below",
        "frame_messages",
        "groups",
        "has_quota",
        "id",
        "index_backfill",
        "name",
        "namespace",
        "next_offset",
        "ordered",
        "policy",
        "producers",
        "publish_rate",
        "published",
        "quota",
        "quota_watch",
        "replace_keys",
        "restatements",
        "retention",
        "shared",
        "sizes",
        "total_quota",
    )

    def __init__(
        self,
        id: int,
        name: TopicName,
        namespace: Namespace,
        policy: TopicPolicy,
        next_offset: int,
        index: DeliveryOrder,
        budget: WindowBudget,
        dedup: DedupKeys,
        replace_budget: KeyBudget,
        backfill: Backfill = WHOLE,
    ) -> None:
        self.id = id
        self.name = name
        self.index_backfill = backfill
        self.namespace = namespace
        self.policy = policy
        self.next_offset = next_offset
        # An earlier broker may have delivered messages with lower offsets without a record of it.
        self.doubtful_below = next_offset
        self.shared: dict[str, SharedSubscription] = {}
        self.ordered: dict[str, OrderedSubscription] = {}
        self.producers: dict[str, Producer] = {}
        self.amendments = Amendments()
        self.retention = Retention(self.shared, self.ordered, self.amendments)
        self.groups = Groups()
        self.restatements = Restatements()
        self.sizes = Sizes()
        self.publish_rate = PublishRate()
        self.frame_messages: int | None = None  # the most messages of a frame; None: no own limit
        self.dedup = dedup
        self.replace_keys = ReplaceKeys(
            replace_budget, self.shared, self.ordered, self.amendments, next_offset
        )
        self.backlog: Counted | None = None  # the last count of the backlog, for quotas
        self.quota_watch = QuotaWatch()
        self._obey()
        self.published = 0  # messages since this broker began to serve the topic
        self.deleting = False  # being deleted, so publishes are refused; the deletion may fail
        # Since when a generation of the log has waited for its messages to be archived; 0: none.
        self.archive_awaited_since_ms = 0
        self._index = index
        self._budget = budget
        self._coming: DeliveryWindow | None = None  # exists while there is a shared subscription

    @property
    def is_table(self) -> bool:
        """Whether the messages are rows of a message table, and not of the log."""
        return self.id < 0

    @property
    def is_governed(self) -> bool:
        """Whether the topic has a time to live or a quota, which act even without clients."""
        return is_governed(self.policy, self.namespace.policy)

    def releasing(self) -> Callable[[], None]:
        """Return a function that frees the wheel's share of the budget once the topic is gone."""
        return (lambda: None) if self._coming is None else self._coming.close

    # -- subscriptions ------------------------------------------------------------

    def subscriptions(self) -> Iterable[Subscription]:
        """Yield all subscriptions of the topic, of every kind."""
        yield from self.shared.values()
        yield from self.ordered.values()

    def consumed(self) -> Iterable[Subscription]:
        """Return the subscriptions to which a time to live and backlog quotas apply.

        These are all except the subscription that keeps dead letters, because dead letters stay
        until an operator handles them.
        """
        return (one for one in self.subscriptions() if one.record.name != DEAD_LETTERS_SUBSCRIPTION)

    def subscription(self, name: str) -> Subscription | None:
        """Return the subscription of this name, or None."""
        return self.shared.get(name) or self.ordered.get(name)

    def find(self, name: str) -> Subscription:
        """Return the subscription of this name. Raises ``NotFound``."""
        found = self.subscription(name)
        if found is None:
            raise NotFound(
                f"{self.name.full} has no subscription {name}; `escapement admin subscriptions "
                f"list {self.name.full}` shows all subscriptions"
            )
        return found

    def add_shared(self, subscription: SharedSubscription, now_ms: int) -> None:
        """Serve a shared subscription, which reads due messages in the index from its mark on."""
        if self._coming is None:
            tick_ms, granularity_ms = self.namespace.tick_ms, self.namespace.granularity_ms
            self._coming = DeliveryWindow(
                self.id, self._index, self._budget, tick_ms, granularity_ms, now_ms
            )
        self.shared[subscription.record.name] = subscription
        self._set_tick(now_ms)
        self._introduce(subscription)
        self._begin(subscription)

    def _introduce(self, subscription: SharedSubscription) -> None:
        """Create all priority bands of a subscription if the index has messages with priorities.

        Otherwise the subscription would create a band only when it finds a message for it, which
        may be late in its backlog.
        """
        if self._index.has_priorities(self.id):
            subscription.bands.add_all()

    def add_ordered(self, subscription: OrderedSubscription) -> None:
        """Serve an exclusive or failover subscription."""
        self.ordered[subscription.record.name] = subscription
        self._begin(subscription)

    def _begin(self, subscription: Subscription) -> None:
        self._govern(subscription)
        self.quota_watch.grown = True
        self.backlog = None  # this subscription may be further behind than those counted

    def _govern(self, subscription: Subscription) -> None:
        subscription.throttle.topic_paused_until_ms = self.policy.paused_until_ms
        if subscription.record.name != DEAD_LETTERS_SUBSCRIPTION:
            subscription.expiry.set_ttl(self.policy.ttl_ms or self.namespace.policy.ttl_ms)

    def remove(self, name: str) -> None:
        """Stop serving a subscription."""
        gone = self.subscription(name)
        if gone is not None:
            self.groups.leave(gone.record.id)
        self.ordered.pop(name, None)
        self.shared.pop(name, None)
        self.backlog = None
        if self._coming is not None and not self.shared:
            self._coming.close()
            self._coming = None

    # -- messages arrive ------------------------------------------------------------

    def accept(self, base_offset: int, due_ms: Int64s, batch: MessageBatch, now_ms: int) -> None:
        """Add messages that were just committed; one call for each group commit."""
        assert base_offset == self.next_offset, "the log has a gap, or went back"
        count = len(due_ms)
        traits = self._append(base_offset, due_ms, batch)
        self.published += count
        for one in self.ordered.values():
            if one.expiry.ttl_ms:
                one.expiry.keeps(int(due_ms.min()))
        self._arrive(due_ms, None, traits, now_ms)

    def _arrive(
        self, due_ms: Int64s, offsets: Int64s | None, traits: UInt32s | None, now_ms: int
    ) -> None:
        """Handle keys that are new in the delivery order, of new, moved or released messages.

        ``offsets`` is None for the newest messages of the topic.
        """
        self.quota_watch.grown = True
        if self.retention.subscribing:
            self.retention.arrived(due_ms)
        if self.shared:
            if offsets is None:
                offsets = np.arange(self.next_offset - len(due_ms), self.next_offset)
            self._insert(due_ms, offsets, now_ms, traits)

    def _insert(
        self, due_ms: Int64s, offsets: Int64s, now_ms: int, traits: UInt32s | None = None
    ) -> None:
        """Offer the messages that are due, and let the others wait in the ``DeliveryWindow``."""
        assert self._coming is not None
        if self._coming.exact:
            self._pass_unread(now_ms)
        for due in self._coming.insert(_entries(due_ms, offsets, traits), now_ms):
            self._offer(due)

    def offer_due(self, now_ms: int) -> None:
        """Offer the messages in the wheel that are due by ``now_ms``.

        If no subscription keeps an order, these are the messages due by the wheel's last tick. A
        subscription that keeps an order delivers nothing before this call.
        """
        if self._coming is not None:
            self._pass_unread(now_ms)
            self._offer(self._coming.advance(now_ms))

    def _pass_unread(self, now_ms: int) -> None:
        """Make shared subscriptions read due keys that are in the index but not in the wheel."""
        assert self._coming is not None
        passed = self._coming.pass_unread(now_ms)
        if passed is not None:
            for subscription in self.shared.values():
                subscription.fall_behind(passed)

    def _offer(self, due: Entries) -> None:
        if not len(due):
            return
        self.quota_watch.grown = True
        traits = None if due.tags is None else due.tags.astype(np.uint32)
        for subscription in self.shared.values():
            subscription.offer(due.when_ms, due.ids, traits)

    def found(self, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None, now_ms: int) -> None:
        """Handle messages of a message table that its index has newly; offsets ascend."""
        self.published += len(offsets)
        self._arrive(due_ms, offsets, traits, now_ms)

    def _append(self, base_offset: int, due_ms: Int64s, batch: MessageBatch) -> UInt32s | None:
        """Add new messages to the index; return their traits, or None if all traits are zero."""
        traits = self._index.add(self.id, base_offset, due_ms, batch)
        self.sizes.saw(batch)
        self.next_offset = max(self.next_offset, base_offset + len(due_ms))
        return traits

    def recover(
        self, base_offset: int, due_ms: Int64s, batch: MessageBatch, offsets: Int64s | None = None
    ) -> None:
        """Add messages of the log that the index lacks, at a start; subscriptions read them later.

        Args:
          base_offset: the key of the log row, which is the offset of its first message unless the
            row restates earlier messages.
          offsets: the offsets of restated messages, ascending. None: count up from ``base_offset``.
        """
        if offsets is None and self.amendments.moves.empty:
            self._append(base_offset, due_ms, batch)
            return
        if offsets is None:
            offsets = np.arange(base_offset, base_offset + len(due_ms))
            self.next_offset = max(self.next_offset, base_offset + len(due_ms))
        self.sizes.saw(batch)
        stale = self.amendments.moves.stale(due_ms, offsets)
        if stale is not None:
            for subscription in self.shared.values():
                stale &= ~subscription.holds(offsets)
            at = np.flatnonzero(~stale)
            due_ms, offsets, batch = due_ms[at], offsets[at], batch.take(at)
        self._index.add(self.id, offsets, due_ms, batch)

    def fill_in(self, offsets: Int64s, due_ms: Int64s, batch: MessageBatch, now_ms: int) -> None:
        """Add messages to the index that it may have forgotten; offsets ascend.

        They are normally due, and subscriptions then read them in the index. If the clock was set
        back, some may not be due yet; these wait in the ``DeliveryWindow`` again.
        """
        traits = self._index.add(self.id, offsets, due_ms, batch)
        later = due_ms > now_ms
        if later.any():
            self.amendments.repeating = True  # the wheel may have these keys already
            self._insert(
                due_ms[later], offsets[later], now_ms, None if traits is None else traits[later]
            )

    def backfill(self, offsets: Int64s, due_ms: Int64s, batch: MessageBatch, now_ms: int) -> int:
        """Add messages of an earlier broker to the index that was lost; offsets ascend.

        Leaves out messages that nobody wants. Subscriptions read due messages in the index, and
        later ones wait in the ``DeliveryWindow``. Returns how many messages were added.
        """
        at = np.flatnonzero(self.retention.live(due_ms, offsets, now_ms))
        if not len(at):
            return 0
        offsets, due_ms, batch = offsets[at], due_ms[at], batch.take(at)
        traits = self._index.add(self.id, offsets, due_ms, batch)
        self.sizes.saw(batch)
        if not self.shared:
            return len(at)
        if traits is not None:
            for subscription in self.shared.values():
                self._introduce(subscription)
        later = due_ms > now_ms
        if later.any():
            if not self.amendments.moves.empty:
                self.amendments.repeating = True  # several rows may state the same key
            self._insert(
                due_ms[later], offsets[later], now_ms, None if traits is None else traits[later]
            )
        if not later.all():
            due = np.flatnonzero(~later)
            first = due[np.lexsort((offsets[due], due_ms[due]))[0]]
            for subscription in self.shared.values():
                subscription.read_again_from(Key(int(due_ms[first]), int(offsets[first])))
        return len(at)

    @property
    def keeps_order(self) -> bool:
        """Whether a shared subscription keeps an order."""
        return self._coming is not None and self._coming.exact

    # -- messages move ----------------------------------------------------------------

    def withhold(self, offsets: Int64s) -> None:
        """Withhold messages that are being moved, except from subscriptions that got them."""
        for subscription in self.shared.values():
            subscription.withdraw(offsets)
        self.amendments.withhold(offsets)

    def move(self, moved: Moved, batch: MessageBatch, now_ms: int) -> None:
        """Give withheld messages their new due times: the move is durable.

        Args:
          batch: the moved messages, as the log restates them.
        """
        order = np.argsort(moved.offsets)
        batch = batch.take(order)
        offsets, due_ms, stale_ms, bases = (column[order] for column in moved)
        traits = self._index.add(self.id, offsets, due_ms, batch)
        self.amendments.move(offsets, due_ms, stale_ms, bases)
        for one in self.ordered.values():
            one.due_again(offsets, due_ms)
        self._arrive(due_ms, offsets, traits, now_ms)

    def release(self, offsets: Int64s, due_ms: Int64s, batch: MessageBatch, now_ms: int) -> None:
        """Release withheld messages that keep their due times; offsets ascend."""
        self.amendments.release(offsets)
        self._arrive(due_ms, offsets, traits_of(batch), now_ms)

    def restore(self, entries: ReplaceTable, now_ms: int) -> None:
        """Offer messages again whose replacement was refused; offsets ascend.

        Args:
          entries: their entries, with their current due times.
        """
        entries = entries.take(self.amendments.restore(entries.offsets))
        if len(entries.offsets):
            for one in self.ordered.values():
                one.restore(entries.offsets, entries.due_ms)
            traits = entries.traits.astype(np.uint32)
            self._arrive(entries.due_ms, entries.offsets, traits, now_ms)

    def relocate(self, restated: Restated) -> None:
        """Note where the log restates messages unchanged, so that their old rows can be deleted."""
        item, due_ms = restated.item, restated.due_ms
        self.amendments.moves.put(item.offsets, due_ms, due_ms, item.base_offset)

    def recovered(self, now_ms: int) -> None:
        """Set the horizon to now, because recovery has filled the index.

        Subscriptions read earlier messages in the index.
        """
        if self._coming is not None:
            self._coming.begin_at(now_ms)
        for subscription in self.shared.values():
            self._introduce(subscription)

    # -- time passes ------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Move the frontier to ``now_ms``: offer due messages, run timeouts and retries."""
        self.quota_watch.advance(now_ms)
        self.offer_due(now_ms)
        for any_kind in self.subscriptions():
            any_kind.advance(now_ms)

    def frontier_ms(self, now_ms: int) -> int:
        """Return the time up to which messages have been offered, at least ``now_ms``.

        It is later than now if the clock was set back. The wheel has no keys before it. So a
        subscription that is behind must read the index up to this time.
        """
        return now_ms if self._coming is None else max(now_ms, self._coming.frontier_ms)

    def next_wake_ms(self, now_ms: int) -> int | None:
        """Return when to call ``advance``, check a quota or read a window next; None for never."""
        if not (self.shared or self.ordered or self.checks_quota):
            return None
        wakes = [subscription.next_wake_ms() for subscription in self.subscriptions()]
        if self.checks_quota:
            wakes.append(self.quota_watch.next_wake_ms(self.has_grown))
        if self._coming is not None:
            wakes.append(self._coming.next_wake_ms())
        first_ms = lowest(wakes)
        return None if first_ms is None else max(first_ms, now_ms)

    @property
    def checks_quota(self) -> bool:
        """Whether the topic must be checked against a quota when it has grown."""
        return self.quota.drops or self.total_quota.drops

    @property
    def has_grown(self) -> bool:
        """Whether more messages may be pending or droppable than at the last quota check."""
        return self.quota_watch.grown or any(one.gave_back for one in self.subscriptions())

    def looked_at(self) -> None:
        """Reset ``has_grown``, because the topic is being checked against its quota."""
        self.quota_watch.grown = False
        for subscription in self.subscriptions():
            subscription.gave_back = False

    def rewind(self, now_ms: int) -> None:
        """Handle a wall clock that was set back.

        If it is now more than a tick behind the frontier, start with a new wheel, and let
        subscriptions give back messages that are not due any more.
        """
        self.quota_watch.rewind()
        if self._coming is not None and not self._coming.rewind(now_ms):
            return
        for subscription in self.subscriptions():
            subscription.rewind(now_ms)

    def set_policy(self, policy: TopicPolicy) -> None:
        """Apply a changed policy of the topic from now on."""
        self.policy = policy
        self._obey()

    def _obey(self) -> None:
        """Apply the policies of the topic and its namespace: delays, quotas, pauses and others."""
        self.delays = DelayPolicy.of(self.name, self.policy, self.namespace)
        self.quota = quota_of(self.policy, self.namespace.policy)
        self.total_quota = total_quota_of(self.namespace.policy)
        self.has_quota = self.quota.there or self.total_quota.there
        # The backlog may exceed the new quota.
        self.quota_watch.grown = True
        for subscription in self.subscriptions():
            self._govern(subscription)

    def set_namespace(self, namespace: Namespace, now_ms: int) -> None:
        """Apply the changed settings of the namespace; no due time changes. P4."""
        self.namespace = namespace
        self._obey()
        if self._coming is not None:
            self._coming.granularity_ms = namespace.granularity_ms
            self._set_tick(now_ms)

    def set_subscription_policy(self, name: str, policy: SubscriptionPolicy, now_ms: int) -> None:
        """Apply a changed policy to a subscription from now on, if the topic has it."""
        subscription = self.subscription(name)
        if subscription is not None:
            subscription.set_policy(policy)
            if self._coming is not None:
                self._set_tick(now_ms)

    def _set_tick(self, now_ms: int) -> None:
        """Tell the ``DeliveryWindow`` the tick, and whether a subscription keeps an order."""
        assert self._coming is not None
        exact = any(subscription.keeps_order for subscription in self.shared.values())
        for due in self._coming.set_tick(self.namespace.tick_ms, exact, now_ms):
            self._offer(due)

    # -- windows ----------------------------------------------------------------------

    def wants_window(self, now_ms: int) -> bool:
        """Return whether it is time to plan and read the next window of keys from the index."""
        return self._coming is not None and self._coming.wants_window(now_ms)

    def begin_window(self) -> tuple[DeliveryWindow, KeyPlan]:
        """Plan the next window of keys; the caller must read the plan and call ``end_window``.

        Returns the ``DeliveryWindow`` that the keys are for, and the plan to read.
        """
        assert self._coming is not None
        return self._coming, self._coming.begin_window()

    def end_window(
        self, reader: DeliveryWindow, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None
    ) -> None:
        """Add the keys of a window that has been read.

        Args:
          reader: the ``DeliveryWindow`` that ``begin_window`` returned. The keys are ignored if the
            topic does not have it any more.
        """
        if reader is self._coming:
            for due in reader.end_window(_entries(due_ms, offsets, traits)):
                self._offer(due)

    def is_settling(self, offsets: Int64s) -> bool:
        """Return whether one of these messages has an acknowledgement that is not durable yet."""
        return any(one.acked.undurable.intersects(offsets) for one in self.subscriptions())

    def unacknowledged(self, subscription: Subscription) -> int:
        """Return how many messages a subscription has not acknowledged.

        For an exclusive or failover subscription, messages before its start offset do not count.
        For a shared subscription they count, because only their keys tell which of them are due
        late enough for it to get them.
        """
        return self.next_offset - self._start(subscription) - self.finished(subscription)

    def finished(self, subscription: Subscription) -> int:
        """Return how many messages a subscription has acknowledged, or were cancelled for it.

        The same messages count as for ``unacknowledged``.
        """
        start = self._start(subscription)
        done: OffsetSet = subscription.acked
        cancelled = self.amendments.cancelled
        if len(cancelled):
            done = cancelled.copy()
            done.difference_update(subscription.kept())
            done.union_update(subscription.acked)
        return len(done) - done.count_below(start)

    def _start(self, subscription: Subscription) -> int:
        if not isinstance(subscription, OrderedSubscription):
            return 0
        return min(subscription.record.start_offset, self.next_offset)

    def waiting(self, subscription: Subscription) -> int:
        """Return ``unacknowledged`` without messages that wait to become dead letters."""
        return self.unacknowledged(subscription) - len(subscription.dead)

    # -- statistics -------------------------------------------------------------------------

    @property
    def wheel_count(self) -> int:
        """The number of messages in the timing wheel."""
        return 0 if self._coming is None else len(self._coming)

    def wheel_due_ms(self) -> Int64s:
        """Return the due times of the messages in the timing wheel, in no order. O(messages)."""
        return np.zeros(0, np.int64) if self._coming is None else self._coming.due_ms()


def _entries(due_ms: Int64s, offsets: Int64s, traits: UInt32s | None) -> Entries:
    """Return keys as entries of the timing wheel, with their traits as tags."""
    return Entries(due_ms, offsets, None if traits is None else traits.astype(np.int64))
