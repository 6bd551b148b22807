"""Decides for each message of a request whether it can still be cancelled or rescheduled.

A message is *changed* for the subscriptions that have not *received* it: it was not yet delivered
to them. If all have received it, nothing is changed. A message has *lapsed* for a subscription if
it expired, or a quota dropped it, before its first delivery.

A broker that ended uncleanly may have delivered messages without a record. Subscriptions count as
having received such messages.
"""

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
    """The outcome of a request for each of its messages.

    ``statuses`` has an ``AmendStatus`` for each message. ``handed`` has, by the name of a
    subscription, which messages it had received.
    """

    statuses: npt.NDArray[np.uint8]
    handed: Mapping[str, Bools]

    def take(self, rows: Int64s) -> Outcome:
        """Return the outcome of the messages at these rows, in the order of ``rows``."""
        handed = {name: mask[rows] for name, mask in self.handed.items()}
        return Outcome(self.statuses[rows], handed)


class PastMessages(NamedTuple):
    """Messages that were published before the last start of the broker, and are not cancelled.

    If the broker had ended uncleanly, it may have delivered some of them without a record: to
    shared subscriptions those that were due then, and to other subscriptions any of them.

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
        """Select the messages of ``found`` that an earlier broker may have delivered unrecorded.

        Cancelled messages are left out: each delivery before the cancellation is recorded, and
        there was none afterwards.
        """
        before = found.offsets < topic.doubtful_below
        before &= ~topic.amendments.cancelled.contains(found.offsets)
        found = found.pick(before)
        due_ms = topic.amendments.moves.current(found.offsets, found.due_ms)
        return cls(Rows.fresh(due_ms, found.offsets, traits_of(found.batch)), found.published_ms)

    def may_have_had(self, subscription: Subscription) -> Rows:
        """Return the messages that an earlier broker may have delivered to a subscription.

        Messages whose delivery to the subscription is recorded are left out.
        """
        if not (subscription.doubtful_until_ms and self.rows.height):
            return Rows.none()
        rows = self.rows.pick(subscription.may_have_had(self.rows, self.published_ms))
        return rows.pick(~subscription.was_handed(rows.offsets))

    def record(self, subscriptions: Iterable[Subscription], offsets: Int64s) -> None:
        """Record as delivered the messages that each subscription may have received.

        Call this before the messages are changed for other subscriptions. These subscriptions then
        keep them unchanged, and are named in later answers.

        Args:
          offsets: the messages to be changed.
        """
        for subscription in subscriptions:
            rows = self.may_have_had(subscription)
            rows = rows.pick(np.isin(rows.offsets, offsets))
            if rows.height:
                subscription.assume_delivered(rows)


class Decision(NamedTuple):
    """Whether each message of a request can still be changed.

    ``statuses`` has an ``AmendStatus`` for each message. ``settled`` and ``lapsed`` are by the name
    of a subscription. The *settled* messages are those that the subscription received or may have
    received, and those that expired or were dropped for it. The *lapsed* ones of them are those
    that it never received. ``concerned`` names the subscriptions for which the messages would be
    changed.
    """

    statuses: npt.NDArray[np.uint8]
    settled: Mapping[str, Bools]
    lapsed: Mapping[str, Bools]
    concerned: frozenset[str]

    def outcome(self) -> Outcome:
        """Return the outcome, with OVER for messages that lapsed for a concerned subscription."""
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
    """Return which messages at least one subscription has still to get; bool[n].

    Args:
      concerned: the subscriptions that are asked.
      due_ms: the current due time of each message.
      settled: as in ``Decision``.
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
      concerned: the subscriptions for which the messages would be changed.
      past: those of the messages that an earlier broker may have delivered without a record.
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
    # A cancelled message stays cancelled, even if all subscriptions that still exist received it.
    delivered = everybody & ~topic.amendments.cancelled.contains(offsets)
    statuses = np.where(delivered, AmendStatus.DELIVERED, AmendStatus.DONE).astype(np.uint8)
    statuses[(offsets < 0) | (offsets >= topic.next_offset)] = AmendStatus.UNKNOWN
    return Decision(statuses, _some(settled), _some(lapsed), names)


def _some(masks: dict[str, Bools]) -> dict[str, Bools]:
    return {name: mask for name, mask in masks.items() if mask.any()}
