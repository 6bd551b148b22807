"""The offsets that an Ack names, in pieces, compared with sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.session import consumers
from escapement.broker.session.consumers import _pieces_of
from escapement.errors import LimitExceeded
from escapement.protocol import commands as wire

OFFSET = st.integers(0, 60)
RANGE = st.tuples(OFFSET, st.integers(1, 30))


def ack(single: list[int] | None, ranges: list[tuple[int, int]] | None) -> wire.Ack:
    firsts = None if ranges is None else np.array([first for first, _ in ranges], np.int64)
    lasts = None if ranges is None else np.array([first + n for first, n in ranges], np.int64)
    return wire.Ack(0, 1, None if single is None else np.array(single, np.int64), firsts, lasts)


@given(st.none() | st.lists(OFFSET, max_size=30), st.lists(RANGE, min_size=1, max_size=8))
def test_pieces_of_an_ack_have_all_its_offsets(
    single: list[int] | None, ranges: list[tuple[int, int]]
) -> None:
    """V3: single offsets and ranges, up to the end of the log."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(consumers, "_PIECE_MESSAGES", 7)
        pieces = list(_pieces_of(ack(single, ranges), 50))
    assert pieces
    assert all(len(piece) <= 7 for piece in pieces)
    named = {offset for first, n in ranges for offset in range(first, first + n)}
    named |= set(single or ())
    assert set(np.concatenate(pieces).tolist()) == {offset for offset in named if offset < 50}


def test_overlapping_ranges_take_no_longer_than_the_topic_has_messages() -> None:
    """Invariant 9: a small Ack of many large ranges."""
    command = ack(None, [(0, 1_000_000)] * 10_000)
    assert sum(len(piece) for piece in _pieces_of(command, 100)) == 100


def test_ack_of_too_many_messages_is_refused() -> None:
    command = ack(None, [(0, 1 << 40)])
    with pytest.raises(LimitExceeded, match="at most 8388608 messages"):
        list(_pieces_of(command, 1 << 39))
