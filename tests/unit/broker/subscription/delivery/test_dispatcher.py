"""The distribution of ready messages among consumers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.delivery.dispatcher import level_out, share_out


def test_few_messages_are_spread_over_all_consumers_with_permits() -> None:
    """V6: round robin over consumers."""
    runs, turn = share_out(4, [10, 10, 0, 10], 1, 4096)
    assert runs == [(1, 2), (3, 1), (0, 1)]
    assert turn == 1


def test_single_messages_are_delivered_to_consumers_in_turn() -> None:
    """V6: three messages, one at a time, reach three consumers."""
    turn, got = 0, []
    for _ in range(3):
        runs, turn = share_out(1, [5, 5, 5], turn, 4096)
        got += [position for position, _ in runs]
    assert got == [0, 1, 2]


@given(
    st.integers(0, 100_000),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=8),
    st.integers(0, 7),
    st.integers(1, 5000),
)
def test_no_consumer_gets_more_messages_than_its_permits(
    ready: int, capacities: list[int], turn: int, frame: int
) -> None:
    runs, following = share_out(ready, capacities, turn % len(capacities), frame)
    assert 0 <= following < len(capacities)
    assert sum(count for _, count in runs) <= ready
    assert len({position for position, _ in runs}) == len(runs)
    for position, count in runs:
        assert 0 < count <= min(capacities[position], frame)
    if ready and any(capacities):
        assert runs


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(1, 15),
)
def test_each_message_goes_to_the_least_busy_consumer(
    ready: int, consumers: list[tuple[int, int]], turn: int, frame: int
) -> None:
    """Q4."""
    capacities = [capacity for capacity, _ in consumers]
    busy = [held for _, held in consumers]
    runs, following = level_out(ready, capacities, busy, turn % len(consumers), frame)
    given = dict(runs)
    assert len(given) == len(runs)
    assert 0 <= following < len(consumers)
    room = [min(capacity, frame) for capacity in capacities]
    levels = list(busy)
    for _ in range(ready):
        takers = [at for at in range(len(busy)) if levels[at] - busy[at] < room[at]]
        if not takers:
            break
        levels[min(takers, key=levels.__getitem__)] += 1
    after = [held + given.get(at, 0) for at, held in enumerate(busy)]
    assert sum(after) == sum(levels)
    assert all(0 < given[at] <= room[at] for at in given)
    # Ties may be broken differently; the resulting levels are the same.
    assert sorted(after) == sorted(levels)


def test_equally_busy_consumers_take_turns() -> None:
    """Q4: three messages, one at a time, acknowledged at once."""
    turn, got = 0, []
    for _ in range(3):
        runs, turn = level_out(1, [5, 5, 5], [2, 2, 2], turn, 4096)
        got += [position for position, _ in runs]
    assert got == [0, 1, 2]
