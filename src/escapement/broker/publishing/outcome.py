"""What becomes of messages that are to be changed: the decision, for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.log.amendments import Bools
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.protocol.fate import Fate

FORGOTTEN_MS: Final = -2


class Outcome(NamedTuple):
    """What became of each message, and which subscriptions had been handed which."""

    fates: npt.NDArray[np.uint8]
    handed: Mapping[str, Bools]

    def take(self, rows: Int64s) -> Outcome:
        """The rows named, in that order."""
        handed = {name: mask[rows] for name, mask in self.handed.items()}
        return Outcome(self.fates[rows], handed)


def still_wanted(
    concerned: Iterable[Subscription],
    offsets: Int64s,
    due_ms: Int64s,
    handed: Mapping[str, Bools],
) -> Bools:
    """Which messages one of these subscriptions is to get and has not been handed; bool[n].

    Args:
      due_ms: when each is due now; ``FORGOTTEN_MS`` of what the log does not have any more.
      handed: of each subscription that has been handed some, which.
    """
    wanted = np.zeros(len(offsets), bool)
    none = np.zeros(len(offsets), bool)
    for one in concerned:
        # Whoever began at a time that was past may come upon what is left in the index.
        known_ms = np.where(due_ms == FORGOTTEN_MS, one.record.created_at_ms, due_ms)
        wanted |= one.covers(known_ms, offsets) & ~handed.get(one.record.name, none)
    return wanted


def decide(topic: Topic, offsets: Int64s, concerned: Iterable[Subscription]) -> Outcome:
    """Whether each message can still be changed.

    Args:
      concerned: the subscriptions for which it would be.
    """
    handed = {one.record.name: one.was_handed(offsets) for one in topic.subscriptions()}
    masks = [handed[one.record.name] for one in concerned]
    everybody = np.logical_and.reduce(masks) if masks else np.zeros(1, bool)
    # Of those that had it one may be the only subscription left: it stays cancelled.
    delivered = everybody & ~topic.amendments.cancelled.contains(offsets)
    fates = np.where(delivered, Fate.DELIVERED, Fate.DONE).astype(np.uint8)
    fates[(offsets < 0) | (offsets >= topic.next_offset)] = Fate.UNKNOWN
    return Outcome(fates, {name: mask for name, mask in handed.items() if mask.any()})
