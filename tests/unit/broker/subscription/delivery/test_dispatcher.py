"""Which consumer gets which run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.delivery.dispatcher import level_out, share_out


def test_a_small_amount_is_spread_over_all_who_have_credit() -> None:
    """V6: round robin over subscribers."""
    runs, turn = share_out(4, [10, 10, 0, 10], 1, 4096)
    assert runs == [(1, 2), (3, 1), (0, 1)]
    assert turn == 1


def test_the_turn_moves_on_so_that_single_messages_go_round() -> None:
    """V6: three messages, one at a time, reach three subscribers."""
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
def test_nobody_gets_more_than_its_credit_and_nothing_is_invented(
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
def test_the_least_busy_gets_each_message_as_one_by_one(
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
    # Of equals others may have been chosen; how many hold how much is the same.
    assert sorted(after) == sorted(levels)


def test_of_equally_busy_consumers_each_has_its_turn() -> None:
    """Q4: three messages, one at a time, acknowledged at once."""
    turn, got = 0, []
    for _ in range(3):
        runs, turn = level_out(1, [5, 5, 5], [2, 2, 2], turn, 4096)
        got += [position for position, _ in runs]
    assert got == [0, 1, 2]
