"""Invariant 9: what brokers have in memory, compared with their bounds.

A history cannot show this, so it is read from the brokers. The bounds of a simulation are small,
and brokers often reach them.
"""

from __future__ import annotations

from collections.abc import Iterator

from escapement.broker.limits import BrokerLimits
from escapement.broker.services import Services
from escapement.broker.subscription.due_subscription import DueSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.window_budget import LEAST_MESSAGES


def over_bounds(services: Services, limits: BrokerLimits, permits: int) -> Iterator[str]:
    """Yield a line for each bound that a broker exceeds.

    Args:
      permits: the most messages of a subscription that consumers can have at once. They may be
        given back to a full queue of ready messages.
    """
    keys, topics = 0, len(services.registry.active)
    for topic in services.registry.active.values():
        keys += len(topic._coming or ())
        for subscription in topic.subscriptions():
            yield from _of_subscription(subscription, limits, permits)
    index, pipeline = services.index, services.pipeline
    pairs = {
        # Each topic may have a small window, even if those of all topics are large.
        "keys in timing wheels": (keys, 2 * (limits.window_messages + topics * LEAST_MESSAGES)),
        "bytes of the index": (index.memory_bytes, limits.index_memory_bytes),
        "bytes that wait for commit": (pipeline.waiting_bytes, limits.commit_waiting_bytes),
        "undurable acknowledgements": (pipeline.waiting_acks, 2 * limits.unwritten_acks),
    }
    for name, (number, most) in pairs.items():
        if number > most:
            yield f"9: {number} {name}, and the bound is {most}"


def _of_subscription(
    subscription: Subscription, limits: BrokerLimits, permits: int
) -> Iterator[str]:
    name = subscription.record.name
    if isinstance(subscription, DueSubscription):
        for band in subscription.bands:
            if (number := band.ready.untried) > (most := limits.ready_messages + permits):
                yield f"9: {number} ready messages of {name}, and the bound is {most}"
    if (number := len(subscription.in_flight)) > limits.unacked_messages:
        yield f"9: {number} messages of {name} in flight"
