"""Key ranges: which consumer gets the messages of which keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.broker.subscription.keys.key_ranges import KeyRanges, check_range
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.priorities.skipping import STUCK_MS
from escapement.errors import Conflict
from escapement.traits import KeyRange
from support.messages.keyed_subscriptions import HALVES, SLOTS, Model, consumer, keyed
from support.messages.shared_subscriptions import subscription


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
