"""What each task gets of many pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from escapement.pipeline.task_shares import shares


@given(st.lists(st.integers(0, 12), max_size=90), st.integers(1, 30))
def test_small_pieces_go_together_and_nothing_is_left_out(pieces: list[int], most: int) -> None:
    """B7: in their order; a large piece by itself, and no more tasks than that takes."""
    found = shares(pieces, lambda piece: piece, most)
    assert [piece for share in found for piece in share] == pieces
    assert all(1 <= len(share) <= 20 for share in found)
    assert all(sum(share) <= most or len(share) == 1 for share in found)
    for share, following in pairwise(found):
        assert len(share) == 20 or sum(share) + following[0] > most
