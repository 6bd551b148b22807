"""The arithmetic of quotas that several share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.topic.backlog_size import levels


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_who_has_the_most_gives_first_and_together_it_is_exact(
    waiting: list[int], most: int
) -> None:
    """P10: against a model that takes one by one from whoever has the most."""
    naive = list(waiting)
    while sum(naive) > most:
        naive[naive.index(max(naive))] -= 1
    stay = levels(waiting, most)
    assert sorted(stay) == sorted(naive)
    assert all(kept <= had for kept, had in zip(stay, waiting, strict=True))
