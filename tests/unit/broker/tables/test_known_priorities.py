"""Which priorities of a message table polls look for."""

from __future__ import annotations

import pytest

from escapement.broker.tables.known_priorities import KnownPriorities
from escapement.tables.poll import MOST_PRIORITIES
from escapement.tables.priorities import MOST_KNOWN, InUse


def in_use(values: range, after: int | None) -> InUse:
    """Return what a poll finds if these priorities are in use."""
    above = [one for one in values if after is None or one > after]
    return InUse(tuple(above[:MOST_KNOWN]), len(above) <= MOST_KNOWN)


def looked_for(known: KnownPriorities, values: range, polls: int) -> set[int | None]:
    """Return the priorities that so many polls look for."""
    found: set[int | None] = set()
    for _ in range(polls):
        new, turn = None, known.turn
        has_unknown = known.all is not None and not set(values) <= set(known.all)
        if known.wants_new(0) or has_unknown:
            new = in_use(values, known.after)
            turn = new.values[:MOST_PRIORITIES]
        assert len(turn) <= MOST_PRIORITIES
        found.update(turn)
        known.polled(new, 0)
    return found


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000, 1001, 2500])
def test_polls_look_for_all_priorities_in_turns(count: int) -> None:
    """V5: also if more are in use than are known at a time."""
    known, values = KnownPriorities(), range(count)
    polls = sum(-(-len(part) // 256) for part in (values[:1000], values[1000:2000], values[2000:]))
    for _ in range(3):
        assert looked_for(known, values, polls) == set(values)


def test_polls_return_to_few_priorities_after_many() -> None:
    known = KnownPriorities()
    looked_for(known, range(2500), 7)
    looked_for(known, range(3), 12)
    assert known.all == (0, 1, 2)
    assert looked_for(known, range(3), 1) == {0, 1, 2}


def test_several_priorities_are_found_again_after_a_while() -> None:
    """V9: but not a single one, so idle tables cost nothing."""
    known = KnownPriorities()
    assert not known.wants_new(1_000_000)
    known.polled(InUse((1, 2), ends=True), 1_000_000)
    assert not known.wants_new(1_029_999)
    assert known.wants_new(1_030_000)
    known.polled(InUse((), ends=True), 1_030_000)
    assert known.turn == known.all == ()
    assert not known.wants_new(2_000_000)
