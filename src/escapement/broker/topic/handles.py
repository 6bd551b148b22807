"""Handles that tie a producer or a consumer to one connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.topic import Topic
from escapement.errors import EscapementError


@dataclass(slots=True, eq=False)
class ProducerHandle:
    """One connection's use of a producer name; ``fenced`` is called when another takes over."""

    topic: Topic
    fenced: Callable[[EscapementError], None]
    producer: Producer


@dataclass(slots=True, eq=False)
class ConsumerHandle:
    """One connection's consumer of a subscription, which is looked up by name."""

    topic: Topic
    name: str
    consumer: Consumer

    @property
    def subscription(self) -> Subscription:
        """The current subscription of this name.

        It exists until the consumer is closed. A seek replaces it.
        """
        found = self.topic.subscription(self.name)
        assert found is not None, "a deleted subscription closes its consumers"
        return found
