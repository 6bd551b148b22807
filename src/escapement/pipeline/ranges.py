"""Ranges of the delivery order of all topics, about equally many messages in each.

Cut at keys (topic, due time, offset), so that also what falls due in one millisecond is cut.
Which keys to cut at is estimated from a sample; what the sample says wrongly makes ranges
uneven, nothing else. Pure: columns in, columns out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s

# Keys of one row of the log that stand for it in a sample.
SAMPLED: int = 64


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Some keys of a topic, each for so many messages."""

    topic_id: int
    due_ms: Int64s
    offsets: Int64s
    weight: float

    @classmethod
    def of(cls, topic_id: int, due_ms: Int64s, offsets: Int64s, stand_for: float) -> Sample:
        """Of these keys, which stand for ``stand_for`` as many, some that are evenly spread."""
        step = max(len(due_ms) // SAMPLED, 1)
        order = np.lexsort((offsets, due_ms))[step // 2 :: step]
        weight = stand_for * len(due_ms) / max(len(order), 1)
        return cls(topic_id, due_ms[order], offsets[order], weight)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Where one range ends and the next begins: columns of keys, ascending."""

    topic_ids: Int64s
    due_ms: Int64s
    offsets: Int64s

    @classmethod
    def cut(cls, samples: Sequence[Sample], count: int) -> Ranges:
        """At most ``count`` ranges, of about equal weight."""
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
        shares = np.arange(1, count) * (weights.sum() / count)
        at = np.unique(below.searchsorted(shares))
        cuts = order[at[(at > 0) & (at < len(order))]]
        return cls(topic_ids[cuts], due_ms[cuts], offsets[cuts])

    @property
    def count(self) -> int:
        return len(self.topic_ids) + 1

    def of(self, topic_id: int, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.int64]:
        """The range that each of a topic's keys lies in; int64[n], O(n) for each of its cuts."""
        low, high = self.topic_ids.searchsorted([topic_id, topic_id + 1]).tolist()
        found = np.full(len(due_ms), low)
        for cut in range(low, high):
            at_ms = self.due_ms[cut]
            found += (due_ms > at_ms) | ((due_ms == at_ms) & (offsets >= self.offsets[cut]))
        return found
