"""A shared subscription with one consumer, and its index as a plain dict."""

from __future__ import annotations

from typing import Any

import numpy as np

from escapement.broker.limits import BrokerLimits
from escapement.broker.log.amendments import Amendments
from escapement.broker.metering.totals import Totals
from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.retries.backoff import DEFAULT_ACK_WAIT_MS
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Environment
from escapement.message import Int64s
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.index import KEY_MIN, Key


class Outlet:
    """A connection that accepts every frame."""

    has_room = True

    def deliver(self, *frame: Any) -> None: ...

    def active(self, consumer_id: int, active: bool) -> None: ...

    def consumer_closed(self, consumer_id: int, error: Exception) -> None: ...


def column(*values: int) -> Int64s:
    return np.array(values, np.int64)


def subscription(ready_messages: int = 4, large_offer: int = 2048) -> SharedSubscription:
    """Return a subscription at time 0 that has read nothing, with a consumer of 1,000 permits."""
    record = SubscriptionRecord(1, 1, "s", "shared", 0, 0, 0, 0, 0, 1)
    limits = BrokerLimits(ready_messages=ready_messages, large_offer=large_offer)
    environment = Environment(
        limits, lambda item: None, np.random.default_rng(0), Amendments(), lambda it: None, Totals()
    )
    made = SharedSubscription(record, environment, 0, KEY_MIN)
    consumer = Consumer(1, 1, "c", Outlet(), 0, DEFAULT_ACK_WAIT_MS)
    consumer.permits = 1_000
    made.join(consumer)
    return made


def handed(made: SharedSubscription, now_ms: int) -> list[int]:
    """Deliver all that is ready, and return its offsets."""
    offsets: list[int] = []
    while hands := made.assign(now_ms, 100):
        offsets += [offset for hand in hands for offset in hand.rows.offsets.tolist()]
    return offsets


def scan(made: SharedSubscription, index: dict[int, int], now_ms: int) -> None:
    """Read the backlog up to ``now_ms`` in one step."""
    mark = made.bands.normal.mark
    assert mark is not None
    found = sorted(
        (due_ms, offset)
        for offset, due_ms in index.items()
        if mark <= Key(due_ms, offset) < Key(now_ms + 1, 0)
    )
    made.bands.normal.begin_scan(Key(now_ms + 1, 0), True)
    made.end_scan(
        [made.bands.normal],
        column(*[due for due, _ in found]),
        column(*[offset for _, offset in found]),
    )
