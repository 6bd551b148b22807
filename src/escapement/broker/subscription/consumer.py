"""One consumer of one subscription, as the broker sees it.

A consumer grants *permits*: how many more messages it is willing to be sent. What
it is sent leaves through the callables that its session gave it, so nothing here
knows sockets.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.backoff import BackOff
from escapement.broker.subscription.ready import Rows
from escapement.errors import EscapementError
from escapement.message import MessageBatch
from escapement.storage.policy import SubscriptionPolicy
from escapement.traits import KeyRange


class Outlet(Protocol):
    """Where a consumer's frames go: its session."""

    @property
    def has_room(self) -> bool:
        """Whether the connection's outbound buffer takes more now."""
        ...

    def deliver(
        self,
        consumer_id: int,
        rows: Rows,
        redelivered: npt.NDArray[np.bool_] | None,
        batch: MessageBatch,
    ) -> None:
        """Queue a frame of messages for the consumer; never blocks."""
        ...

    def active(self, consumer_id: int, active: bool) -> None:
        """Tell a failover consumer whether it is its turn."""
        ...

    def rewound(self, consumer_id: int) -> None:
        """Tell the consumer that what it was sent is taken back: its subscription was sought."""
        ...

    def consumer_closed(self, consumer_id: int, error: EscapementError) -> None:
        """Tell the consumer that the broker ended it, and why."""
        ...


class Consumer:
    """Credit, policy and outlet of one consumer."""

    __slots__ = (
        "_default_ack_wait_ms",
        "asked_ack_wait_ms",
        "back_off",
        "closed",
        "halted",
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
        """A consumer that has not joined yet.

        Args:
          id: unique in this broker's life; ``wire_id`` is what its connection calls it.
          ack_wait_ms: what it asked for; 0 leaves it to its subscription.
          default_ack_wait_ms: what counts where neither says.
          key_range: the keys it wants; see ``broker.keyranges``.
        """
        self.id = id
        self.wire_id = wire_id
        self.name = name
        self.key_range = key_range
        self.outlet = outlet
        self.permits = 0
        self.closed = False
        self.halted = False  # it is about to leave, and knows all that it was sent
        self.asked_ack_wait_ms = ack_wait_ms
        self._default_ack_wait_ms = default_ack_wait_ms
        self.back_off = BackOff(ack_wait_ms)

    def obey(self, policy: SubscriptionPolicy) -> None:
        """Wait as the subscription's policy says, from the next delivery on."""
        self.back_off = BackOff(
            self.asked_ack_wait_ms or policy.ack_wait_ms or self._default_ack_wait_ms,
            policy.min_backoff_ms,
            policy.max_backoff_ms,
            policy.jitter,
        )

    @property
    def capacity(self) -> int:
        """How many messages it may be sent right now."""
        if self.closed or self.halted or not self.outlet.has_room:
            return 0
        return self.permits
