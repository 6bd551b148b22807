"""What becomes of messages that are to be changed: the decision, for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.log.amendments import Bools
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.protocol.fate import Fate


class Outcome(NamedTuple):
    """What became of each message, and which subscriptions had been handed which."""

    fates: npt.NDArray[np.uint8]
    handed: Mapping[str, Bools]

    def take(self, rows: Int64s) -> Outcome:
        """The rows named, in that order."""
        handed = {name: mask[rows] for name, mask in self.handed.items()}
        return Outcome(self.fates[rows], handed)


class PastTimes(NamedTuple):
    """When messages from before the last start of the broker were due, and were published.

    Columns of equal height; offsets ascend. A broker that ended uncleanly may have handed out
    what was due to a shared subscription, and what was published to another one, without
    having recorded it.
    """

    offsets: Int64s
    due_ms: Int64s
    published_ms: Int64s

    @classmethod
    def none(cls) -> PastTimes:
        """Those of no message."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing)

    def may_have_had(self, subscription: Subscription, offsets: Int64s) -> Bools:
        """Which of ``offsets`` the subscription may have been handed unrecorded; bool[n]."""
        found = np.zeros(len(offsets), bool)
        if subscription.doubtful_until_ms and len(self.offsets):
            doubtful = subscription.may_have_had(self.due_ms, self.published_ms)
            found |= np.isin(offsets, self.offsets[doubtful])
        return found


class Decision(NamedTuple):
    """Whether each message can still be changed, and what each subscription is done with.

    ``settled`` has of each subscription that had been handed some, or may have been by a broker
    that ended uncleanly, or has let them go, which;
    ``lapsed`` which of these it let go without having been handed them. In ``concerned`` stand
    those for which messages are changed.
    """

    fates: npt.NDArray[np.uint8]
    settled: Mapping[str, Bools]
    lapsed: Mapping[str, Bools]
    concerned: frozenset[str]

    def outcome(self) -> Outcome:
        """What is answered: delivered is what all had been handed, and nobody let go."""
        fates = self.fates.copy()
        handed = dict(self.settled)
        for name, mask in self.lapsed.items():
            if name in self.concerned:
                fates[mask & (fates == Fate.DELIVERED)] = Fate.OVER
            handed[name] = handed[name] & ~mask
        return Outcome(fates, _some(handed))


def still_wanted(
    concerned: Iterable[Subscription],
    offsets: Int64s,
    due_ms: Int64s,
    settled: Mapping[str, Bools],
) -> Bools:
    """Which messages one of these subscriptions is to get and is not done with; bool[n].

    Args:
      due_ms: when each is due now.
      settled: of each subscription that is done with some, which.
    """
    wanted = np.zeros(len(offsets), bool)
    none = np.zeros(len(offsets), bool)
    for one in concerned:
        wanted |= one.covers(due_ms, offsets) & ~settled.get(one.record.name, none)
    return wanted


def decide(
    topic: Topic, offsets: Int64s, concerned: Iterable[Subscription], past: PastTimes
) -> Decision:
    """Whether each message can still be changed.

    Args:
      concerned: the subscriptions for which it would be.
      past: the times of those from before the last start of the broker.
    """
    everyone = list(topic.subscriptions())
    names = frozenset(one.record.name for one in concerned)
    settled = {
        one.record.name: one.was_handed(offsets) | past.may_have_had(one, offsets)
        for one in everyone
    }
    lapsed = {one.record.name: one.has_lapsed(offsets) for one in everyone if one.lets_go}
    masks = [settled[name] for name in names]
    everybody = np.logical_and.reduce(masks) if masks else np.zeros(1, bool)
    # Of those that had it one may be the only subscription left: it stays cancelled.
    delivered = everybody & ~topic.amendments.cancelled.contains(offsets)
    fates = np.where(delivered, Fate.DELIVERED, Fate.DONE).astype(np.uint8)
    fates[(offsets < 0) | (offsets >= topic.next_offset)] = Fate.UNKNOWN
    return Decision(fates, _some(settled), _some(lapsed), names)


def _some(masks: dict[str, Bools]) -> dict[str, Bools]:
    return {name: mask for name, mask in masks.items() if mask.any()}
