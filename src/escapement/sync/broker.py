"""The blocking face of ``escapement.Broker``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from escapement.client import broker as brokers
from escapement.client.forecast import Forecast
from escapement.client.life import Life
from escapement.client.naming import One, What
from escapement.client.outcome import Outcomes
from escapement.client.peeking import Upcoming
from escapement.client.reading import Page
from escapement.client.selection import Selection
from escapement.message import MessageId
from escapement.sync.groups import Groups
from escapement.sync.inbox import Inbox
from escapement.sync.loop import Loop
from escapement.sync.producer import Producer
from escapement.sync.schedules import Schedules


class Broker:
    """A connection to a broker, kept up. Made by ``connect``."""

    def __init__(self, loop: Loop, broker: brokers.Broker) -> None:
        self._loop = loop
        self._broker = broker

    @property
    def name(self) -> str:
        """What the broker calls itself."""
        return self._broker.name

    @property
    def limits(self) -> Mapping[str, Any]:
        """How much it takes, as it said when we first connected."""
        return self._broker.limits

    @property
    def connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._broker.connected

    def producer(self, topic: str, **options: Any) -> Producer:
        """A producer for a topic; options as in ``escapement.Broker.producer``."""
        made = self._loop.call(partial(self._broker.producer, topic, **options))
        return Producer(self._loop, made)

    @contextmanager
    def consumer(self, topic: str, subscription: str, **options: Any) -> Iterator[Inbox]:
        """An inbox on a subscription; options as in ``escapement.Broker.consumer``."""
        context = self._loop.call(partial(self._broker.consumer, topic, subscription, **options))
        with self._loop.wrap_async_context_manager(context) as inbox:
            face = Inbox(self._loop, inbox)
            try:
                yield face
            finally:
                self._loop.call(face.hand_over)

    @property
    def groups(self) -> Groups:
        """Groups of messages, and what follows when a subscription is done with one."""
        return Groups(self._loop, self._broker.groups)

    @property
    def schedules(self) -> Schedules:
        """What the broker publishes again and again."""
        return Schedules(self._loop, self._broker.schedules)

    def find(self, topic: str, dedup: str | Sequence[str]) -> list[MessageId | None]:
        """The messages that were published with dedup keys; see ``escapement.Broker.find``."""
        return self._loop.call(self._broker.find, topic, dedup)

    def cancel(self, what: What | None = None, **options: Any) -> Outcomes:
        """Cancel messages not handed out yet; see ``escapement.Broker.cancel``."""
        return self._loop.call(partial(self._broker.cancel, what, **options))

    def select(self, topic: str, **options: Any) -> Selection:
        """The pending messages that match; see ``escapement.Broker.select``."""
        return self._loop.call(partial(self._broker.select, topic, **options))

    def reschedule(self, what: What | None = None, **options: Any) -> Outcomes:
        """Give messages another time; see ``escapement.Broker.reschedule``."""
        return self._loop.call(partial(self._broker.reschedule, what, **options))

    def run_now(self, what: What | None = None, **options: Any) -> Outcomes:
        """Have messages due now; see ``escapement.Broker.run_now``."""
        return self._loop.call(partial(self._broker.run_now, what, **options))

    def read(
        self, topic: str, start: int = 0, stop: int | None = None, **options: Any
    ) -> Iterator[Page]:
        """A topic's messages by offset, page by page; see ``escapement.Broker.read``."""
        reading = self._broker.read(topic, start, stop, **options)

        async def next_page() -> Page | None:
            return await anext(reading, None)

        return iter(lambda: self._loop.call(next_page), None)

    def peek(self, topic: str, **options: Any) -> Iterator[Upcoming]:
        """What is pending, next due first; see ``escapement.Broker.peek``."""
        peeking = self._broker.peek(topic, **options)

        async def next_one() -> Upcoming | None:
            return await anext(peeking, None)

        return iter(lambda: self._loop.call(next_one), None)

    def show(self, message: One, topic: str | None = None) -> Life:
        """One message's life; see ``escapement.Broker.show``."""
        return self._loop.call(partial(self._broker.show, message, topic))

    def forecast(self, topic: str, **options: Any) -> Forecast:
        """How many messages fall due when; see ``escapement.Broker.forecast``."""
        return self._loop.call(partial(self._broker.forecast, topic, **options))

    def pause(self, topic: str, subscription: str | None = None, **options: Any) -> None:
        """Have nothing more handed out; see ``escapement.Broker.pause``."""
        self._loop.call(partial(self._broker.pause, topic, subscription, **options))

    def resume(self, topic: str, subscription: str | None = None) -> None:
        """Hand out again what is due; see ``escapement.Broker.resume``."""
        self._loop.call(self._broker.resume, topic, subscription)

    def admin(self, verb: str, **arguments: Any) -> Any:
        """Ask the broker by name, with plain arguments; returns its plain answer."""
        return self._loop.call(partial(self._broker.admin, verb, **arguments))
