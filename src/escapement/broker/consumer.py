"""One consumer of one subscription, as the broker sees it.

A consumer grants *permits*: how many more messages it is willing to be sent. What
it is sent leaves through the callables that its session gave it, so nothing here
knows sockets.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from escapement.broker.backoff import BackOff
from escapement.broker.ready import Rows
from escapement.errors import EscapementError
from escapement.message import MessageBatch


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

    def consumer_closed(self, consumer_id: int, error: EscapementError) -> None:
        """Tell the consumer that the broker ended it, and why."""
        ...


class Consumer:
    """Credit, policy and outlet of one consumer."""

    __slots__ = ("back_off", "closed", "id", "name", "outlet", "permits", "wire_id")

    def __init__(self, id: int, wire_id: int, name: str, outlet: Outlet, back_off: BackOff) -> None:
        self.id = id  # unique in this broker's life
        self.wire_id = wire_id  # as its connection calls it
        self.name = name
        self.outlet = outlet
        self.back_off = back_off
        self.permits = 0
        self.closed = False

    @property
    def capacity(self) -> int:
        """How many messages it may be sent right now."""
        return 0 if self.closed or not self.outlet.has_room else self.permits
