"""Keeps a walk over the delivery order from missing messages that are rescheduled meanwhile.

A walk reads the keys ``(due_ms, offset)`` of a topic's messages in ascending order, in steps. A
rescheduled message has an old key and a current key. If it is rescheduled during the walk, its
current key may lie in the part that the walk has already read. So when the walk meets an old key,
it takes the message by its current key. It may take a message twice. Pure.
"""

from __future__ import annotations

import numpy as np

from escapement.message import Int64s
from escapement.storage.encoding.moves import Moves
from escapement.storage.index import Key
from escapement.storage.index.keys import merge, position


def with_passed(
    moves: Moves, due_ms: Int64s, offsets: Int64s, start: Key, stop: Key
) -> tuple[Int64s, Int64s]:
    """Add the current keys of messages whose old keys the walk has just read.

    Only current keys in ``[start, stop)`` are added, because the walk has still to read the keys
    from ``stop`` on.

    Args:
      moves: the topic's rescheduled messages.
      due_ms, offsets: the keys of the walk's last step.
      start: where the walk began.
      stop: where the step ended.

    Returns:
      Ascending keys, each once. The old keys are still among them.
    """
    stale = moves.stale(due_ms, offsets)
    if stale is None:
        return due_ms, offsets
    moved = offsets[stale]
    current = moves.current(moved, np.full(len(moved), -1)), moved
    due_ms, offsets = merge([(due_ms, offsets), current])
    low, high = position(due_ms, offsets, start), position(due_ms, offsets, stop)
    return due_ms[low:high], offsets[low:high]
