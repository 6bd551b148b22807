"""Messages that a walk over the delivery order would miss, because they are rescheduled meanwhile.

When the walk reaches the old key of such a message, that key is no longer current, and the current
key may lie where the walk has already been. So a walk that meets an old key takes the message by
its current key. A message may be met twice. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s
from escapement.storage.encoding.moves import Moves
from escapement.storage.index import Key


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
    moved = np.unique(offsets[stale])
    now_ms = moves.current(moved, np.full(len(moved), -1))
    here = ~_before(now_ms, moved, start) & _before(now_ms, moved, stop)
    due_ms = np.concatenate((due_ms, now_ms[here]))
    offsets = np.concatenate((offsets, moved[here]))
    order = np.lexsort((offsets, due_ms))
    due_ms, offsets = due_ms[order], offsets[order]
    once = np.ones(len(order), bool)
    once[1:] = (due_ms[1:] != due_ms[:-1]) | (offsets[1:] != offsets[:-1])
    return due_ms[once], offsets[once]


def _before(due_ms: Int64s, offsets: Int64s, key: Key) -> npt.NDArray[np.bool_]:
    """Return which keys lie before ``key``; bool[n]."""
    same = (due_ms == key.due_ms) & (offsets < key.offset)
    before: npt.NDArray[np.bool_] = (due_ms < key.due_ms) | same
    return before
