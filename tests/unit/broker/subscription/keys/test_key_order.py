"""The order by key: one message of each key is in flight at a time, until it is acknowledged."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.broker.subscription.keys.key_order import GATHER_MS, KeyOrder
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.priorities.skipping import STUCK_MS
from escapement.message import Int64s
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.index import Key
from escapement.storage.offsets import OffsetSet
from escapement.traits import HAS_KEY, KeyRange
from support.messages.keyed_subscriptions import HALVES, SLOTS, Model, keyed
from support.messages.shared_subscriptions import column, scan, subscription

DUE_MS: Final = 1_000


def rows_of(*offsets: int) -> Rows:
    """Return rows that each have a key of their own, except offset 0."""
    column = np.array(offsets, np.int64)
    traits = np.where(column > 0, HAS_KEY | column, 0).astype(np.uint32)
    return Rows.fresh(np.full(len(column), DUE_MS), column, traits)


class AllInFlight:
    """An order whose messages are all in flight, and the offsets that it holds."""

    def __init__(self, *offsets: int) -> None:
        self.order = KeyOrder(False, 0)
        self.held = OffsetSet()
        self.push(*offsets)
        rows, indexes = self.order.queues.open(self.order.table.busy, len(offsets), all_heads=False)
        self.order.deliver(rows, indexes)
        self._rows = rows

    def push(self, *offsets: int) -> None:
        """Add these messages to the queues."""
        rows = rows_of(*offsets)
        self.held.add(rows.offsets)
        self.order.push(rows)
        self.order.settle(self.held)

    def acknowledge(self, *offsets: int) -> None:
        """Acknowledge these messages."""
        self.order.done(self._rows.pick(np.isin(self._rows.offsets, offsets)))
        self.held.discard(np.array(offsets, np.int64))
        self.order.settle(self.held)
        self.order._check()

    @property
    def busy(self) -> Int64s:
        """The messages that hold their keys."""
        return np.sort(self.order.table.holders[self.order.table.busy])


@pytest.mark.parametrize("others", [0, 1, 3, 100])
def test_key_is_freed_after_it_moved_in_the_table(others: int) -> None:
    """V6: other keys have been added at the indexes of keys that were no longer needed."""
    taken = AllInFlight(0, 1, 2, 3)
    assert taken.busy.tolist() == [1, 2, 3], "a message without a key holds none"
    taken.acknowledge(0, 1)
    assert taken.busy.tolist() == [2, 3]
    taken.push(*range(10, 10 + others))
    taken.acknowledge(3)
    assert taken.busy.tolist() == [2]
    taken.acknowledge(2)
    assert not len(taken.busy)


def test_key_is_freed_in_the_table_of_the_current_order() -> None:
    """A message delivered under an earlier order frees its key in the current one."""
    taken, other = AllInFlight(1, 2, 3), AllInFlight(3, 2, 1)
    taken.order = other.order
    taken.acknowledge(1)
    assert other.busy.tolist() == [2, 3]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(SLOTS, min_size=1, max_size=5)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from(["ack", "nack", "later"])),
        st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from(["ack", "gone"])),
        st.tuples(st.just("sleep"), st.sampled_from([10, 1000])),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("expire"), st.sampled_from([1, 100, 2000])),
        st.tuples(st.just("set_order"), st.sampled_from(["any", "key", "topic"])),
        st.tuples(st.just("join_or_leave"), st.integers(2, 3)),
        st.tuples(st.just("limit_permits"), st.integers(2, 3), st.integers(0, 2)),
        st.tuples(st.just("deliver")),
    ),
    max_size=30,
)


@settings(max_examples=300)
@given(
    steps,
    st.sampled_from(["any", "key", "topic"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([4, 1000]),
)
def test_one_message_of_each_key_is_in_flight_in_due_order_until_all_are_done(
    actions: list[tuple[Any, ...]],
    order: str,
    skip: bool,
    ranged: bool,
    auto: bool,
    ready_messages: int,
) -> None:
    """V16, Q9: also if consumers join and leave, and if ready is small."""
    made = subscription(ready_messages)
    model = Model(made, order, skip)
    model.set_order(order)
    made.leave(made.consumers[0], model.now_ms)
    ranges: list[KeyRange] = ["auto", "auto"] if auto else HALVES if ranged else [None, None]
    for action in actions:
        match action:
            case ("join_or_leave", id):
                model.join_or_leave(id, ranges[id - 2])
            case (name, *arguments):
                getattr(model, name)(*arguments)
        model.deliver()
    for id in (2, 3):
        if not any(one.id == id for one in made.consumers):
            model.join_or_leave(id, ranges[id - 2])
    model.restore_permits()
    model.sleep(1000)
    for _ in range(20):
        while model.deliver() or model.in_flight:
            model.settle(0, "ack")
        model.sleep(STUCK_MS)
    assert model.done == set(model.slots)


def test_order_set_later_counts_messages_in_flight_and_in_back_off() -> None:
    """Q9: the policy is changed while messages are in flight and in back-off."""
    made = subscription(100)
    model = Model(made, "any", False)
    model.publish([1, 1, 2, 2, -1, -1])
    assert model.deliver() == 6
    model.settle(0, "later")
    made.set_policy(SubscriptionPolicy(order="key"))
    model.order = "key"
    model.publish([1, 2, 3, 3, -1])
    assert model.deliver() == 2
    made.set_policy(SubscriptionPolicy())
    model.order = "any"
    assert model.deliver() == 3


def test_messages_in_flight_before_an_order_hold_their_key_until_all_are_done() -> None:
    """Q9: also if they are negatively acknowledged and wait for a retry."""
    made = subscription(100)
    model = Model(made, "any", False)
    model.publish([1, 1, 1])
    assert model.deliver() == 3
    model.set_order("key")
    model.publish([1])
    for offset in (1, 2):
        made.negative_acknowledge(made.consumers[0], column(offset), 1000, model.now_ms)
        assert made._order is not None
        made._order._check()
    made.acknowledge(column(0, 1), None)
    assert made.assign(model.now_ms, 10) == []
    made.acknowledge(column(2), None)
    (hand,) = made.assign(model.now_ms, 10)
    assert hand.rows.offsets.tolist() == [3]


def test_keys_that_share_a_slot_do_not_wait_for_each_other() -> None:
    """Q9: key hashes have 23 bits, slots only 16."""
    made = subscription(100)
    made.set_policy(SubscriptionPolicy(order="key"))
    traits = keyed(7, 7, 7) | np.array([0, 1 << 17, 0], np.uint32)
    scan(made, {}, 1_000)
    made.offer(np.full(3, 1_000), column(0, 1, 2), traits)
    (hand,) = made.assign(1_000, 10)
    assert hand.rows.offsets.tolist() == [0, 1]
    made.acknowledge(column(0), None)
    (hand,) = made.assign(1_000, 10)
    assert hand.rows.offsets.tolist() == [2]


def test_freed_keys_are_gathered_for_a_moment_with_many_in_flight() -> None:
    """V16: many small acknowledgements lead to few frames."""
    made = subscription(ready_messages=100_000)
    made.set_policy(SubscriptionPolicy(order="key"))
    made.consumers[0].permits = 1_000_000
    scan(made, {}, 1_000)
    slots = np.tile(np.arange(4000), 2)
    traits = keyed(*slots.tolist())
    for part in np.split(np.arange(8000), 4):
        made.offer(np.full(2000, 1_000), part, traits[part])
    (hand,) = made.assign(1_000, 4096)
    assert hand.rows.offsets.tolist() == list(range(4000))
    made.acknowledge(np.arange(10), None)
    assert made.assign(1_000, 4096) == []
    assert made.next_wake_ms() == 1_000 + GATHER_MS
    made.acknowledge(np.arange(10, 1010), None)
    (hand,) = made.assign(1_002, 4096)
    assert hand.rows.offsets.tolist() == [*range(4000, 5010)], "enough keys are free"
    made.acknowledge(np.arange(1010, 1020), None)
    assert made.assign(1_003, 4096) == []
    assert made.advance(1_003 + GATHER_MS)
    (hand,) = made.assign(1_003 + GATHER_MS, 4096)
    assert hand.rows.height == 10


def test_few_messages_are_gathered_for_a_moment_during_a_scan() -> None:
    """V16: a backlog that is being read is not delivered in small frames, and waits briefly."""
    made = subscription(ready_messages=100_000)
    made.set_policy(SubscriptionPolicy(order="key"))
    made.consumers[0].permits = 1_000_000
    scan(made, {}, 1_000)
    made.offer(np.full(50, 1_000), np.arange(50), keyed(*range(50)))
    made.fall_behind(Key(1_000, 0))
    (band,) = made.to_scan(1_000)
    band.begin_scan(Key(1_001, 0), True)
    assert made.assign(1_000, 4096) == []
    assert made.next_wake_ms() == 1_000 + GATHER_MS
    assert made.advance(1_000 + GATHER_MS)
    (hand,) = made.assign(1_000 + GATHER_MS, 4096)
    assert hand.rows.height == 50
    made.end_scan([band], np.full(9, 1_000), np.arange(50, 59), keyed(*range(50, 59)))
    (hand,) = made.assign(1_001 + GATHER_MS, 4096)
    assert hand.rows.height == 9, "the scan has ended"


def test_leaving_consumer_ends_the_wake_ups_of_an_order() -> None:
    """A wake-up time in the past would wake the subscription without end."""
    made = subscription(ready_messages=3000)
    made.set_policy(SubscriptionPolicy(order="key"))
    made.consumers[0].permits = 1_000_000
    scan(made, {}, 1_000)
    traits = keyed(*np.tile(np.arange(3000), 2).tolist())
    for part in np.split(np.arange(6000), 3):
        made.offer(np.full(2000, 1_000), part, traits[part])
    (hand,) = made.assign(1_000, 4096)
    assert hand.rows.height == 3000
    (band,) = made.to_scan(1_000)
    band.begin_scan(Key(1_001, 0), True)
    slots = keyed(*range(3000))
    made.end_scan([band], np.full(3000, 1_000), np.arange(3000, 6000), slots)
    made.fall_behind(Key(1_000, 0))
    made.acknowledge(np.arange(10), None)
    assert made.assign(1_000, 4096) == []
    made.leave(made.consumers[0], 1_001)
    late_ms = 1_000 + STUCK_MS + GATHER_MS
    assert made.advance(late_ms)
    assert made.assign(late_ms, 4096) == []
    wake_ms = made.next_wake_ms()
    assert wake_ms is None or wake_ms > late_ms


def test_least_busy_consumer_gets_the_next_message_in_key_order_too() -> None:
    """Q4: for messages that several consumers may get; a range goes to its owner."""
    made = subscription(1000)
    made.set_policy(SubscriptionPolicy(order="key", dispatch="least_busy"))
    model = Model(made, "key", False)
    made.leave(made.consumers[0], model.now_ms)
    model.join_or_leave(2, None)
    model.publish([0, 1, 2])
    assert model.deliver() == 3
    model.join_or_leave(3, None)
    model.publish([3, 4, -1])
    assert model.deliver() == 3
    assert sorted(model.in_flight.values()) == [2] * 3 + [3] * 3
