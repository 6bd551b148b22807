"""One consumer of one subscription, as the broker sees it.

A consumer grants *permits*: the number of further messages that it accepts. When it halts, all its
permits are void, and it gets nothing before it grants new ones. Messages are sent through the
consumer's *outlet*, which its session provides. So this module needs no sockets.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.delivery.ack_waits import AckWaits
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.retries.backoff import BackOff
from escapement.errors import EscapementError
from escapement.message import MessageBatch
from escapement.protocol.limits import MAX_PERMITS
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.traits import KeyRange


class Outlet(Protocol):
    """The session of a consumer, which sends its frames."""

    @property
    def has_room(self) -> bool:
        """Whether the connection's outbound buffer accepts more now."""
        ...

    def deliver(
        self,
        consumer_id: int,
        rows: Rows,
        redelivered: npt.NDArray[np.bool_] | None,
        batch: MessageBatch,
        waits: AckWaits,
    ) -> None:
        """Queue a frame of messages for the consumer; never block."""
        ...

    def active(self, consumer_id: int, active: bool) -> None:
        """Tell a consumer in arrival order whether it is the active one of its subscription."""
        ...

    def rewound(self, consumer_id: int, subscription_id: int) -> None:
        """Tell the consumer that a seek has taken back its in-flight messages.

        Args:
          subscription_id: the new id of the subscription.
        """
        ...

    def consumer_closed(self, consumer_id: int, error: EscapementError) -> None:
        """Tell the consumer that the broker closed it, and why."""
        ...


class Consumer:
    """The permits, back-off policy and outlet of one consumer."""

    __slots__ = (
        "_default_ack_wait_ms",
        "asked_ack_wait_ms",
        "back_off",
        "closed",
        "halts",
        "id",
        "key_range",
        "name",
        "outlet",
        "permits",
        "wire_id",
    )

    def __init__(
        self,
        id: int,
        wire_id: int,
        name: str,
        outlet: Outlet,
        ack_wait_ms: int,
        default_ack_wait_ms: int,
        key_range: KeyRange = None,
    ) -> None:
        """Create a consumer that has not joined yet.

        Args:
          id: unique within this broker process.
          wire_id: the id that its connection uses.
          ack_wait_ms: the requested ack wait; 0 uses that of its subscription.
          default_ack_wait_ms: used if neither the consumer nor its subscription sets an ack wait.
          key_range: the range of keys whose messages it asks for; see
            :mod:`~escapement.broker.subscription.keys.key_ranges`.
        """
        self.id = id
        self.wire_id = wire_id
        self.name = name
        self.key_range = key_range
        self.outlet = outlet
        self.permits = 0
        self.closed = False
        self.halts = 0  # how often it has halted
        self.asked_ack_wait_ms = ack_wait_ms
        self._default_ack_wait_ms = default_ack_wait_ms
        self.back_off = BackOff(ack_wait_ms)

    def obey(self, policy: SubscriptionPolicy) -> None:
        """Use the ack wait and back-off of the subscription's policy from the next delivery on."""
        self.back_off = BackOff(
            self.asked_ack_wait_ms or policy.ack_wait_ms or self._default_ack_wait_ms,
            policy.min_backoff_ms,
            policy.max_backoff_ms,
            policy.jitter,
        )

    def grant(self, permits: int) -> None:
        """Accept this many more messages."""
        self.permits = min(self.permits + permits, MAX_PERMITS)

    def halt(self) -> None:
        """Accept no more messages. The permits of runs that are not sent yet are void, too."""
        self.halts += 1
        self.permits = 0

    def give_back(self, permits: int, halts: int) -> None:
        """Take permits back for messages that were not sent.

        Args:
          halts: how often the consumer had halted when it was to get the messages.
        """
        if halts == self.halts:
            self.permits += permits

    @property
    def capacity(self) -> int:
        """The number of messages that the consumer may be sent now."""
        if self.closed or not self.outlet.has_room:
            return 0
        return self.permits
