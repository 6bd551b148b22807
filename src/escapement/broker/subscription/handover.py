"""What goes to a consumer in one frame."""

from __future__ import annotations

from typing import NamedTuple

from escapement.broker.subscription.consumer import Consumer
from escapement.broker.subscription.ready import Rows
from escapement.message import MessageBatch


class HandOver(NamedTuple):
    """One run for one consumer, already in flight; the payload where it is at hand."""

    consumer: Consumer
    rows: Rows
    delivery_id: int
    batch: MessageBatch | None
    tried: bool = False  # these have waited out a back-off
