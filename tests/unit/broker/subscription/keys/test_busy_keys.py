"""Keys: who gets which, and one message of each at a time."""

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
from support.shared_subscriptions import Outlet, column, scan, subscription

# Slots, so that the two halves of them have some each; -1 is no key.
SLOTS = st.sampled_from([-1, 0, 1, 2, 40_000, 65_535])
# So long a consumer may keep what it has.
PATIENT_MS = 3_600_000
HALVES: list[KeyRange] = [(0, 32_767), (32_768, 65_535)]


def keyed(*slots: int) -> UInt32s:
    """The traits of messages of the default priority."""
    return np.array([0 if slot < 0 else HAS_KEY | slot for slot in slots], np.uint32)


def consumer(id: int, key_range: KeyRange, permits: int = 1000) -> Consumer:
    made = Consumer(id, id, f"c{id}", Outlet(), 0, PATIENT_MS, key_range)
    made.permits = permits
    return made


@dataclass
class Life:
    """A subscription, and what it ought to know."""

    made: SharedSubscription
    order: str
    skip: bool
    now_ms: int = 10_000
    slots: dict[int, int] = field(default_factory=dict)
    due_ms: dict[int, int] = field(default_factory=dict)
    out: dict[int, int] = field(default_factory=dict)  # whose hands it is in
    waiting: dict[int, int] = field(default_factory=dict)  # and until when
    tried: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    fed: dict[int, int] = field(default_factory=dict)  # what a consumer does not take

    def group(self, offset: int) -> Any:
        """What it must not share with another that is out; a value of its own for none."""
        if self.order == "topic":
            return "topic"
        return self.slots[offset] if self.slots[offset] >= 0 else -2 - offset

    def holders(self) -> list[Any]:
        """The groups of whatever holds its own."""
        held = [*self.out] + ([] if self.skip else [*self.waiting])
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

    def hand(self) -> int:
        """Whatever may go now; returns how many did."""
        self.read()
        count = 0
        while hands := self.made.assign(self.now_ms, 3):
            for hand in hands:
                for offset in hand.rows.offsets.tolist():
                    count += 1
                    self.check(offset, hand.consumer)
                    self.out[offset] = hand.consumer.id
                    self.tried.add(offset)
            for part in (self.made._order, self.made._skipping):
                if part is not None:
                    part._check()
        return count

    def check(self, offset: int, to: Consumer) -> None:
        assert offset not in self.out
        assert offset not in self.waiting
        assert offset not in self.done
        slot = self.slots[offset]
        if slot >= 0 and isinstance(to.key_range, tuple):
            assert to.key_range[0] <= slot <= to.key_range[1]
        if self.order == "any":
            return
        assert self.group(offset) not in self.holders(), "two of a key are out"
        for other in self.slots:
            if self.group(other) == self.group(offset) and self.due_ms[other] < self.due_ms[offset]:
                skipped = self.skip and other in self.waiting
                assert other in self.done or skipped or not self.has_taker(other)

    def has_taker(self, offset: int) -> bool:
        """Whether somebody gets it; what is in nobody's range waits, and holds up none."""
        slot = self.slots[offset]
        ranges = [one.key_range for one in self.made.consumers]
        return slot < 0 or any(
            not isinstance(one, tuple) or one[0] <= slot <= one[1] for one in ranges
        )

    def settle(self, pick: int, how: str) -> None:
        if not self.out:
            return
        offset = sorted(self.out)[pick % len(self.out)]
        (holder,) = [one for one in self.made.consumers if one.id == self.out[offset]]
        del self.out[offset]
        holder.permits += 1
        if how in ("ack", "gone"):  # by a consumer, or by nobody
            at_ms = self.now_ms if how == "ack" else None
            self.made.acknowledge(column(offset), None, at_ms=at_ms)
            self.done.add(offset)
        else:
            delay_ms = 0 if how == "nack" else 500
            self.made.negative_acknowledge(holder, column(offset), delay_ms, self.now_ms)
            if delay_ms:
                self.waiting[offset] = self.now_ms + delay_ms

    def cancel(self, pick: int) -> None:
        """As the topic does: what was handed out once is not withdrawn."""
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
        """A time to live, for a moment: what is ready and older goes, and nothing else."""
        self.made.expiry.set_ttl(ttl_ms)
        assert self.made.expiry.advance(self.now_ms)
        self.made.sweep(self.now_ms)
        self.made.expiry.set_ttl(0)
        over = {o for o in self.slots if self.made.acked.contains(column(o))[0]} - self.done
        for offset in over:
            assert self.due_ms[offset] <= self.now_ms - ttl_ms
            assert offset not in self.out
            assert offset not in self.waiting
        self.done |= over

    def turn(self, order: str) -> None:
        """Another order, live."""
        self.order = order
        policy = SubscriptionPolicy(order=order, on_retry="skip" if self.skip else "hold")
        self.made.set_policy(policy)

    def sleep(self, ms: int) -> None:
        self.now_ms += ms
        self.made.advance(self.now_ms)
        self.waiting = {o: at for o, at in self.waiting.items() if at > self.now_ms - 10}

    def starve(self, id: int, permits: int) -> None:
        """A consumer takes no more than this, until it is fed."""
        for one in self.made.consumers:
            if one.id == id:
                self.fed[id] = self.fed.get(id, 0) + one.permits - permits
                one.permits = permits

    def feed(self) -> None:
        """All consumers take again what they would."""
        for one in self.made.consumers:
            one.permits += self.fed.pop(one.id, 0)

    def has_room(self, offset: int) -> bool:
        """Whether somebody who gets it takes messages."""
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

    def change(self, id: int, wanted: KeyRange) -> None:
        """A consumer comes, or goes if it is there."""
        there = [one for one in self.made.consumers if one.id == id]
        for one in there:
            self.made.leave(one, self.now_ms)
            self.out = {offset: who for offset, who in self.out.items() if who != id}
            self.fed.pop(id, None)
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
        st.tuples(st.just("turn"), st.sampled_from(["any", "key", "topic"])),
        st.tuples(st.just("change"), st.integers(2, 3)),
        st.tuples(st.just("starve"), st.integers(2, 3), st.integers(0, 2)),
        st.tuples(st.just("hand")),
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
def test_of_each_key_one_is_out_in_due_order_and_all_come_to_an_end(
    actions: list[tuple[Any, ...]],
    order: str,
    skip: bool,
    ranged: bool,
    auto: bool,
    ready_messages: int,
) -> None:
    """V16, Q9: also where consumers come and go, and where little finds room in ready."""
    made = subscription(ready_messages)
    life = Life(made, order, skip)
    life.turn(order)
    made.leave(made.consumers[0], life.now_ms)
    ranges: list[KeyRange] = ["auto", "auto"] if auto else HALVES if ranged else [None, None]
    for action in actions:
        match action:
            case ("change", id):
                life.change(id, ranges[id - 2])
            case (name, *arguments):
                getattr(life, name)(*arguments)
        life.hand()
    for id in (2, 3):
        if not any(one.id == id for one in made.consumers):
            life.change(id, ranges[id - 2])
    life.feed()
    life.sleep(1000)
    for _ in range(20):
        while life.hand() or life.out:
            life.settle(0, "ack")
        life.sleep(STUCK_MS)
    assert life.done == set(life.slots)


def test_ranges_may_touch_and_not_overlap() -> None:
    """V16."""
    there = [consumer(1, (100, 200)), consumer(2, None), consumer(3, "auto")]
    for wanted in ((0, 99), (201, 65_535), "auto", None):
        check_range(there, wanted)
    for wanted in ((0, 100), (200, 200), (150, 160), (0, 65_535)):
        with pytest.raises(Conflict, match="overlaps with 100-200, which c1 has"):
            check_range(there, wanted)


def test_what_exact_ranges_leave_is_dealt_out_in_equal_parts() -> None:
    """V16."""
    there = [consumer(1, "auto"), consumer(2, (0, 5535)), consumer(3, "auto")]
    ranges = KeyRanges(there)
    slots = np.arange(65_536)
    rows = Rows.fresh(slots, slots, keyed(*slots.tolist()))
    assert ranges.wanted(rows).all()
    dealt = dict(ranges.deal(rows, slots, there, [10**6] * 3, 10**6))
    assert [len(dealt[position]) for position in range(3)] == [30_000, 5_536, 30_000]
    assert np.array_equal(np.sort(np.concatenate([*dealt.values()])), slots)


def test_where_nobody_asked_for_it_somebody_without_a_range_gets_it() -> None:
    """V16: or else it waits, and fills nothing up."""
    made = subscription(ready_messages=4)
    made.leave(made.consumers[0], 0)
    life = Life(made, "any", False)
    life.change(2, HALVES[0])
    life.publish([40_000] * 50 + [1, -1])
    assert life.hand() == 2
    assert made.ready_count == 0
    life.change(3, None)
    while life.hand():
        pass
    assert sorted(life.out) == list(range(52))
    assert {life.out[offset] for offset in range(50)} == {3}


def test_who_takes_nothing_holds_up_other_ranges_for_a_moment_only() -> None:
    """V16: what is his is left in the index, and comes in its order once he takes it."""
    made = subscription(ready_messages=40)
    made.leave(made.consumers[0], 0)
    life = Life(made, "any", False)
    life.change(2, HALVES[0])
    life.change(3, HALVES[1])
    life.starve(2, 0)
    for _ in range(30):
        life.publish([0, 1, 2, 3, 4])
    life.publish([40_000] * 20)
    assert life.hand() == 0
    life.sleep(STUCK_MS - 1)
    assert life.hand() == 0
    wake_ms = made.next_wake_ms()
    assert wake_ms is not None
    assert wake_ms <= life.now_ms + 10
    life.sleep(1)
    assert life.hand() == 20
    for _ in range(20):
        life.publish([5, 6, 7, 8] * 20 + [40_000])
        assert life.hand() == 1, "and from then on at once"
    assert made.ready_count <= 40
    life.feed()
    order: list[int] = []
    while len(life.done) < len(life.slots):
        before = {*life.out}
        if not life.hand() and not life.out:
            life.sleep(STUCK_MS)
        order += sorted({*life.out} - before)
        while life.out:
            life.settle(0, "ack")
    his = [offset for offset, slot in life.slots.items() if slot < 40_000]
    assert order == his


def test_who_takes_little_holds_up_other_ranges_no_longer() -> None:
    """V16: there is always something of his ready, and there is always something that goes."""
    made = subscription(ready_messages=40)
    made.leave(made.consumers[0], 0)
    life = Life(made, "any", False)
    life.change(2, HALVES[0])
    life.change(3, HALVES[1])
    life.starve(2, 1)
    life.publish([0, 1, 2, 3, 4] * 60)
    life.publish([40_000] * 20)
    for _ in range(8):
        life.sleep(STUCK_MS // 4)
        life.hand()
        for offset in [offset for offset, whose in life.out.items() if whose == 2]:
            life.settle(sorted(life.out).index(offset), "ack")
    assert [life.slots[offset] for offset in life.out if life.out[offset] == 3] == [40_000] * 20


def test_a_range_with_room_ends_what_was_left_out_of_one_that_gets_none() -> None:
    """V16: its consumer leaves, and another gets its keys."""
    made = subscription(ready_messages=8)
    made.leave(made.consumers[0], 0)
    life = Life(made, "any", False)
    life.change(2, HALVES[0])
    life.change(3, HALVES[1])
    life.starve(2, 0)
    life.publish([0] * 30 + [40_000])
    life.hand()
    life.sleep(STUCK_MS)
    assert life.hand() == 1
    life.change(2, HALVES[0])
    life.publish([1])
    assert life.hand() == 0, "they are nobody's"
    life.change(4, None)
    while life.hand():
        pass
    assert sorted(life.out) == list(range(32))


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.lists(SLOTS, min_size=1, max_size=20)),
            st.tuples(st.just("starve"), st.integers(2, 3), st.integers(0, 2)),
            st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from(["ack", "nack"])),
            st.tuples(st.just("sleep"), st.sampled_from([10, 1000])),
            st.tuples(st.just("change"), st.integers(2, 3)),
        ),
        max_size=30,
    ),
    st.sampled_from([("auto", "auto"), tuple(HALVES), ((0, 1), None), (None, (0, 1))]),
    st.sampled_from([4, 20]),
)
def test_who_takes_what_is_his_gets_it_whoever_takes_nothing(
    actions: list[tuple[Any, ...]], ranges: tuple[KeyRange, KeyRange], ready_messages: int
) -> None:
    """V16: within a moment for each time that ready is full."""
    made = subscription(ready_messages)
    life = Life(made, "any", False)
    made.leave(made.consumers[0], life.now_ms)
    for action in actions:
        match action:
            case ("change", id):
                life.change(id, ranges[id - 2])
            case (name, *arguments):
                getattr(life, name)(*arguments)
        life.hand()
    for id in (2, 3):
        if not any(one.id == id for one in made.consumers):
            life.change(id, ranges[id - 2])
    life.feed()
    life.starve(2, 0)
    for _ in range(2 + 4 * len(life.slots) // ready_messages):
        life.hand()
        while his := [offset for offset, whose in life.out.items() if whose == 3]:
            life.settle(sorted(life.out).index(his[0]), "ack")
            life.hand()
        life.sleep(STUCK_MS)
    assert not [o for o in life.slots if o not in life.done | life.out.keys() and life.has_room(o)]


def test_what_is_given_back_and_in_nobodys_range_takes_no_room() -> None:
    """V16: its consumer has left with more than ready holds, and others go on."""
    made = subscription(ready_messages=8)
    made.leave(made.consumers[0], 0)
    life = Life(made, "any", False)
    life.change(2, HALVES[0])
    life.change(3, HALVES[1])
    life.publish([1] * 40)
    while life.hand():
        pass
    assert len(life.out) == 40
    life.change(2, HALVES[0])
    life.publish([40_000] * 20)
    while life.hand():
        pass
    assert sorted(life.out) == list(range(40, 60))
    life.change(2, HALVES[0])
    while life.hand():
        pass
    assert sorted(life.out) == list(range(60))


def test_in_the_order_of_a_topic_what_gets_a_taker_comes_in_its_turn() -> None:
    """Q9: also before what is ready already, of another range."""
    made = subscription(ready_messages=4)
    made.leave(made.consumers[0], 0)
    life = Life(made, "topic", False)
    life.turn("topic")
    life.change(3, HALVES[1])
    life.publish([-1, 0])
    life.publish([-1, -1, -1])
    assert life.hand() == 1
    life.change(2, HALVES[0])
    for _ in range(5):
        life.settle(0, "ack")
        life.hand()
    assert life.done == set(range(5))


def test_an_order_that_is_asked_for_later_counts_what_is_out_and_in_retry() -> None:
    """Q9: the policy is changed while messages are in hands and in back-off."""
    made = subscription(100)
    life = Life(made, "any", False)
    life.publish([1, 1, 2, 2, -1, -1])
    assert life.hand() == 6
    life.settle(0, "later")
    made.set_policy(SubscriptionPolicy(order="key"))
    life.order = "key"
    life.publish([1, 2, 3, 3, -1])
    assert life.hand() == 2
    made.set_policy(SubscriptionPolicy())
    life.order = "any"
    assert life.hand() == 3


def test_what_was_out_before_there_was_an_order_holds_its_key_until_the_last_is_done() -> None:
    """Q9: also when it is given back and waits, again and again."""
    made = subscription(100)
    life = Life(made, "any", False)
    life.publish([1, 1, 1])
    assert life.hand() == 3
    life.turn("key")
    life.publish([1])
    for offset in (1, 2):
        made.negative_acknowledge(made.consumers[0], column(offset), 1000, life.now_ms)
        assert made._order is not None
        made._order._check()
    made.acknowledge(column(0, 1), None)
    assert made.assign(life.now_ms, 10) == []
    made.acknowledge(column(2), None)
    (hand,) = made.assign(life.now_ms, 10)
    assert hand.rows.offsets.tolist() == [3]


def test_keys_that_share_a_slot_do_not_wait_for_each_other() -> None:
    """Q9: their hashes are of 23 bits, though ranges are of 16."""
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


def test_many_messages_of_busy_keys_hold_up_others_for_a_moment_only() -> None:
    """V16: ready is full of what may not go, again and again, and reading goes on behind it."""
    made = subscription(ready_messages=40)
    life = Life(made, "any", False)
    life.turn("key")
    for _ in range(30):
        life.publish([0, 1, 2] * 5)
    life.publish([7])
    life.publish([0, 7, -1])
    assert life.hand() == 3
    life.sleep(STUCK_MS - 1)
    assert life.hand() == 0
    wake_ms = made.next_wake_ms()
    assert wake_ms is not None
    assert wake_ms <= life.now_ms + 10
    life.sleep(1)
    assert life.hand() == 2, "one of another key, and one without"
    assert sorted(life.slots[offset] for offset in life.out) == [-1, 0, 1, 2, 7]
    assert made.ready_count <= 40
    # What was passed over comes when nothing else of its key is left, and in order.
    rounds = 0
    while len(life.done) < len(life.slots):
        rounds += 1
        while life.out:
            life.settle(0, "ack")
        if not life.hand():
            life.sleep(STUCK_MS)
    assert rounds < 600


def test_of_several_skipped_keys_one_that_is_free_waits_a_moment_for_others() -> None:
    """V16: reading begins again for many at once, and for one alone within a second."""
    made = subscription(ready_messages=8)
    life = Life(made, "any", False)
    life.turn("key")
    for _ in range(8):
        life.publish([*range(8)])
    assert life.hand() == 8
    assert life.hand() == 0
    life.sleep(STUCK_MS)
    assert life.hand() == 0
    assert made.ready_count == 0, "not even the next of each is kept"
    life.settle(0, "ack")
    assert life.hand() == 0
    life.sleep(STUCK_MS - 1)
    assert life.hand() == 0
    life.sleep(1)
    assert life.hand() == 1
    # All of its messages have come, and fill ready; so others may wait for another moment.
    for _ in range(3):
        life.settle(0, "ack")
    handed = life.hand()
    life.sleep(STUCK_MS)
    assert handed + life.hand() == 3


def test_a_message_to_come_wakes_who_waits_for_room() -> None:
    """Invariant 4: nothing else may ever happen in this topic."""
    made = subscription(ready_messages=10)
    life = Life(made, "any", False)
    life.turn("key")
    life.publish([0] * 30 + [1])
    assert life.hand() == 1
    for _ in range(3):
        wake_ms = made.next_wake_ms()
        assert wake_ms is not None
        life.now_ms = max(life.now_ms, wake_ms)
        made.advance(life.now_ms)
        if life.hand():
            break
    assert {life.slots[offset] for offset in life.out} == {0, 1}


def test_with_many_in_hands_freed_keys_are_gathered_for_a_moment() -> None:
    """V16: many small acknowledgements make few frames."""
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
    assert hand.rows.offsets.tolist() == [*range(4000, 5010)], "enough of them are free"
    made.acknowledge(np.arange(1010, 1020), None)
    assert made.assign(1_003, 4096) == []
    assert made.advance(1_003 + GATHER_MS)
    (hand,) = made.assign(1_003 + GATHER_MS, 4096)
    assert hand.rows.height == 10


def test_while_more_is_read_a_few_are_gathered_for_a_moment() -> None:
    """V16: a backlog that is read does not go out in small frames; nobody waits for it long."""
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
    assert hand.rows.height == 9, "nothing is being read any more"


def test_a_consumer_that_leaves_takes_the_wake_ups_of_an_order_with_it() -> None:
    """A wake-up in the past would be one without end."""
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


def test_the_least_busy_gets_the_next_also_where_keys_are_in_order() -> None:
    """Q4: of what may go to several; a range of keys goes to its owner."""
    made = subscription(1000)
    made.set_policy(SubscriptionPolicy(order="key", dispatch="least_busy"))
    life = Life(made, "key", False)
    made.leave(made.consumers[0], life.now_ms)
    life.change(2, None)
    life.publish([0, 1, 2])
    assert life.hand() == 3
    life.change(3, None)
    life.publish([3, 4, -1])
    assert life.hand() == 3
    assert sorted(life.out.values()) == [2] * 3 + [3] * 3
