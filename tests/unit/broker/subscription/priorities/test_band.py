"""Priorities in a shared subscription, compared with a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.broker.subscription.priorities.band import NORMAL, Band, bands_of
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.shared import SharedSubscription
from escapement.message import DEFAULT_PRIORITY, UInt32s
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.index import Key
from support.messages.shared_subscriptions import column, subscription

AGEING_MS = 10


def graded(*priorities: int) -> UInt32s:
    """Return the traits of messages without keys."""
    return (np.array(priorities, np.uint32) ^ np.uint32(DEFAULT_PRIORITY)) << np.uint32(24)


@dataclass
class Model:
    """A subscription, and a model of its messages."""

    made: SharedSubscription
    now_ms: int = 1000
    messages: dict[int, tuple[int, int]] = field(default_factory=dict)  # due, priority
    delivered: list[int] = field(default_factory=list)

    def rank(self, offset: int) -> tuple[int, int]:
        due_ms, priority = self.messages[offset]
        return due_ms + (priority - DEFAULT_PRIORITY) * AGEING_MS, offset

    def publish(self, priorities: list[int], step_ms: int) -> None:
        """Publish messages that became due during the last few milliseconds."""
        self.now_ms += step_ms
        first = len(self.messages)
        rows = []
        for number, priority in enumerate(priorities):
            due_ms = self.now_ms - (number * 7) % 5
            self.messages[first + number] = due_ms, priority
            rows.append((due_ms, first + number, priority))
        rows.sort()
        due_ms, offsets, given = zip(*rows, strict=True)
        traits = graded(*given)
        self.made.offer(column(*due_ms), column(*offsets), traits if traits.any() else None)

    def scan(self, band: Band, most: int) -> None:
        """Scan a piece of the backlog, or all of it."""
        assert band.mark is not None
        frontier = Key(self.now_ms + 1, 0)
        found = sorted((due_ms, offset) for offset, (due_ms, _) in self.messages.items())
        found = [key for key in found if band.mark <= Key(*key) < frontier]
        stop = Key(*found[most - 1]).successor() if len(found) > most else frontier
        found = [key for key in found if Key(*key) < stop]
        band.begin_scan(stop, stop == frontier)
        traits = graded(*[self.messages[offset][1] for _, offset in found])
        self.made.end_scan(
            [band],
            column(*[due_ms for due_ms, _ in found]),
            column(*[offset for _, offset in found]),
            traits if traits.any() else None,
        )

    def read(self, most: int) -> None:
        """Scan like the pump does, until no band wants more."""
        while bands := self.made.to_scan(self.now_ms):
            for band in bands:
                self.scan(band, most)

    def deliver(self) -> bool:
        """Deliver one message. Assert that no message that should precede it is waiting."""
        self.made.consumers[0].permits = 1
        hands = self.made.assign(self.now_ms, 1)
        if not hands:
            return False
        (offset,) = hands[0].rows.offsets.tolist()
        assert offset not in self.delivered
        self.delivered.append(offset)
        waiting = set(self.messages) - set(self.delivered)
        ready = {
            offset for band in self.made.bands for offset in band.ready.rows().offsets.tolist()
        }
        for other in waiting:
            if other in ready or self.messages[other][1] == DEFAULT_PRIORITY:
                assert self.rank(offset) < self.rank(other)
        for band in self.made.bands:
            band.ready._check()
        return True


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"),
            st.lists(st.sampled_from([50, 50, 50, 0, 45, 49, 51, 60, 255]), min_size=1, max_size=6),
            st.sampled_from([5, 50, 1000]),
        ),
        st.tuples(st.just("deliver"), st.integers(1, 5)),
    ),
    max_size=25,
)


@settings(max_examples=200)
@given(steps, st.sampled_from([2, 4, 50]), st.integers(1, 8), st.sampled_from([1, 3, 1000]))
def test_each_message_is_delivered_once_in_the_order_of_ranks(
    actions: list[tuple[object, ...]], ready_messages: int, most: int, large: int
) -> None:
    """V5: the default priority is never passed by a higher rank, however long the backlog.

    Offers of ``large`` or more messages are read before they become ready.
    """
    made = subscription(ready_messages, large_offer=large)
    made.set_policy(SubscriptionPolicy(priority_ageing_ms=AGEING_MS))
    model = Model(made)
    for action in actions:
        match action:
            case "publish", list(priorities), int(step_ms):
                model.publish(priorities, step_ms)
            case "deliver", int(count):
                for _ in range(count):
                    model.read(most)
                    model.deliver()
    model.read(most)
    while model.deliver():
        model.read(most)
    assert sorted(model.delivered) == list(range(len(model.messages)))
    assert not made.bands.are_behind


def test_message_is_passed_only_by_messages_due_a_bounded_time_later() -> None:
    """V5: the bound of ageing, exact to the millisecond."""
    made = subscription(100)
    made.set_policy(SubscriptionPolicy(priority_ageing_ms=AGEING_MS))
    model = Model(made)
    model.read(100)
    model.publish([200], 5)
    model.messages |= {1: (model.now_ms + 1999, 0), 2: (model.now_ms + 2001, 0)}
    model.now_ms += 2001
    times = column(model.messages[1][0], model.messages[2][0])
    made.offer(times, column(1, 2), graded(0, 0))
    while model.deliver():
        pass
    assert model.delivered == [1, 0, 2]


def test_changed_priority_ageing_counts_at_once() -> None:
    """V5: the policy is changed while messages wait."""
    made = subscription(100)
    model = Model(made)
    model.read(100)
    made.offer(column(1000, 1001, 1002), column(0, 1, 2), graded(53, 50, 47))
    for ageing_ms, order in [(1, [2, 1, 0]), (0, [0, 1, 2]), (1000, [2, 1, 0])]:
        made.set_policy(SubscriptionPolicy(priority_ageing_ms=ageing_ms))
        made.consumers[0].permits = 3
        (hand,) = made.assign(2000, 3)
        assert hand.rows.offsets.tolist() == order
        made.release(made.consumers[0], hand.rows.offsets, 0, 2000)


def test_bands_at_one_position_scan_together_while_they_have_room() -> None:
    """V3, V5: a band that scans alone makes the others scan again; a full band delays no other."""
    made = subscription(8)
    made.bands.add_all()
    low = next(band for band in made.bands if band.which > NORMAL)
    frontier = Key(100, 0)
    for filled, together in [(6, 3), (8, 2)]:
        low.ready.drain()
        low.ready.push(Rows.fresh(column(*[1] * filled), column(*range(filled))))
        scan = made.next_scan(frontier, 100)
        assert scan is not None
        assert len(scan.bands) == together
        assert scan.most == min(band.room for band in scan.bands) > 0
        assert (low in scan.bands) == (filled < 8)


def test_default_priority_divides_the_bands() -> None:
    assert bands_of(graded(0, 49, 50, 51, 255)).tolist() == [-1, -1, NORMAL, 1, 1]
