"""A run: messages that one consumer gets together, on their way into a frame."""

from __future__ import annotations

from typing import NamedTuple

from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import MessageBatch


class HandOver(NamedTuple):
    """A run that is already in flight; ``batch`` has its messages if they are in memory."""

    consumer: Consumer
    rows: Rows
    delivery_id: int
    halts: int  # how often the consumer had halted when the run was put in flight
    batch: MessageBatch | None = None
    tried: bool = False  # whether the messages have waited out a back-off
    # When the messages are taken back unless they are acknowledged: NEVER_MS without an ack wait,
    # None if it differs between them.
    deadline_ms: int | None = None
