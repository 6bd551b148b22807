"""Messages that a walk over the delivery order would miss, because they are rescheduled meanwhile.

When the walk reaches the old key of such a message, that key is no longer current, and the current
key may lie where the walk has already been. So a walk that meets an old key takes the message by
its current key. A message may be met twice. Pure.
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
    """Add the current keys in ``[start, stop)`` of messages that were met by an old key.

    Args:
      due_ms, offsets: the keys that the walk has found up to ``stop``. The walk continues there,
        so it still reaches current keys from ``stop`` on.
      start: where the walk began.

    Returns:
      Keys in order, each once. The old keys are still among them.
    """
    stale = moves.stale(due_ms, offsets)
    if stale is None:
        return due_ms, offsets
    moved = offsets[stale]
    current = moves.current(moved, np.full(len(moved), -1)), moved
    due_ms, offsets = merge([(due_ms, offsets), current])
    low, high = position(due_ms, offsets, start), position(due_ms, offsets, stop)
    return due_ms[low:high], offsets[low:high]
