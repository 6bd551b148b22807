"""Keys: which consumer gets which, and one message of each in flight at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.keys.key_order import GATHER_MS
from escapement.broker.subscription.keys.key_ranges import KeyRanges, check_range
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.priorities.skipping import STUCK_MS
from escapement.broker.subscription.shared import SharedSubscription
from escapement.errors import Conflict
from escapement.message import UInt32s
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.index import Key
from escapement.traits import HAS_KEY, KeyRange
from support.messages.shared_subscriptions import Outlet, column, scan, subscription

# Slots in both halves of the range; -1 means no key.
SLOTS = st.sampled_from([-1, 0, 1, 2, 40_000, 65_535])
# An ack wait that never ends during a test.
PATIENT_MS = 3_600_000
HALVES: list[KeyRange] = [(0, 32_767), (32_768, 65_535)]


def keyed(*slots: int) -> UInt32s:
    """Return the traits of messages with the default priority."""
    return np.array([0 if slot < 0 else HAS_KEY | slot for slot in slots], np.uint32)


def consumer(id: int, key_range: KeyRange, permits: int = 1000) -> Consumer:
    made = Consumer(id, id, f"c{id}", Outlet(), 0, PATIENT_MS, key_range)
    made.permits = permits
    return made


@dataclass
class Model:
    """A subscription, and a model of its messages."""

    made: SharedSubscription
    order: str
    skip: bool
    now_ms: int = 10_000
    slots: dict[int, int] = field(default_factory=dict)
    due_ms: dict[int, int] = field(default_factory=dict)
    in_flight: dict[int, int] = field(default_factory=dict)  # offset -> id of the consumer
    waiting: dict[int, int] = field(default_factory=dict)  # offset -> end of its back-off
    tried: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    withheld: dict[int, int] = field(default_factory=dict)  # id of a consumer -> permits

    def group(self, offset: int) -> Any:
        """Return a value of which one message may be in flight; it is unique without a key."""
        if self.order == "topic":
            return "topic"
        return self.slots[offset] if self.slots[offset] >= 0 else -2 - offset

    def holders(self) -> list[Any]:
        """Return the groups that a message holds."""
        held = [*self.in_flight] + ([] if self.skip else [*self.waiting])
        return [self.group(offset) for offset in held]

    def publish(self, slots: list[int]) -> None:
        self.now_ms += 5
        offsets = list(range(len(self.slots), len(self.slots) + len(slots)))
        self.slots |= dict(zip(offsets, slots, strict=True))
        self.due_ms |= dict.fromkeys(offsets, self.now_ms)
        traits = keyed(*slots)
        self.made.offer(
            np.full(len(slots), self.now_ms), column(*offsets), traits if traits.any() else None
        )

    def read(self) -> None:
        while bands := self.made.to_scan(self.now_ms):
            (band,) = bands
            assert band.mark is not None
            found = [o for o, due in self.due_ms.items() if Key(due, o) >= band.mark]
            traits = keyed(*[self.slots[offset] for offset in found])
            band.begin_scan(Key(self.now_ms + 1, 0), True)
            self.made.end_scan(
                [band],
                column(*[self.due_ms[offset] for offset in found]),
                column(*found),
                traits if traits.any() else None,
            )

    def deliver(self) -> int:
        """Deliver all messages that may be delivered now. Return their number."""
        self.read()
        count = 0
        while hands := self.made.assign(self.now_ms, 3):
            for hand in hands:
                for offset in hand.rows.offsets.tolist():
                    count += 1
                    self.check(offset, hand.consumer)
                    self.in_flight[offset] = hand.consumer.id
                    self.tried.add(offset)
            for part in (self.made._order, self.made._skipping):
                if part is not None:
                    part._check()
        return count

    def check(self, offset: int, to: Consumer) -> None:
        assert offset not in self.in_flight
        assert offset not in self.waiting
        assert offset not in self.done
        slot = self.slots[offset]
        if slot >= 0 and isinstance(to.key_range, tuple):
            assert to.key_range[0] <= slot <= to.key_range[1]
        if self.order == "any":
            return
        assert self.group(offset) not in self.holders(), "two messages of a key are in flight"
        for other in self.slots:
            if self.group(other) == self.group(offset) and self.due_ms[other] < self.due_ms[offset]:
                skipped = self.skip and other in self.waiting
                assert other in self.done or skipped or not self.has_consumer(other)

    def has_consumer(self, offset: int) -> bool:
        """Whether a consumer gets this message; a message outside all ranges delays no other."""
        slot = self.slots[offset]
        ranges = [one.key_range for one in self.made.consumers]
        return slot < 0 or any(
            not isinstance(one, tuple) or one[0] <= slot <= one[1] for one in ranges
        )

    def settle(self, pick: int, how: str) -> None:
        if not self.in_flight:
            return
        offset = sorted(self.in_flight)[pick % len(self.in_flight)]
        (holder,) = [one for one in self.made.consumers if one.id == self.in_flight[offset]]
        del self.in_flight[offset]
        holder.permits += 1
        if how in ("ack", "gone"):  # by a consumer, or without one
            at_ms = self.now_ms if how == "ack" else None
            self.made.acknowledge(column(offset), None, at_ms=at_ms)
            self.done.add(offset)
        else:
            delay_ms = 0 if how == "nack" else 500
            self.made.negative_acknowledge(holder, column(offset), delay_ms, self.now_ms)
            if delay_ms:
                self.waiting[offset] = self.now_ms + delay_ms

    def cancel(self, pick: int) -> None:
        """Cancel like the topic does: a message that was delivered once is not withdrawn."""
        offsets = sorted(set(self.slots) - self.done)
        if not offsets:
            return
        offset = offsets[pick % len(offsets)]
        (handed,) = self.made.was_handed(column(offset)).tolist()
        assert handed == (offset in self.tried)
        if not handed:
            self.made.withdraw(column(offset))
            self.done.add(offset)
        cancelled = self.made._amendments.cancelled
        cancelled.take(cancelled.new_of(column(offset)))

    def expire(self, ttl_ms: int) -> None:
        """Set a time to live for a moment: only older messages in ready expire."""
        self.made.expiry.set_ttl(ttl_ms)
        assert self.made.expiry.advance(self.now_ms)
        self.made.sweep(self.now_ms)
        self.made.expiry.set_ttl(0)
        over = {o for o in self.slots if self.made.acked.contains(column(o))[0]} - self.done
        for offset in over:
            assert self.due_ms[offset] <= self.now_ms - ttl_ms
            assert offset not in self.in_flight
            assert offset not in self.waiting
        self.done |= over

    def set_order(self, order: str) -> None:
        """Set another order while messages are in flight."""
        self.order = order
        policy = SubscriptionPolicy(order=order, on_retry="skip" if self.skip else "hold")
        self.made.set_policy(policy)

    def sleep(self, ms: int) -> None:
        self.now_ms += ms
        self.made.advance(self.now_ms)
        self.waiting = {o: at for o, at in self.waiting.items() if at > self.now_ms - 10}

    def limit_permits(self, id: int, permits: int) -> None:
        """Leave a consumer only these permits, until they are restored."""
        for one in self.made.consumers:
            if one.id == id:
                self.withheld[id] = self.withheld.get(id, 0) + one.permits - permits
                one.permits = permits

    def restore_permits(self) -> None:
        """Give all consumers their withheld permits back."""
        for one in self.made.consumers:
            one.permits += self.withheld.pop(one.id, 0)

    def has_room(self, offset: int) -> bool:
        """Whether a consumer of this message has permits."""
        slot = self.slots[offset]
        there = self.made.consumers
        ranges = [one.key_range for one in there if isinstance(one.key_range, tuple)]
        owned = any(low <= slot <= high for low, high in ranges)
        return any(
            one.permits > 0
            and (
                slot < 0
                or (
                    isinstance(one.key_range, tuple)
                    and one.key_range[0] <= slot <= one.key_range[1]
                )
                or (one.key_range is None and not owned)
            )
            for one in there
        )

    def join_or_leave(self, id: int, wanted: KeyRange) -> None:
        """Let a consumer join, or leave if it is there."""
        there = [one for one in self.made.consumers if one.id == id]
        for one in there:
            self.made.leave(one, self.now_ms)
            self.in_flight = {offset: who for offset, who in self.in_flight.items() if who != id}
            self.withheld.pop(id, None)
        if not there:
            self.made.join(consumer(id, wanted))


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


def test_ranges_may_touch_but_not_overlap() -> None:
    """V16."""
    there = [consumer(1, (100, 200)), consumer(2, None), consumer(3, "auto")]
    for wanted in ((0, 99), (201, 65_535), "auto", None):
        check_range(there, wanted)
    for wanted in ((0, 100), (200, 200), (150, 160), (0, 65_535)):
        with pytest.raises(Conflict, match="overlaps with 100-200, which c1 has"):
            check_range(there, wanted)


def test_slots_outside_exact_ranges_are_divided_equally() -> None:
    """V16."""
    there = [consumer(1, "auto"), consumer(2, (0, 5535)), consumer(3, "auto")]
    ranges = KeyRanges(there)
    slots = np.arange(65_536)
    rows = Rows.fresh(slots, slots, keyed(*slots.tolist()))
    assert ranges.wanted(rows).all()
    dealt = dict(ranges.deal(rows, slots, there, [10**6] * 3, 10**6))
    assert [len(dealt[position]) for position in range(3)] == [30_000, 5_536, 30_000]
    assert np.array_equal(np.sort(np.concatenate([*dealt.values()])), slots)


def test_key_outside_all_ranges_goes_to_a_consumer_without_a_range() -> None:
    """V16: without such a consumer it waits, and does not fill ready."""
    made = subscription(ready_messages=4)
    made.leave(made.consumers[0], 0)
    model = Model(made, "any", False)
    model.join_or_leave(2, HALVES[0])
    model.publish([40_000] * 50 + [1, -1])
    assert model.deliver() == 2
    assert made.ready_count == 0
    model.join_or_leave(3, None)
    while model.deliver():
        pass
    assert sorted(model.in_flight) == list(range(52))
    assert {model.in_flight[offset] for offset in range(50)} == {3}


def test_consumer_without_permits_delays_other_ranges_only_briefly() -> None:
    """V16: its messages stay in the index, and are delivered in order once it has permits."""
    made = subscription(ready_messages=40)
    made.leave(made.consumers[0], 0)
    model = Model(made, "any", False)
    model.join_or_leave(2, HALVES[0])
    model.join_or_leave(3, HALVES[1])
    model.limit_permits(2, 0)
    for _ in range(30):
        model.publish([0, 1, 2, 3, 4])
    model.publish([40_000] * 20)
    assert model.deliver() == 0
    model.sleep(STUCK_MS - 1)
    assert model.deliver() == 0
    wake_ms = made.next_wake_ms()
    assert wake_ms is not None
    assert wake_ms <= model.now_ms + 10
    model.sleep(1)
    assert model.deliver() == 20
    for _ in range(20):
        model.publish([5, 6, 7, 8] * 20 + [40_000])
        assert model.deliver() == 1, "and from then on without a wait"
    assert made.ready_count <= 40
    model.restore_permits()
    order: list[int] = []
    while len(model.done) < len(model.slots):
        before = {*model.in_flight}
        if not model.deliver() and not model.in_flight:
            model.sleep(STUCK_MS)
        order += sorted({*model.in_flight} - before)
        while model.in_flight:
            model.settle(0, "ack")
    own = [offset for offset, slot in model.slots.items() if slot < 40_000]
    assert order == own


def test_consumer_with_few_permits_delays_other_ranges_only_briefly() -> None:
    """V16: ready always has messages of that consumer, and some are always delivered."""
    made = subscription(ready_messages=40)
    made.leave(made.consumers[0], 0)
    model = Model(made, "any", False)
    model.join_or_leave(2, HALVES[0])
    model.join_or_leave(3, HALVES[1])
    model.limit_permits(2, 1)
    model.publish([0, 1, 2, 3, 4] * 60)
    model.publish([40_000] * 20)
    for _ in range(8):
        model.sleep(STUCK_MS // 4)
        model.deliver()
        for offset in [offset for offset, whose in model.in_flight.items() if whose == 2]:
            model.settle(sorted(model.in_flight).index(offset), "ack")
    assert [model.slots[offset] for offset in model.in_flight if model.in_flight[offset] == 3] == [
        40_000
    ] * 20


def test_skipped_messages_of_a_departed_consumer_go_to_another() -> None:
    """V16: a consumer leaves, and its keys get another consumer later."""
    made = subscription(ready_messages=8)
    made.leave(made.consumers[0], 0)
    model = Model(made, "any", False)
    model.join_or_leave(2, HALVES[0])
    model.join_or_leave(3, HALVES[1])
    model.limit_permits(2, 0)
    model.publish([0] * 30 + [40_000])
    model.deliver()
    model.sleep(STUCK_MS)
    assert model.deliver() == 1
    model.join_or_leave(2, HALVES[0])
    model.publish([1])
    assert model.deliver() == 0, "no consumer has their keys"
    model.join_or_leave(4, None)
    while model.deliver():
        pass
    assert sorted(model.in_flight) == list(range(32))


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.lists(SLOTS, min_size=1, max_size=20)),
            st.tuples(st.just("limit_permits"), st.integers(2, 3), st.integers(0, 2)),
            st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from(["ack", "nack"])),
            st.tuples(st.just("sleep"), st.sampled_from([10, 1000])),
            st.tuples(st.just("join_or_leave"), st.integers(2, 3)),
        ),
        max_size=30,
    ),
    st.sampled_from([("auto", "auto"), tuple(HALVES), ((0, 1), None), (None, (0, 1))]),
    st.sampled_from([4, 20]),
)
def test_consumer_with_permits_gets_its_messages_while_another_has_none(
    actions: list[tuple[Any, ...]], ranges: tuple[KeyRange, KeyRange], ready_messages: int
) -> None:
    """V16: after a short wait for each time that ready is full."""
    made = subscription(ready_messages)
    model = Model(made, "any", False)
    made.leave(made.consumers[0], model.now_ms)
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
    model.limit_permits(2, 0)
    for _ in range(2 + 4 * len(model.slots) // ready_messages):
        model.deliver()
        while own := [offset for offset, whose in model.in_flight.items() if whose == 3]:
            model.settle(sorted(model.in_flight).index(own[0]), "ack")
            model.deliver()
        model.sleep(STUCK_MS)
    assert not [
        o for o in model.slots if o not in model.done | model.in_flight.keys() and model.has_room(o)
    ]


def test_redelivered_messages_outside_all_ranges_do_not_fill_ready() -> None:
    """V16: a consumer leaves with more messages than ready holds, and others continue."""
    made = subscription(ready_messages=8)
    made.leave(made.consumers[0], 0)
    model = Model(made, "any", False)
    model.join_or_leave(2, HALVES[0])
    model.join_or_leave(3, HALVES[1])
    model.publish([1] * 40)
    while model.deliver():
        pass
    assert len(model.in_flight) == 40
    model.join_or_leave(2, HALVES[0])
    model.publish([40_000] * 20)
    while model.deliver():
        pass
    assert sorted(model.in_flight) == list(range(40, 60))
    model.join_or_leave(2, HALVES[0])
    while model.deliver():
        pass
    assert sorted(model.in_flight) == list(range(60))


def test_topic_order_is_kept_when_a_range_gets_a_consumer() -> None:
    """Q9: its messages come before those of another range that are ready already."""
    made = subscription(ready_messages=4)
    made.leave(made.consumers[0], 0)
    model = Model(made, "topic", False)
    model.set_order("topic")
    model.join_or_leave(3, HALVES[1])
    model.publish([-1, 0])
    model.publish([-1, -1, -1])
    assert model.deliver() == 1
    model.join_or_leave(2, HALVES[0])
    for _ in range(5):
        model.settle(0, "ack")
        model.deliver()
    assert model.done == set(range(5))


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


def test_many_messages_of_busy_keys_delay_other_keys_only_briefly() -> None:
    """V16: ready is repeatedly full of busy keys, and the scan continues after them."""
    made = subscription(ready_messages=40)
    model = Model(made, "any", False)
    model.set_order("key")
    for _ in range(30):
        model.publish([0, 1, 2] * 5)
    model.publish([7])
    model.publish([0, 7, -1])
    assert model.deliver() == 3
    model.sleep(STUCK_MS - 1)
    assert model.deliver() == 0
    wake_ms = made.next_wake_ms()
    assert wake_ms is not None
    assert wake_ms <= model.now_ms + 10
    model.sleep(1)
    assert model.deliver() == 2, "one message of another key, and one without a key"
    assert sorted(model.slots[offset] for offset in model.in_flight) == [-1, 0, 1, 2, 7]
    assert made.ready_count <= 40
    # Skipped messages are delivered in order, after the other messages of their key.
    rounds = 0
    while len(model.done) < len(model.slots):
        rounds += 1
        while model.in_flight:
            model.settle(0, "ack")
        if not model.deliver():
            model.sleep(STUCK_MS)
    assert rounds < 600


def test_freed_skipped_key_waits_a_moment_for_other_skipped_keys() -> None:
    """V16: the scan restarts for many freed keys at once, and for a single one after a moment."""
    made = subscription(ready_messages=8)
    model = Model(made, "any", False)
    model.set_order("key")
    for _ in range(8):
        model.publish([*range(8)])
    assert model.deliver() == 8
    assert model.deliver() == 0
    model.sleep(STUCK_MS)
    assert model.deliver() == 0
    assert made.ready_count == 0, "ready keeps no message of a busy key"
    model.settle(0, "ack")
    assert model.deliver() == 0
    model.sleep(STUCK_MS - 1)
    assert model.deliver() == 0
    model.sleep(1)
    assert model.deliver() == 1
    # All messages of that key fill ready, so the others may wait for another moment.
    for _ in range(3):
        model.settle(0, "ack")
    handed = model.deliver()
    model.sleep(STUCK_MS)
    assert handed + model.deliver() == 3


def test_subscription_with_full_ready_wakes_to_skip_busy_keys() -> None:
    """Invariant 4: nothing else may ever happen in this topic, so it must wake itself."""
    made = subscription(ready_messages=10)
    model = Model(made, "any", False)
    model.set_order("key")
    model.publish([0] * 30 + [1])
    assert model.deliver() == 1
    for _ in range(3):
        wake_ms = made.next_wake_ms()
        assert wake_ms is not None
        model.now_ms = max(model.now_ms, wake_ms)
        made.advance(model.now_ms)
        if model.deliver():
            break
    assert {model.slots[offset] for offset in model.in_flight} == {0, 1}


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
