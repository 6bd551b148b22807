"""One connection's hold on a producer or a consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from escapement.broker.consumer import Consumer
from escapement.broker.producer import Producer
from escapement.broker.subscription import Subscription
from escapement.broker.topic import Topic
from escapement.errors import EscapementError


@dataclass(slots=True, eq=False)
class ProducerHandle:
    """One connection's hold on a producer's name; ``fenced`` tells it that it lost it."""

    topic: Topic
    fenced: Callable[[EscapementError], None]
    producer: Producer


@dataclass(slots=True, eq=False)
class ConsumerHandle:
    """One connection's consumer."""

    topic: Topic
    subscription: Subscription
    consumer: Consumer
