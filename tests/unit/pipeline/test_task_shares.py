"""The division of many pieces among tasks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from escapement.pipeline.task_shares import shares


@given(st.lists(st.integers(0, 12), max_size=90), st.integers(1, 30))
def test_small_pieces_are_grouped_and_all_are_assigned(pieces: list[int], most: int) -> None:
    """B7: order is kept, a large piece is alone, and no more tasks than needed are used."""
    found = shares(pieces, lambda piece: piece, most)
    assert [piece for share in found for piece in share] == pieces
    assert all(1 <= len(share) <= 20 for share in found)
    assert all(sum(share) <= most or len(share) == 1 for share in found)
    for share, following in pairwise(found):
        assert len(share) == 20 or sum(share) + following[0] > most
