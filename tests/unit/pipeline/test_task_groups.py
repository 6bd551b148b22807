"""The division of many pieces among tasks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from escapement.pipeline.task_groups import group_pieces


@given(st.lists(st.integers(0, 12), max_size=90), st.integers(1, 30))
def test_small_pieces_are_grouped_and_all_are_assigned(pieces: list[int], most: int) -> None:
    """B7: order is kept, a large piece is alone, and no more tasks than needed are used."""
    found = group_pieces(pieces, lambda piece: piece, most)
    assert [piece for group in found for piece in group] == pieces
    assert all(1 <= len(group) <= 20 for group in found)
    assert all(sum(group) <= most or len(group) == 1 for group in found)
    for group, following in pairwise(found):
        assert len(group) == 20 or sum(group) + following[0] > most
