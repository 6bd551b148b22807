"""The division of a namespace quota among its topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.topic.backlog_size import levels


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_largest_backlogs_are_reduced_first_to_the_exact_quota(
    waiting: list[int], most: int
) -> None:
    """P10: compared with a model that removes one message at a time from the largest backlog."""
    naive = list(waiting)
    while sum(naive) > most:
        naive[naive.index(max(naive))] -= 1
    stay = levels(waiting, most)
    assert sorted(stay) == sorted(naive)
    assert all(kept <= had for kept, had in zip(stay, waiting, strict=True))
