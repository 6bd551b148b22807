"""Ranges of the delivery order of all topics, with about the same number of messages in each.

The delivery order sorts messages by their keys ``(topic, due time, offset)``. The boundaries
between ranges are keys, so even messages due in the same millisecond can be divided. The boundaries
are estimated from a sample. An inaccurate sample only makes ranges uneven. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s

# The approximate number of keys that a sample takes from a log row.
SAMPLED: int = 64


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Some keys of a topic, each of which represents ``weight`` messages."""

    topic_id: int
    due_ms: Int64s
    offsets: Int64s
    weight: float

    @classmethod
    def of(cls, topic_id: int, due_ms: Int64s, offsets: Int64s, stand_for: float) -> Sample:
        """Return an evenly spread sample of these keys.

        Args:
          stand_for: the number of messages that each of the given keys represents.
        """
        step = max(len(due_ms) // SAMPLED, 1)
        order = np.lexsort((offsets, due_ms))[step // 2 :: step]
        weight = stand_for * len(due_ms) / max(len(order), 1)
        return cls(topic_id, due_ms[order], offsets[order], weight)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The boundaries between ranges, as columns of ascending keys. A boundary begins a range."""

    topic_ids: Int64s
    due_ms: Int64s
    offsets: Int64s

    @classmethod
    def cut(cls, samples: Sequence[Sample], count: int) -> Ranges:
        """Return at most ``count`` ranges with about the same number of messages."""
        samples = [sample for sample in samples if len(sample.due_ms)]
        if not samples:
            none = np.zeros(0, np.int64)
            return cls(none, none, none)
        heights = [len(sample.due_ms) for sample in samples]
        topic_ids = np.repeat([sample.topic_id for sample in samples], heights)
        due_ms = np.concatenate([sample.due_ms for sample in samples])
        offsets = np.concatenate([sample.offsets for sample in samples])
        weights = np.repeat([sample.weight for sample in samples], heights)
        order = np.lexsort((offsets, due_ms, topic_ids))
        below = np.cumsum(weights[order]) - weights[order]
        thresholds = np.arange(1, count) * (weights.sum() / count)
        at = np.unique(below.searchsorted(thresholds))
        cuts = order[at[(at > 0) & (at < len(order))]]
        return cls(topic_ids[cuts], due_ms[cuts], offsets[cuts])

    @property
    def count(self) -> int:
        return len(self.topic_ids) + 1

    def of(self, topic_id: int, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.int64]:
        """Return the number of each key's range; int64[n], O(n) for each boundary in the topic."""
        low, high = self.topic_ids.searchsorted([topic_id, topic_id + 1]).tolist()
        found = np.full(len(due_ms), low)
        for cut in range(low, high):
            at_ms = self.due_ms[cut]
            found += (due_ms > at_ms) | ((due_ms == at_ms) & (offsets >= self.offsets[cut]))
        return found
