"""A walk over the delivery order while messages are rescheduled, compared with plain sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.inspection.moved_keys import with_passed
from escapement.storage.encoding.moves import Moves
from escapement.storage.index import Key

DUE_MS = st.integers(0, 20)
MESSAGES = st.lists(DUE_MS, min_size=1, max_size=8)
# Before each step of the walk, some messages get other due times.
STEPS = st.lists(st.dictionaries(st.integers(0, 7), DUE_MS, max_size=4), max_size=12)


@given(MESSAGES, STEPS, st.integers(1, 3), st.integers(0, 5))
def test_walk_misses_no_message_that_is_moved_meanwhile(
    first_ms: list[int], steps: list[dict[int, int]], step_keys: int, start_ms: int
) -> None:
    """B6, B1: it finds each message that it would have found at its old or at its new time."""
    current = dict(enumerate(first_ms))
    index = {(due, offset) for offset, due in current.items()}
    owed = {offset for offset, due in current.items() if due >= start_ms}
    moves = Moves()
    start = position = Key(start_ms, 0)
    found: set[int] = set()
    coming = iter(steps)
    while True:
        for offset, due in next(coming, {}).items():
            if offset not in current:
                continue
            moves.put(np.array([offset]), np.array([due]), np.array([current[offset]]), -7)
            current[offset] = due
            index.add((due, offset))
            if due < start_ms:
                owed.discard(offset)  # it left the range of the walk, perhaps before it was met
        ahead = sorted(key for key in index if key >= position)[:step_keys]
        if not ahead:
            break
        stop = Key(*ahead[-1]).successor()
        due_ms = np.array([due for due, _ in ahead], np.int64)
        offsets = np.array([offset for _, offset in ahead], np.int64)
        due_ms, offsets = with_passed(moves, due_ms, offsets, start, stop)
        keys = list(zip(due_ms.tolist(), offsets.tolist(), strict=True))
        assert keys == sorted(set(keys))
        assert set(ahead) <= set(keys)
        assert all(start <= key < stop for key in keys)
        assert all(key in ahead or current[key[1]] == key[0] for key in keys)
        found |= {offset for due, offset in keys if current[offset] == due}
        position = stop
    assert owed <= found
