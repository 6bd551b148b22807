"""Keys: who gets which, and one message of each at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shared import Outlet, column, subscription

from escapement.broker.backoff import DEFAULT_ACK_WAIT_MS
from escapement.broker.consumer import Consumer
from escapement.broker.keyranges import KeyRanges, check_range
from escapement.broker.ready import Rows
from escapement.broker.shared import SharedSubscription
from escapement.errors import Conflict
from escapement.message import UInt32s
from escapement.storage.index import Key
from escapement.storage.policy import SubscriptionPolicy
from escapement.traits import HAS_KEY, KeyRange

# Slots, so that the two halves of them have some each; -1 is no key.
SLOTS = st.sampled_from([-1, 0, 1, 2, 40_000, 65_535])
HALVES: list[KeyRange] = [(0, 32_767), (32_768, 65_535)]


def keyed(*slots: int) -> UInt32s:
    """The traits of messages of the default priority."""
    return np.array([0 if slot < 0 else HAS_KEY | slot for slot in slots], np.uint32)


def consumer(id: int, key_range: KeyRange, permits: int = 1000) -> Consumer:
    made = Consumer(id, id, f"c{id}", Outlet(), 0, DEFAULT_ACK_WAIT_MS, key_range)
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
    done: set[int] = field(default_factory=set)

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
                band,
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
            if self.made._hold is not None:
                self.made._hold._check()
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
        if how == "ack":
            self.made.acknowledge(column(offset), None)
            self.done.add(offset)
        else:
            delay_ms = 0 if how == "nack" else 500
            self.made.negative_acknowledge(holder, column(offset), delay_ms, self.now_ms)
            if delay_ms:
                self.waiting[offset] = self.now_ms + delay_ms

    def sleep(self, ms: int) -> None:
        self.now_ms += ms
        self.made.advance(self.now_ms)
        self.waiting = {o: at for o, at in self.waiting.items() if at > self.now_ms - 10}

    def change(self, id: int, wanted: KeyRange) -> None:
        """A consumer comes, or goes if it is there."""
        there = [one for one in self.made.consumers if one.id == id]
        for one in there:
            self.made.leave(one, self.now_ms)
            self.out = {offset: who for offset, who in self.out.items() if who != id}
        if not there:
            self.made.join(consumer(id, wanted))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(SLOTS, min_size=1, max_size=5)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from(["ack", "nack", "later"])),
        st.tuples(st.just("settle"), st.integers(0, 9), st.just("ack")),
        st.tuples(st.just("sleep"), st.sampled_from([10, 1000])),
        st.tuples(st.just("change"), st.integers(2, 3)),
        st.tuples(st.just("hand")),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(steps, st.sampled_from(["any", "key", "topic"]), st.booleans(), st.booleans(), st.booleans())
def test_of_each_key_one_is_out_in_due_order_and_all_come_to_an_end(
    actions: list[tuple[Any, ...]], order: str, skip: bool, ranged: bool, auto: bool
) -> None:
    """V16, Q9: consumers that come and go, retries that hold or are skipped."""
    made = subscription(4 if order == "any" else 1000)
    made.set_policy(SubscriptionPolicy(order=order, on_retry="skip" if skip else "hold"))
    life = Life(made, order, skip)
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
    life.sleep(1000)
    while life.hand() or life.out:
        life.settle(0, "ack")
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
