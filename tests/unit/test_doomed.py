"""What is to be buried comes by offset, in steps, and without what was acknowledged meanwhile."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.deadletter import Dead
from escapement.broker.subscription.doomed import Doomed
from escapement.broker.subscription.ready import Rows
from escapement.storage.offsets import OffsetSet

ROUNDS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(0, 3)), max_size=12)


@given(ROUNDS, st.randoms(use_true_random=False))
def test_each_of_the_dead_is_given_once_unless_it_was_acknowledged(
    rounds: list[tuple[int, int, int]], rng: random.Random
) -> None:
    """V4."""
    doomed, acked = Doomed(), OffsetSet()
    waiting: set[int] = set()
    buried: list[int] = []
    number = 0
    for dying, most, done in [*rounds, *[(0, 4, 0)] * 30]:
        offsets = list(range(number, number + dying))
        number += dying
        rng.shuffle(offsets)
        if offsets:
            column = np.array(offsets)
            doomed.add(Dead.of(Rows.fresh(column * 10, column), "nack"))
        waiting |= set(offsets)
        for offset in sorted(waiting)[:done]:
            acked.add_one(offset)
            waiting.discard(offset)
        found = doomed.next(most, acked)
        assert found.rows.offsets.tolist() == sorted(found.rows.offsets.tolist())
        assert found.rows.height <= most
        assert waiting.issuperset(found.rows.offsets.tolist())
        assert waiting <= set(doomed.rows.offsets.tolist())
        if found.rows.height:
            doomed.take_next()
            buried += found.rows.offsets.tolist()
            waiting -= set(buried)
    assert not waiting
    assert not doomed
    assert len(buried) == len(set(buried))
    assert len(buried) + len(acked) == number


def test_what_is_given_and_not_taken_is_given_again() -> None:
    """Until its burial is durable it may have to be tried again."""
    doomed, acked = Doomed(), OffsetSet()
    column = np.array([3, 1, 2])
    doomed.add(Dead.of(Rows.fresh(column, column), "timeout"))
    assert doomed.next(2, acked).rows.offsets.tolist() == [1, 2]
    assert len(doomed) == 3
    assert doomed.next(2, acked).rows.offsets.tolist() == [1, 2]
    acked.add_one(1)
    assert doomed.next(2, acked).rows.offsets.tolist() == [2]
    doomed.take_next()
    assert doomed.next(2, acked).rows.offsets.tolist() == [3]


def test_rows_stay_until_their_burial_is_durable() -> None:
    """V4: until then a checkpoint states their attempts."""
    doomed = Doomed()
    for offset in (1, 2):
        column = np.array([offset])
        doomed.add(Dead.of(Rows.fresh(column, column), "nack"))
    burials = []
    for _ in range(2):
        doomed.next(1, OffsetSet())
        burials.append(doomed.burying(doomed.take_next().rows))
    assert not doomed
    for durable, left in zip(burials, ([2], []), strict=True):
        durable()
        assert doomed.rows.offsets.tolist() == left
