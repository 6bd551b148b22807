"""Which consumer gets which run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.dispatcher import share_out


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
