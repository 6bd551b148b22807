"""The decision for each message whether it can still be changed, and the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.message import Bools, Int64s
from escapement.protocol.amend_status import AmendStatus
from escapement.storage.log.published import Published
from escapement.traits import traits_of


class Outcome(NamedTuple):
    """The outcome of each message, and which messages each subscription had received."""

    statuses: npt.NDArray[np.uint8]
    handed: Mapping[str, Bools]

    def take(self, rows: Int64s) -> Outcome:
        """Return the rows named, in that order."""
        handed = {name: mask[rows] for name, mask in self.handed.items()}
        return Outcome(self.statuses[rows], handed)


class PastMessages(NamedTuple):
    """Messages from before the last start of the broker that were not changed since.

    A broker that ended uncleanly may have made deliveries that it did not record: of due messages
    to a shared subscription, and of published messages to any other.

    ``rows`` has the messages, by ascending offset; ``published_ms`` is when each was published.
    """

    rows: Rows
    published_ms: Int64s

    @classmethod
    def none(cls) -> PastMessages:
        """Return no messages."""
        return cls(Rows.none(), np.zeros(0, np.int64))

    @classmethod
    def of(cls, topic: Topic, found: Published) -> PastMessages:
        """Return the messages of ``found`` that an earlier broker may have delivered unrecorded.

        A cancelled message is not among them: each delivery before the cancellation is recorded,
        and there was none afterwards.
        """
        before = found.offsets < topic.doubtful_below
        before &= ~topic.amendments.cancelled.contains(found.offsets)
        found = found.pick(before)
        due_ms = topic.amendments.moves.current(found.offsets, found.due_ms)
        return cls(Rows.fresh(due_ms, found.offsets, traits_of(found.batch)), found.published_ms)

    def may_have_had(self, subscription: Subscription) -> Rows:
        """Return the messages that the subscription may have received unrecorded."""
        if not (subscription.doubtful_until_ms and self.rows.height):
            return Rows.none()
        rows = self.rows.pick(subscription.may_have_had(self.rows, self.published_ms))
        return rows.pick(~subscription.was_handed(rows.offsets))

    def record(self, subscriptions: Iterable[Subscription], offsets: Int64s) -> None:
        """Record which of these messages each subscription may have received.

        That must precede a change of the messages: the subscription keeps them as they are, and
        each later answer names it.
        """
        for subscription in subscriptions:
            rows = self.may_have_had(subscription)
            rows = rows.pick(np.isin(rows.offsets, offsets))
            if rows.height:
                subscription.assume_delivered(rows)


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
    topic: Topic, offsets: Int64s, concerned: Iterable[Subscription], past: PastMessages
) -> Decision:
    """Decide whether each message can still be changed.

    Args:
      concerned: the subscriptions for which it would be changed.
      past: those of the messages that an earlier broker may have delivered unrecorded.
    """
    everyone = list(topic.subscriptions())
    names = frozenset(one.record.name for one in concerned)
    settled = {
        one.record.name: one.was_handed(offsets) | np.isin(offsets, past.may_have_had(one).offsets)
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
