"""The class ``Broker`` of the blocking client, a facade of ``escapement.Broker``.

Each method calls the method of that class with the same name, and waits for its result. Arguments
and errors are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from escapement.client import broker as brokers
from escapement.client.administration.forecast import Forecast, NamespaceForecast
from escapement.client.administration.message_history import MessageHistory
from escapement.client.administration.outcome import Outcomes
from escapement.client.administration.peeking import Upcoming
from escapement.client.administration.reading import Page
from escapement.client.administration.row_acks import topic_of
from escapement.client.constructor import internal
from escapement.client.message_ids import One, What
from escapement.client.selection import Selection
from escapement.errors import Disconnected
from escapement.message import MessageId
from escapement.sync.bulk import Bulk
from escapement.sync.consumption import Consumption
from escapement.sync.groups import Groups
from escapement.sync.inbox import Inbox
from escapement.sync.loop import Loop
from escapement.sync.producer import Producer
from escapement.sync.schedules import Schedules


class Broker:
    """A client of a broker, created by ``connect``. It reconnects when the connection is lost."""

    @internal
    def __init__(self, loop: Loop, broker: brokers.Broker) -> None:
        self._loop = loop
        self._broker = broker

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._broker.name

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits that the broker announced when the client connected first."""
        return self._broker.limits

    @property
    def connected(self) -> bool:
        """Whether the client is connected at the moment."""
        return self._broker.connected

    def because(self, reason: str) -> Broker:
        """Return this client with a reason for its requests; see ``escapement.Broker.because``."""
        return Broker(self._loop, self._broker.because(reason))

    def producer(self, topic: str, **options: Any) -> Producer:
        """Open a producer for a topic; ``options`` are those of ``escapement.Broker.producer``."""
        made = self._loop.call(self._broker.producer, topic, **options)
        return Producer(self._loop, made)

    def consumer(
        self, topic: str, subscription: str, **options: Any
    ) -> AbstractContextManager[Inbox]:
        """Open a consumer of a subscription, for use with ``with``.

        ``options`` are those of ``escapement.Broker.consumer``.
        """
        return Consumption(self._loop, self._broker.consumer(topic, subscription, **options))

    @property
    def groups(self) -> Groups:
        """The message groups of topics: close, list, get or delete them.

        When a subscription has finished all messages of a closed group, the broker publishes a
        follow-up message.
        """
        return Groups(self._loop, self._broker.groups)

    @property
    def schedules(self) -> Schedules:
        """The recurring schedules of the broker: create, list, pause, resume or delete them."""
        return Schedules(self._loop, self._broker.schedules)

    @property
    def bulk(self) -> Bulk:
        """Bulk changes: cancel, reschedule, run now or redrive all messages that match."""
        return Bulk(self._loop, self._broker.bulk)

    def ack_rows(self, table: str, ids: Collection[Any]) -> int:
        """Acknowledge rows of a message table by their ids; see ``escapement.Broker.ack_rows``."""
        return self._loop.call(self._broker.ack_rows, table, ids)

    def hint(self, *tables: str) -> None:
        """Tell the broker that rows were committed; see ``escapement.Broker.hint``."""
        topics = [topic_of(table) for table in tables]
        with suppress(Disconnected):  # a hint that cannot be sent is dropped
            self._loop.post(self._broker.hint, *topics)

    def find(self, topic: str, dedup: str | Sequence[str]) -> list[MessageId | None]:
        """Look up the ids of messages by their dedup keys; see ``escapement.Broker.find``."""
        return self._loop.call(self._broker.find, topic, dedup)

    def cancel(self, what: What | None = None, **options: Any) -> Outcomes:
        """Cancel messages that are not yet delivered; see ``escapement.Broker.cancel``."""
        return self._loop.call(self._broker.cancel, what, **options)

    def select(self, topic: str, **options: Any) -> Selection:
        """Select the pending messages that match; see ``escapement.Broker.select``."""
        return self._loop.call(self._broker.select, topic, **options)

    def reschedule(self, what: What | None = None, **options: Any) -> Outcomes:
        """Change the due time of messages; see ``escapement.Broker.reschedule``."""
        return self._loop.call(self._broker.reschedule, what, **options)

    def run_now(self, what: What | None = None, **options: Any) -> Outcomes:
        """Make messages due now; see ``escapement.Broker.run_now``."""
        return self._loop.call(self._broker.run_now, what, **options)

    def read(
        self, topic: str, start: One = 0, stop: One | None = None, **options: Any
    ) -> Iterator[Page]:
        """Read the messages of a topic by offset, in pages; see ``escapement.Broker.read``."""
        return self._loop.iterate(self._broker.read(topic, start, stop, **options))

    def peek(self, topic: str, **options: Any) -> Iterator[Upcoming]:
        """Show the pending messages of a topic, next due first; see ``escapement.Broker.peek``."""
        return self._loop.iterate(self._broker.peek(topic, **options))

    def show(self, message: One, topic: str | None = None) -> MessageHistory:
        """Return the history and the state of a message; see ``escapement.Broker.show``."""
        return self._loop.call(self._broker.show, message, topic)

    def forecast(self, topic: str, **options: Any) -> Forecast:
        """Count the messages that become due in each span of time.

        See ``escapement.Broker.forecast``.
        """
        return self._loop.call(self._broker.forecast, topic, **options)

    def forecast_namespace(self, namespace: str | None = None, **options: Any) -> NamespaceForecast:
        """Count the messages of a namespace that become due in each span of time, and overdue ones.

        See ``escapement.Broker.forecast_namespace``.
        """
        return self._loop.call(self._broker.forecast_namespace, namespace, **options)

    def pause(self, topic: str, subscription: str | None = None, **options: Any) -> None:
        """Pause deliveries of a topic or a subscription; see ``escapement.Broker.pause``."""
        self._loop.call(self._broker.pause, topic, subscription, **options)

    def resume(self, topic: str, subscription: str | None = None) -> None:
        """Resume deliveries of a topic or a subscription; see ``escapement.Broker.resume``."""
        self._loop.call(self._broker.resume, topic, subscription)

    def admin(self, verb: str, **arguments: Any) -> Any:
        """Send an administrative request by name; see ``escapement.Broker.admin``."""
        return self._loop.call(self._broker.admin, verb, **arguments)
