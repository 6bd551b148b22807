"""A shared subscription whose messages have keys, and a model of these messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.shared import SharedSubscription
from escapement.message import UInt32s
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.index import Key
from escapement.traits import HAS_KEY, KeyRange
from support.messages.shared_subscriptions import Outlet, column

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
