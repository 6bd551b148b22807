"""The client of one token: its connections, producers and pulling consumers."""

from __future__ import annotations

from typing import Final

import trio

from escapement.client.broker import Broker
from escapement.client.producing.producer import Producer
from escapement.gateway.pool import Pool
from escapement.gateway.pull_consumers import PullConsumers

# The most topics to which a client publishes without opening a producer again.
MOST_PRODUCERS: Final = 1000
# How long a client, a producer or a pulling consumer stays open without a request. When a consumer
# closes, the broker redelivers its messages. So a message must be acknowledged or extended in this
# time, even if the ack wait of its subscription is longer.
IDLE_S: Final = 15 * 60.0


class Client:
    """The client of one token.

    Attributes:
      broker: the connections.
      producers: a producer for each topic, by full name.
      pulls: the pulling consumers.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker: Final = broker
        self.producers: Final[Pool[Producer]] = Pool(
            "topics", MOST_PRODUCERS, IDLE_S, broker.producer, Producer.aclose, _has_failed
        )
        self.pulls: Final = PullConsumers(broker, IDLE_S)
        self.over: Final = trio.Event()  # set when the client is to close its connections
        self.failed = False  # whether its connections have closed for good

    async def close_idle(self) -> None:
        """Close the producers and consumers without requests."""
        await self.producers.close_idle()
        await self.pulls.close_idle()

    async def close(self) -> None:
        """Close everything but the connections, which close when ``over`` is set."""
        await self.pulls.close_all()
        await self.producers.close_all()
        self.over.set()


def _has_failed(producer: Producer) -> bool:
    return producer._error is not None
