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
    """One connection's use of a producer name.

    ``fenced`` is called with the error when another connection takes the name over, or when the
    topic was deleted.
    """

    topic: Topic
    fenced: Callable[[EscapementError], None]
    producer: Producer


@dataclass(slots=True, eq=False)
class ConsumerHandle:
    """One connection's consumer of the topic's subscription ``name``."""

    topic: Topic
    name: str
    consumer: Consumer

    @property
    def subscription(self) -> Subscription:
        """The topic's current subscription of this name; after a seek it is a new object.

        The subscription exists until the consumer is closed.
        """
        found = self.topic.subscription(self.name)
        assert found is not None, "a deleted subscription closes its consumers"
        return found
