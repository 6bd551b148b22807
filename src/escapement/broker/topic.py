"""A topic: its wheel, its horizon, its subscriptions; the synchronous heart.

Where a message is, seen from here::

    accept ─► index ─┬─ due now ─────────────────────────────► offered to subscriptions
                     ├─ below the horizon ─► wheel ─ advance ─►      "
                     └─ beyond it ─ window ─► wheel ─ advance ─►     "

*Horizon*: a key of the delivery order. Below it the wheel knows every message that is
not yet due; beyond it only the index does. It ends at a partition's end, or earlier
where the wheels of all topics would hold more than their budget. A window is planned in one
synchronous step (horizon and pinned sources together), and read by the broker, in a
thread where it touches the disk. If the clock gets past the horizon first, every
subscription's read mark is lowered to it, so nothing is lost and nothing waits.

A topic without a shared subscription has neither wheel nor horizon: it costs nothing.

No I/O, no clock, no task. All methods are synchronous; time arrives as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from escapement.broker.amendments import Amendments
from escapement.broker.amount import Amount, quota_of, total_quota_of
from escapement.broker.budget import WindowBudget
from escapement.broker.deadletter import KEEPER
from escapement.broker.dedup import DedupKeys
from escapement.broker.groups import Groups
from escapement.broker.ordered import OrderedSubscription
from escapement.broker.producer import Producer
from escapement.broker.publishrate import PublishRate
from escapement.broker.shared import SharedSubscription
from escapement.broker.sizes import Sizes
from escapement.broker.subscription import Subscription
from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.names import TopicName
from escapement.storage.catalog import Namespace
from escapement.storage.group import Moved, Restated
from escapement.storage.index import KEY_MIN, DelayedIndex, Key, Plan
from escapement.storage.policy import TopicPolicy
from escapement.timewheel import Entries, TimingWheel
from escapement.traits import traits_of

# The next window is read this long before its partition begins, or half a partition if
# that is shorter: reading a window of 2 million keys takes less than a second.
WINDOW_LEAD_MS: Final = 5_000
_NEVER_MS: Final = 1 << 62


class Topic:
    """Runtime state of one topic; see the module's docstring."""

    __slots__ = (
        "_budget",
        "_counted",
        "_frontier_ms",
        "_horizon",
        "_index",
        "_index_next_ms",
        "_last_restatement",
        "_loading",
        "_wheel",
        "accepted_since_ms",
        "amendments",
        "backlog",
        "dedup",
        "deleting",
        "groups",
        "grown",
        "id",
        "name",
        "namespace",
        "next_offset",
        "ordered",
        "policy",
        "producers",
        "publish_rate",
        "published",
        "quota",
        "rests_until_ms",
        "shared",
        "sizes",
        "subscribing",
        "total_quota",
    )

    def __init__(
        self,
        id: int,
        name: TopicName,
        namespace: Namespace,
        policy: TopicPolicy,
        next_offset: int,
        index: DelayedIndex,
        budget: WindowBudget,
        dedup: DedupKeys,
    ) -> None:
        self.id = id
        self.name = name
        self.namespace = namespace
        self.policy = policy
        self.next_offset = next_offset
        self.shared: dict[str, SharedSubscription] = {}
        self.ordered: dict[str, OrderedSubscription] = {}
        self.producers: dict[str, Producer] = {}
        self.amendments = Amendments()
        self.groups = Groups()
        self._last_restatement: int | None = None
        self.sizes = Sizes()
        self.publish_rate = PublishRate()
        self.dedup = dedup
        self.backlog: tuple[int, Amount] | None = None  # when it was last counted, and what waits
        self.rests_until_ms = 0  # before that it is not looked at again for its quota
        self._set_quota()
        self.published = 0  # messages since this broker serves the topic
        self.deleting = False  # nothing more is taken
        self.subscribing = 0  # subscriptions being made durable: nothing may be forgotten
        self.accepted_since_ms = _NEVER_MS  # the earliest due time accepted meanwhile
        self._index = index
        self._budget = budget
        self._counted = 0  # keys of our wheel that the budget knows of
        self._wheel: TimingWheel | None = None
        self._frontier_ms = 0
        self._horizon = KEY_MIN
        self._index_next_ms: int | None = None  # no entry at or past the horizon is due earlier
        self._loading: TimingWheel | None = None  # the wheel that a window is being read for

    # -- subscriptions ------------------------------------------------------------

    def subscriptions(self) -> Iterable[Subscription]:
        """All of them."""
        yield from self.shared.values()
        yield from self.ordered.values()

    def consumed(self) -> Iterable[Subscription]:
        """Those whose backlog may expire and is bounded: all but the keeper of dead letters.

        What failed elsewhere stays until somebody has looked at it.
        """
        return (one for one in self.subscriptions() if one.record.name != KEEPER)

    def subscription(self, name: str) -> Subscription | None:
        """The one of this name."""
        return self.shared.get(name) or self.ordered.get(name)

    def add_shared(self, subscription: SharedSubscription, now_ms: int) -> None:
        """Serve a shared subscription; its mark says what of the past it still wants."""
        if self._wheel is None:
            self._wheel = TimingWheel(self.namespace.tick_ms, now_ms)
            self._frontier_ms = now_ms
            self._set_horizon(Key(now_ms + 1, 0))
        self.shared[subscription.record.name] = subscription
        self._introduce(subscription)
        self._govern(subscription)

    def _introduce(self, subscription: SharedSubscription) -> None:
        """Tell it of what is in the index that it would otherwise come upon late."""
        if self._index.has_priorities(self.id):
            subscription.expect_priorities()

    def begin_subscribing(self) -> None:
        """A subscription is being made durable; ``subscribing`` is lowered when it is."""
        if not self.subscribing:
            self.accepted_since_ms = _NEVER_MS
        self.subscribing += 1

    def add_ordered(self, subscription: OrderedSubscription) -> None:
        """Serve an exclusive or failover subscription."""
        self.ordered[subscription.record.name] = subscription
        self._govern(subscription)

    def _govern(self, subscription: Subscription) -> None:
        subscription.throttle.topic_paused_until_ms = self.policy.paused_until_ms
        if subscription.record.name != KEEPER:
            subscription.expiry.set_ttl(self.policy.ttl_ms or self.namespace.policy.ttl_ms)

    def remove(self, name: str) -> None:
        """Stop serving a subscription."""
        gone = self.subscription(name)
        if gone is not None:
            self.groups.leave(gone.record.id)
        self.ordered.pop(name, None)
        if self.shared.pop(name, None) is not None and not self.shared:
            self._wheel = None
            self._loading = None
            self._horizon = KEY_MIN
            self._index_next_ms = None
            self._count()

    # -- messages arrive ------------------------------------------------------------

    def accept(self, base_offset: int, due_ms: Int64s, batch: MessageBatch, now_ms: int) -> None:
        """Take committed messages: one call for each group."""
        assert base_offset == self.next_offset, "the log has a gap, or went back"
        count = len(due_ms)
        traits = self._append(base_offset, due_ms, batch)
        self.published += count
        self.grown = True
        if self.subscribing:
            self.accepted_since_ms = min(self.accepted_since_ms, int(due_ms.min()))
        for one in self.ordered.values():
            if one.expiry.ttl_ms:
                one.expiry.keeps(int(due_ms.min()))
        if self.shared:
            self.place(due_ms, np.arange(base_offset, base_offset + count), now_ms, traits)

    def place(
        self, due_ms: Int64s, offsets: Int64s, now_ms: int, traits: UInt32s | None = None
    ) -> None:
        """Offer what is due; put what is below the horizon into the wheel."""
        assert self._wheel is not None
        self._reach(now_ms)
        tags = None if traits is None else traits.astype(np.int64)
        arrived = Entries(due_ms, offsets, tags)
        due = due_ms <= now_ms
        if due.all():
            self._offer(_in_order(arrived))
            return
        if due.any():
            self._offer(_in_order(arrived.take(due)))
            arrived = arrived.take(~due)
            due_ms, offsets = arrived.when_ms, arrived.ids
        horizon = self._horizon
        below = (due_ms < horizon.due_ms) | (
            (due_ms == horizon.due_ms) & (offsets < horizon.offset)
        )
        if below.any():
            self._turn_in(self._wheel, arrived.take(below))
            if self._budget.asks_to_shrink(len(self._wheel)):
                self._shrink_window()
        if not below.all():
            next_ms = int(due_ms[~below].min())
            if self._index_next_ms is None or next_ms < self._index_next_ms:
                self._index_next_ms = next_ms

    def _turn_in(self, wheel: TimingWheel, waiting: Entries) -> None:
        """Put keys into our wheel; their traits are its tags."""
        elapsed = wheel.insert(waiting.when_ms, waiting.ids, waiting.tags)
        self._count()
        if elapsed is not None:
            # The wall clock went back a little, and the wheel has seen later.
            self._offer(elapsed)

    def _offer(self, due: Entries) -> None:
        if not len(due):
            return
        self.grown = True
        traits = None if due.tags is None else due.tags.astype(np.uint32)
        for subscription in self.shared.values():
            subscription.offer(due.when_ms, due.ids, traits)

    def _append(self, base_offset: int, due_ms: Int64s, batch: MessageBatch) -> UInt32s | None:
        """Take messages that are new; returns their traits, if any has one."""
        traits = self._index.add(self.id, base_offset, due_ms, batch)
        self.sizes.saw(batch)
        self.next_offset = max(self.next_offset, base_offset + len(due_ms))
        return traits

    def recover(
        self, base_offset: int, due_ms: Int64s, batch: MessageBatch, offsets: Int64s | None = None
    ) -> None:
        """Take messages of the log that the index lacks; subscriptions come to them later.

        Args:
          offsets: of a restatement; ascending. Without, they count up from ``base_offset``.
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
        self._index.add_again(self.id, offsets, due_ms, batch)

    # -- messages move ----------------------------------------------------------------

    def withhold(self, offsets: Int64s, now_ms: int) -> None:
        """These are being moved: no subscription is handed them that was not already."""
        for subscription in self.shared.values():
            self.withdraw_from(subscription, offsets, now_ms)
        self.amendments.withhold(offsets)

    def withdraw_from(self, subscription: Subscription, offsets: Int64s, now_ms: int) -> None:
        """These change for a subscription, but for what it was handed, which it keeps."""
        handed = subscription.was_handed(offsets)
        if handed.any():
            # After a crash it must still get them as they were.
            subscription.keep(offsets[handed], now_ms)
        subscription.withdraw(offsets[~handed])

    def move(self, moved: Moved, batch: MessageBatch, now_ms: int) -> None:
        """What was withheld is stated again, durably; ``batch`` is what it says."""
        order = np.argsort(moved.offsets)
        batch = batch.take(order)
        offsets, due_ms, stale_ms, bases = (column[order] for column in moved)
        traits = self._index.add_again(self.id, offsets, due_ms, batch)
        self.amendments.move(offsets, due_ms, stale_ms, bases)
        for one in self.ordered.values():
            one.due_again(offsets, due_ms)
        self._again(due_ms, offsets, traits, now_ms)

    def release(self, offsets: Int64s, due_ms: Int64s, batch: MessageBatch, now_ms: int) -> None:
        """These were withheld and stay as they were, due at ``due_ms``; offsets ascend."""
        self.amendments.release(offsets)
        self._again(due_ms, offsets, traits_of(batch), now_ms)

    def _again(self, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None, now_ms: int) -> None:
        if self.subscribing:
            self.accepted_since_ms = min(self.accepted_since_ms, int(due_ms.min()))
        if self.shared:
            self.place(due_ms, offsets, now_ms, traits)

    def relocated(self, restated: Restated) -> None:
        """The log states these once more, as they were; their first statement may go."""
        item, due_ms = restated.item, restated.due_ms
        self.amendments.moves.put(item.offsets, due_ms, due_ms, item.base_offset)

    def forget_moves(self, below: int, now_ms: int) -> bool:
        """The log begins at ``below``: of what lies before, only what is live has a time.

        And what has a key that is not yet due, which without its entry would seem to count.
        Returns whether anything was forgotten.
        """
        due_ms, last_ms, offsets = self.amendments.moves.below(below)
        if not len(offsets):
            return False
        over = last_ms <= now_ms
        cancelled = self.amendments.durably_cancelled(offsets)
        if cancelled is not None:
            over |= cancelled
        gone = offsets[over & ~self.live(due_ms, offsets, now_ms)]
        self.amendments.moves.discard(gone)
        return bool(len(gone))

    @property
    def restatements_known(self) -> bool:
        """Whether ``next_restatement`` can be asked for."""
        return self._last_restatement is not None

    def know_restatements(self, lowest: int) -> None:
        """The newest restatement in the log has this key; 0: there is none."""
        if self._last_restatement is None:
            self._last_restatement = lowest

    def next_restatement(self) -> int:
        """A key for a restatement that no other has."""
        assert self._last_restatement is not None
        self._last_restatement -= 1
        return self._last_restatement

    def recovered(self, now_ms: int) -> None:
        """All of the past is in the index now: look for what comes next from here on."""
        if self._wheel is not None:
            self._reach(now_ms)
            self._set_horizon(Key(now_ms + 1, 0))
        for subscription in self.shared.values():
            self._introduce(subscription)

    # -- time passes ------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Move the frontier to ``now_ms``; offers, timeouts and retries follow."""
        if self._wheel is not None:
            if self._index_next_ms is not None and self._index_next_ms <= now_ms:
                # The clock got past the horizon before a window was read.
                for subscription in self.shared.values():
                    subscription.fall_behind(self._horizon)
                self._set_horizon(max(self._horizon, Key(now_ms + 1, 0)))
            self._reach(now_ms)
            expired = self._wheel.advance(max(now_ms, self._wheel.now_ms))
            self._count()
            self._offer(expired)
        for any_kind in self.subscriptions():
            any_kind.advance(now_ms)

    def _reach(self, now_ms: int) -> None:
        """What is due by ``now_ms`` is offered in this step."""
        self._frontier_ms = max(self._frontier_ms, now_ms)

    def frontier_ms(self, now_ms: int) -> int:
        """Up to when messages have been offered, or are now; ahead of a clock that went back.

        Behind it a key is in no wheel: whoever reads on from a mark must come this far.
        """
        return now_ms if self._wheel is None else max(now_ms, self._frontier_ms)

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When ``advance`` or a window has something to do; None for never."""
        wakes = [subscription.next_wake_ms() for subscription in self.subscriptions()]
        if self.grown and (self.quota.drops or self.total_quota.drops):
            wakes.append(self.rests_until_ms)
        if self._wheel is not None:
            wakes.append(self._wheel.next_wake_ms())
            wakes.append(self._index_next_ms)
            if self._loading is None and self._window_fits():
                wakes.append(self._window_at_ms())
        known = [wake for wake in wakes if wake is not None]
        return max(min(known), now_ms) if known else None

    def rewind(self, now_ms: int) -> None:
        """The wall clock went back; behind the frontier by more than a tick, all is rebuilt."""
        if self._wheel is not None:
            if self._frontier_ms - now_ms <= self.namespace.tick_ms:
                return
            self._frontier_ms = now_ms
            self._wheel = TimingWheel(self.namespace.tick_ms, now_ms)
            self._loading = None
            self._count()
            self._set_horizon(Key(now_ms + 1, 0))
        for subscription in self.subscriptions():
            subscription.rewind(now_ms)

    def set_policy(self, policy: TopicPolicy) -> None:
        """Go by another policy from now on."""
        self.policy = policy
        self._set_quota()
        for subscription in self.subscriptions():
            self._govern(subscription)

    def _set_quota(self) -> None:
        self.quota = quota_of(self.policy, self.namespace.policy)
        self.total_quota = total_quota_of(self.namespace.policy)
        self.grown = True  # or something has come, or come due, since it was looked at

    def set_namespace(self, namespace: Namespace, now_ms: int) -> None:
        """Take the namespace's new settings; no message's time moves. P4."""
        self.namespace = namespace
        self._set_quota()
        for subscription in self.subscriptions():
            self._govern(subscription)
        if self._wheel is not None and self._wheel.tick_ms != namespace.tick_ms:
            waiting = self._wheel.drain()
            loading = self._loading is self._wheel
            self._wheel = TimingWheel(namespace.tick_ms, now_ms)
            self._loading = self._wheel if loading else None
            self._turn_in(self._wheel, waiting)

    # -- windows ----------------------------------------------------------------------

    def wants_window(self, now_ms: int) -> bool:
        """Whether the next window should be planned and read now."""
        at_ms = self._window_at_ms()
        return (
            at_ms is not None and at_ms <= now_ms and self._loading is None and self._window_fits()
        )

    def _window_at_ms(self) -> int | None:
        if self._index_next_ms is None or self._wheel is None:
            return None
        granularity = self.namespace.granularity_ms
        begins_ms = self._index_next_ms // granularity * granularity
        return begins_ms - min(WINDOW_LEAD_MS, granularity // 2)

    def _window_fits(self) -> bool:
        return self._wheel is not None and self._budget.allows_window(len(self._wheel))

    def begin_window(self) -> Plan:
        """Move the horizon and pin what lies below it; ``end_window`` must follow."""
        assert self._index_next_ms is not None
        assert self._loading is None, "two windows at once"
        granularity = self.namespace.granularity_ms
        until = Key((self._index_next_ms // granularity + 1) * granularity, 0)
        plan = self._index.plan(
            self.id, self._horizon, max(until, self._horizon), self._budget.window()
        )
        assert plan.files <= self._index.limits.most_segments, "too many files in a partition"
        self._loading = self._wheel
        self._set_horizon(plan.stop)
        return plan

    def end_window(
        self, plan: Plan, due_ms: Int64s, offsets: Int64s, traits: UInt32s | None = None
    ) -> None:
        """Put a window's keys into the wheel they were read for, if it is still turning."""
        del plan
        wheel, self._loading = self._loading, None
        if wheel is None or wheel is not self._wheel or not len(offsets):
            return
        tags = None if traits is None else traits.astype(np.int64)
        self._turn_in(wheel, Entries(due_ms, offsets, tags))

    def _count(self) -> None:
        """Tell the budget how many keys our wheel has now."""
        count = self.wheel_count
        self._budget.used += count - self._counted
        self._counted = count

    def _set_horizon(self, horizon: Key) -> None:
        self._horizon = horizon
        self._index_next_ms = self._index.next_due(self.id, horizon)

    def _shrink_window(self) -> None:
        """Too much was published below the horizon: move it back to what is bounded."""
        assert self._wheel is not None
        if self._loading is not None:
            return
        waiting = self._wheel.entries()
        rank = np.lexsort((waiting.ids, waiting.when_ms))[len(waiting) // 2]
        cut = Key(int(waiting.when_ms[rank]), int(waiting.ids[rank]))
        self._wheel.drop_from(cut.due_ms, cut.offset)
        self._count()
        self._set_horizon(cut)

    # -- what the index must keep ---------------------------------------------------------

    def live(self, due_ms: Int64s, offsets: Int64s, now_ms: int) -> npt.NDArray[np.bool_]:
        """Which messages a checkpoint must write; bool[n].

        What is not yet due, because a subscription may still come, or be sought, that wants
        it, whoever has acknowledged it before its time; what a shared subscription is to
        get and has not durably acknowledged; and everything while a subscription is being
        made that may want what arrives meanwhile. What is durably cancelled, and the stale
        key of what was moved, is live only for a subscription that holds the message.
        """
        if self.subscribing:
            return np.ones(len(offsets), bool)
        gone = self.amendments.gone(due_ms, offsets)
        live = due_ms > now_ms
        if gone is not None:
            live &= ~gone
        for subscription in self.shared.values():
            wanted = subscription.covers(due_ms, offsets)
            if gone is not None:
                wanted &= ~gone | subscription.holds(offsets)
            wanted &= ~subscription.durably_acked(offsets)
            live |= wanted
        return live

    def pending(self, due_ms: Int64s, offsets: Int64s, now_ms: int) -> npt.NDArray[np.bool_]:
        """Which messages are still to be done, for somebody who looks; bool[n].

        What is not yet due and not cancelled, under the key that counts; and what is due and
        a shared subscription is to get, or holds, and has not acknowledged.
        """
        hidden = self.amendments.hidden(due_ms, offsets)
        pending = due_ms > now_ms
        if hidden is not None:
            pending &= ~hidden
        rest = np.flatnonzero(~pending)
        if not len(rest):
            return pending
        due_ms, offsets = due_ms[rest], offsets[rest]
        for subscription in self.shared.values():
            wanted = subscription.covers(due_ms, offsets)
            if hidden is not None:
                wanted &= ~hidden[rest] | subscription.holds(offsets)
            wanted &= ~subscription.acked.contains(offsets)
            pending[rest] |= wanted
        return pending

    def may_keep(self, low: int, high: int, max_due_ms: int, now_ms: int) -> bool:
        """Whether any of ``[low, high)``, due by ``max_due_ms``, may be live; cheap.

        May say so of what is not. O(log n) a subscription.
        """
        if self.subscribing or max_due_ms > now_ms:
            return True
        return any(one.may_want(low, high, max_due_ms) for one in self.shared.values())

    def pins(self, low: int, high: int) -> bool:
        """Whether someone is still to read ``[low, high)`` from the log itself."""
        if self.subscribing:
            return True
        records = (one.record for one in self.shared.values())
        if any(max(low, one.fill_from) < min(high, one.fill_until) for one in records):
            return True
        return any(one.is_to_read(low, high) for one in self.ordered.values())

    def dead(self, low: int, high: int) -> Int64s:
        """The offsets of ``[low, high)`` that everybody has durably acknowledged; sorted.

        What is not named may be wanted; without a shared subscription nothing is named,
        because one may still come.
        """
        if not self.shared or self.subscribing:
            return np.zeros(0, np.int64)
        first = next(iter(self.shared.values()))
        dead = first.acked.to_array(low, high)
        for subscription in self.shared.values():
            if not len(dead):
                break
            done = subscription.durably_acked(dead)
            cancelled = self.amendments.durably_cancelled(dead)
            if cancelled is not None:
                done |= cancelled & ~subscription.holds(dead)
            dead = dead[done]
        return dead

    def outdated(self, low: int, high: int) -> tuple[Int64s, Int64s]:
        """Of ``[low, high)`` what was changed, and when the key of each is due that counts.

        The other keys nobody comes to want. -1: none counts, it was cancelled. What some
        subscription holds, under whichever key, is not named. Offsets ascend; int64[n] each.
        """
        none = np.zeros(0, np.int64)
        if self.subscribing:
            return none, none
        cancelled = self.amendments.cancelled.to_array(low, high)
        moved = self.amendments.moves.between(low, high)
        offsets = np.union1d(cancelled, moved)
        if not len(offsets):
            return none, none
        staying_ms = self.amendments.moves.current(offsets, np.full(len(offsets), -1))
        named = staying_ms >= 0
        gone = self.amendments.durably_cancelled(offsets)
        if gone is not None:
            named |= gone
            staying_ms = np.where(gone, -1, staying_ms)
        for subscription in self.shared.values():
            named &= ~subscription.holds(offsets)
        return offsets[named], staying_ms[named]

    def unacknowledged(self, subscription: Subscription) -> int:
        """How many messages one of its subscriptions is still to be done with."""
        cancelled = self.amendments.cancelled
        if not len(cancelled):
            return self.next_offset - len(subscription.acked)
        done = cancelled.copy()
        done.difference_update(subscription.kept())
        done.union_update(subscription.acked)
        return self.next_offset - len(done)

    # -- figures ----------------------------------------------------------------------------

    @property
    def wheel_count(self) -> int:
        """How many messages the wheel holds."""
        return 0 if self._wheel is None else len(self._wheel)


def _in_order(arrived: Entries) -> Entries:
    """Sorted by due time, then offset; offsets arrive ascending."""
    due_ms = arrived.when_ms
    if (due_ms[1:] >= due_ms[:-1]).all():
        return arrived
    return arrived.take(np.argsort(due_ms, kind="stable"))
