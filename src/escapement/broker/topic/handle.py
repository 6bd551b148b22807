"""One connection's hold on a producer or a consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from escapement.broker.subscription.consumer import Consumer
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.topic import Topic
from escapement.errors import EscapementError


@dataclass(slots=True, eq=False)
class ProducerHandle:
    """One connection's hold on a producer's name; ``fenced`` tells it that it lost it."""

    topic: Topic
    fenced: Callable[[EscapementError], None]
    producer: Producer


@dataclass(slots=True, eq=False)
class ConsumerHandle:
    """One connection's consumer of the subscription of a name, whichever that is now."""

    topic: Topic
    name: str
    consumer: Consumer

    @property
    def subscription(self) -> Subscription:
        """There is one as long as the consumer is not closed; a seek makes it another."""
        found = self.topic.subscription(self.name)
        assert found is not None, "a deleted subscription closes its consumers"
        return found
