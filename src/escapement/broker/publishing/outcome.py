"""The decision for each message whether it can still be changed, and the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.message import Bools, Int64s
from escapement.protocol.amend_status import AmendStatus


class Outcome(NamedTuple):
    """The outcome of each message, and which messages each subscription had received."""

    statuses: npt.NDArray[np.uint8]
    handed: Mapping[str, Bools]

    def take(self, rows: Int64s) -> Outcome:
        """Return the rows named, in that order."""
        handed = {name: mask[rows] for name, mask in self.handed.items()}
        return Outcome(self.statuses[rows], handed)


class PastTimes(NamedTuple):
    """The due and publish times of messages from before the last start of the broker.

    Columns of equal height; offsets ascend. A broker that ended uncleanly may have made deliveries
    that it did not record: of due messages to a shared subscription, and of published messages to
    any other.
    """

    offsets: Int64s
    due_ms: Int64s
    published_ms: Int64s

    @classmethod
    def none(cls) -> PastTimes:
        """Return the times of no message."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing)

    def may_have_had(self, subscription: Subscription, offsets: Int64s) -> Bools:
        """Return which messages the subscription may have received unrecorded; bool[n]."""
        found = np.zeros(len(offsets), bool)
        if subscription.doubtful_until_ms and len(self.offsets):
            doubtful = subscription.may_have_had(self.due_ms, self.published_ms)
            found |= np.isin(offsets, self.offsets[doubtful])
        return found


class Decision(NamedTuple):
    """Whether each message can still be changed, and the messages each subscription is done with.

    ``settled`` has by subscription the messages that it received or may have received from a broker
    that ended uncleanly, and those that expired or were dropped. ``lapsed`` has those of them that
    expired or were dropped without a delivery. ``concerned`` names the subscriptions for which
    messages are changed.
    """

    statuses: npt.NDArray[np.uint8]
    settled: Mapping[str, Bools]
    lapsed: Mapping[str, Bools]
    concerned: frozenset[str]

    def outcome(self) -> Outcome:
        """Return the outcome. A message that lapsed for a concerned subscription is over."""
        statuses = self.statuses.copy()
        handed = dict(self.settled)
        for name, mask in self.lapsed.items():
            if name in self.concerned:
                statuses[mask & (statuses == AmendStatus.DELIVERED)] = AmendStatus.OVER
            handed[name] = handed[name] & ~mask
        return Outcome(statuses, _some(handed))


def still_wanted(
    concerned: Iterable[Subscription],
    offsets: Int64s,
    due_ms: Int64s,
    settled: Mapping[str, Bools],
) -> Bools:
    """Return which messages at least one of these subscriptions has yet to get; bool[n].

    Args:
      due_ms: when each message is due now.
      settled: by subscription, the messages that it is done with.
    """
    wanted = np.zeros(len(offsets), bool)
    none = np.zeros(len(offsets), bool)
    for one in concerned:
        wanted |= one.covers(due_ms, offsets) & ~settled.get(one.record.name, none)
    return wanted


def decide(
    topic: Topic, offsets: Int64s, concerned: Iterable[Subscription], past: PastTimes
) -> Decision:
    """Decide whether each message can still be changed.

    Args:
      concerned: the subscriptions for which it would be changed.
      past: the times of the messages from before the last start of the broker.
    """
    everyone = list(topic.subscriptions())
    names = frozenset(one.record.name for one in concerned)
    settled = {
        one.record.name: one.was_handed(offsets) | past.may_have_had(one, offsets)
        for one in everyone
    }
    lapsed = {one.record.name: one.has_lapsed(offsets) for one in everyone if one.may_have_lapsed}
    masks = [settled[name] for name in names]
    everybody = np.logical_and.reduce(masks) if masks else np.zeros(1, bool)
    # A cancelled message stays cancelled, even if every subscription that is left had received it.
    delivered = everybody & ~topic.amendments.cancelled.contains(offsets)
    statuses = np.where(delivered, AmendStatus.DELIVERED, AmendStatus.DONE).astype(np.uint8)
    statuses[(offsets < 0) | (offsets >= topic.next_offset)] = AmendStatus.UNKNOWN
    return Decision(statuses, _some(settled), _some(lapsed), names)


def _some(masks: dict[str, Bools]) -> dict[str, Bools]:
    return {name: mask for name, mask in masks.items() if mask.any()}
