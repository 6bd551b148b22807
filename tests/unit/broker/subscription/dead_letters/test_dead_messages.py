"""Dead messages are returned by offset, in portions, without those acknowledged meanwhile."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.dead_letters.dead_letter import Dead
from escapement.broker.subscription.dead_letters.dead_messages import DeadMessages
from escapement.broker.subscription.priorities.ready import Rows
from escapement.storage.offsets import OffsetSet

ROUNDS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(0, 3)), max_size=12)


@given(ROUNDS, st.randoms(use_true_random=False))
def test_each_dead_message_is_returned_once_unless_acknowledged(
    rounds: list[tuple[int, int, int]], rng: random.Random
) -> None:
    """V4: with the detail of its reject."""
    dead_messages, acked = DeadMessages(), OffsetSet()
    waiting: set[int] = set()
    dead_lettered: list[int] = []
    details: dict[int, str] = {}
    number = 0
    for given_up, most, done in [*rounds, *[(0, 4, 0)] * 30]:
        offsets = list(range(number, number + given_up))
        number += given_up
        rng.shuffle(offsets)
        if offsets:
            column = np.array(offsets)
            rejected = Dead.of(Rows.fresh(column * 10, column), "rejected", f"from {offsets[0]}")
            dead_messages.add(rejected)
            details |= dict.fromkeys(offsets, f"from {offsets[0]}")
        waiting |= set(offsets)
        for offset in sorted(waiting)[:done]:
            acked.add_one(offset)
            waiting.discard(offset)
        found = dead_messages.next(most, acked)
        assert found.rows.offsets.tolist() == sorted(found.rows.offsets.tolist())
        assert found.details.tolist() == [details[one] for one in found.rows.offsets.tolist()]
        assert found.rows.height <= most
        assert waiting.issuperset(found.rows.offsets.tolist())
        assert waiting <= set(dead_messages.rows.offsets.tolist())
        if found.rows.height:
            dead_messages.take_next()
            dead_lettered += found.rows.offsets.tolist()
            waiting -= set(dead_lettered)
    assert not waiting
    assert not dead_messages
    assert len(dead_lettered) == len(set(dead_lettered))
    assert len(dead_lettered) + len(acked) == number


def test_dead_message_that_is_not_taken_is_returned_again() -> None:
    """Dead-lettering may have to be repeated until the dead letter is durable."""
    dead_messages, acked = DeadMessages(), OffsetSet()
    column = np.array([3, 1, 2])
    dead_messages.add(Dead.of(Rows.fresh(column, column), "timeout"))
    assert dead_messages.next(2, acked).rows.offsets.tolist() == [1, 2]
    assert len(dead_messages) == 3
    assert dead_messages.next(2, acked).rows.offsets.tolist() == [1, 2]
    acked.add_one(1)
    assert dead_messages.next(2, acked).rows.offsets.tolist() == [2]
    dead_messages.take_next()
    assert dead_messages.next(2, acked).rows.offsets.tolist() == [3]


def test_rows_stay_until_their_dead_letter_is_durable() -> None:
    """V4: until then a checkpoint states their attempts."""
    dead_messages = DeadMessages()
    for offset in (1, 2):
        column = np.array([offset])
        dead_messages.add(Dead.of(Rows.fresh(column, column), "nack"))
    dead_lettered_calls = []
    for _ in range(2):
        dead_messages.next(1, OffsetSet())
        dead_lettered_calls.append(dead_messages.dead_lettering(dead_messages.take_next().rows))
    assert not dead_messages
    for durable, left in zip(dead_lettered_calls, ([2], []), strict=True):
        durable()
        assert dead_messages.rows.offsets.tolist() == left
