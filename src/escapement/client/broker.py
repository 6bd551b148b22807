"""The class ``Broker``: the operations of a client on a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

from escapement.client import delivery_times
from escapement.client.administration.amending import amend
from escapement.client.administration.finding import find
from escapement.client.administration.forecast import Forecast
from escapement.client.administration.message_history import MessageHistory
from escapement.client.administration.outcome import Outcomes
from escapement.client.administration.peeking import Peeking
from escapement.client.administration.reading import Reading
from escapement.client.administration.schedules import Schedules
from escapement.client.connection.line import Line
from escapement.client.connection.retried_request import ask_verb
from escapement.client.consuming.inbox import Inbox
from escapement.client.delivery_times import Delay, Where
from escapement.client.message_ids import One, What, name_message
from escapement.client.producing.groups import Groups
from escapement.client.producing.producer import Producer
from escapement.client.producing.producer_bounds import Bounds
from escapement.client.selection import Selection, criteria, select
from escapement.client.serializers import SerializerLike
from escapement.errors import InvalidRequest
from escapement.message import NO_TIME, MessageId
from escapement.protocol import commands as wire
from escapement.traits import KeyRange


class Broker:
    """A client of a broker, created by ``connect``, that reconnects when needed."""

    def __init__(self, line: Line, welcome: wire.Welcome) -> None:
        self._line = line
        self._welcome = welcome

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._welcome.broker

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits that the broker announced on the first connection."""
        return self._welcome.limits

    @property
    def connected(self) -> bool:
        """Whether the client is connected at the moment."""
        return self._line.link is not None

    async def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        serializer: SerializerLike = bytes,
        linger: Delay = (1, "ms"),
        max_batch_messages: int = 10_000,
        max_batch_bytes: int = 1024 * 1024,
        max_in_flight_messages: int = 100_000,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        send_timeout: Delay = (30, "s"),
    ) -> Producer:
        """Open a producer for a topic, creating the topic if it does not exist.

        Args:
          topic: ``tenant/namespace/name``, or ``name`` in public/default.
          name: the name of the producer, which makes publishing exactly-once across restarts.
            A new producer of the name continues at its ``next_sequence`` and fences the
            earlier one. Without a name, publishing is exactly-once for the life of this
            object.
          serializer: how to convert values to bytes; see ``escapement.client.serializers``.
          linger: the longest time to collect messages for the next batch while another batch
            is unanswered.
          max_batch_messages, max_batch_bytes: the bounds of a batch, within the limits of the
            broker. A single message may exceed ``max_batch_bytes``, up to the broker's limit.
          max_in_flight_messages, max_in_flight_bytes: the bounds of messages without a
            receipt. Sending waits while one of them is reached.
          send_timeout: the longest wait for a receipt. After it the send fails, and the
            message may or may not be stored, unless the error tells.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        bounds = Bounds(
            linger_s=delivery_times.delay_ms(linger) / 1000,
            batch_messages=max_batch_messages,
            batch_bytes=max_batch_bytes,
            in_flight_messages=max_in_flight_messages,
            in_flight_bytes=max_in_flight_bytes,
            send_timeout_s=delivery_times.delay_ms(send_timeout) / 1000,
        ).within(self.limits)
        producer = Producer(self._line, topic, name, serializer, bounds)
        self._line.attach(producer)
        await producer._wait_opened()
        return producer

    @asynccontextmanager
    async def consumer(
        self,
        topic: str,
        subscription: str,
        *,
        kind: str = "shared",
        position: Where = "latest",
        permits: int = 1000,
        ack_wait: Delay | None = None,
        serializer: SerializerLike = bytes,
        name: str = "",
        key_range: KeyRange = None,
    ) -> AsyncIterator[Inbox]:
        """Open a consumer of a subscription, creating the subscription if it does not exist.

        When the block ends, the client sends all acknowledgements, and the broker redelivers
        the remaining messages at once.

        Args:
          topic: as for ``producer``.
          subscription: the name of the subscription.
          kind: shared, exclusive or failover.
          position: where a new subscription begins: latest, earliest, an offset, or an aware
            datetime. A datetime selects messages due from then on (shared), or accepted from
            then on (exclusive and failover).
          permits: the size of the delivery buffer in messages. Messages that the application
            has received do not count.
          ack_wait: how long a message may stay unacknowledged before the broker redelivers
            it; None is the setting of the subscription. The broker refuses a time longer than
            the subscription's ``max_backoff``.
          serializer: how to convert payloads to values; see ``escapement.client.serializers``.
          name: the name of this consumer, shown in the broker's administration.
          key_range: for a shared subscription, receive only messages whose keys have a slot
            in ``(first, last)`` (``escapement.slot_of``), or in a range that the subscription
            assigns ("auto"). Messages without a key go to any consumer.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        inbox = Inbox(
            self._line,
            topic,
            subscription,
            kind=kind,
            position=position,
            permits=permits,
            ack_wait_ms=0 if ack_wait is None else delivery_times.delay_ms(ack_wait),
            choice=serializer,
            name=name,
            key_range=key_range,
        )
        self._line.attach(inbox)
        await inbox._wait_opened()
        try:
            yield inbox
        finally:
            await inbox.aclose()

    @property
    def groups(self) -> Groups:
        """The groups of messages, which publish a follow-up at group completion."""
        return Groups(self.admin)

    @property
    def schedules(self) -> Schedules:
        """The recurring schedules of the broker."""
        return Schedules(self.admin)

    async def find(self, topic: str, dedup: str | Sequence[str]) -> list[MessageId | None]:
        """Return the ids of messages by their dedup keys, or None for an unknown key.

        A key is known from the moment its message is durable, for the length of the topic's
        dedup window (``dedup_window_ms``).

        Raises:
          InvalidRequest: if a key is not valid.
          NotFound: if the topic does not exist.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        name, offsets = await find(self._line, topic, dedup)
        return [MessageId(name, offset) if offset >= 0 else None for offset in offsets.tolist()]

    async def cancel(
        self,
        what: What | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        dedup: str | Sequence[str] | None = None,
    ) -> Outcomes:
        """Cancel messages for every subscription that has not received them yet.

        The outcome is final, also across crashes. A message that is ``done`` is never
        delivered to these subscriptions. A message that is ``DELIVERED`` had been delivered to
        every subscription. A message that is ``OVER`` will be delivered to no subscription,
        and some may never have received it. A subscription in ``handed`` had received the
        message before; it keeps the message, with its retries.

        After an unclean stop of the broker, messages that were due before its restart may have
        been delivered. They count as delivered until they are acknowledged: a message that all
        subscriptions may have received is ``DELIVERED``. Cancelling a cancelled message
        changes nothing.

        Args:
          what: ids, receipts (of ``send`` and ``send_many``) or delivered messages of one
            topic, one or several; a result of ``select``; or offsets, also as an int64 array.
          topic: the topic of offsets, keys and dedup keys, as for ``producer``.
          key: instead of ``what``, all messages with this key that are pending during the
            search. Messages published in the meantime are not included.
          dedup: instead of ``what``, the dedup keys of the messages, which are known for the
            length of the topic's dedup window.

        Raises:
          InvalidRequest: if these are not messages of one topic. Nothing is sent.
          NotFound: if the topic does not exist.
          EscapementError: if the broker refuses, or does not answer in time. If there are more
            than 32,768 messages, some may be cancelled.
        """
        return await amend(self._line, what, topic, key, dedup, wire.Cancel)

    async def select(
        self,
        topic: str,
        *,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        key: str | None = None,
        properties: Mapping[str, Any] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Selection:
        """Select the pending messages that match, to count, cancel or reschedule them.

        Selecting changes nothing: ``len`` of the result serves as a dry run. Pass the result
        to ``cancel`` or ``reschedule``. The broker searches page by page. A search by time
        reads only the index; a search by key or properties reads the messages.

        Args:
          topic: as for ``producer``.
          due_from, due_until: only messages due at or after ``due_from``, and before
            ``due_until``.
          key, properties: as for ``peek``.
          progress: called with the number of messages found, after each page but the last.

        Raises:
          InvalidRequest: if an argument is not valid.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        sought = criteria(due_from, due_until, key, properties)
        return await select(self.admin, topic, sought, progress)

    async def reschedule(
        self,
        what: What | None = None,
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        topic: str | None = None,
        key: str | None = None,
        dedup: str | Sequence[str] | None = None,
    ) -> Outcomes:
        """Change the due time of messages, for every shared subscription yet to receive them.

        The outcome is final, as with ``cancel``: a message that is ``done`` is delivered at its
        new time and not at the old one. A cancelled message stays cancelled (``CANCELLED``).
        Exclusive and failover subscriptions ignore due times, as always.

        Args:
          what, topic, key, dedup: as for ``cancel``.
          delay, at: exactly one of them, as for ``Producer.send``. A time in the past means
            now.

        Raises:
          InvalidRequest: if the messages or the time are not valid. Nothing is sent.
          NotFound, DelaysDisabled, DelayTooLong: if the broker refuses. Nothing has changed.
          EscapementError: if the broker refuses, or does not answer in time. Some messages may
            be rescheduled; the others keep their due times.
        """
        if delay is None and at is None:
            raise InvalidRequest("no time was given: pass delay= or at=, or call run_now")
        delay_ms, at_ms = delivery_times.one(delay, at)
        request = partial(wire.Reschedule, delay_ms=delay_ms, at_ms=at_ms)
        return await amend(self._line, what, topic, key, dedup, request)

    async def run_now(
        self,
        what: What | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        dedup: str | Sequence[str] | None = None,
    ) -> Outcomes:
        """Make messages due now; otherwise as ``reschedule``."""
        request = partial(wire.Reschedule, delay_ms=NO_TIME, at_ms=NO_TIME)
        return await amend(self._line, what, topic, key, dedup, request)

    def read(
        self,
        topic: str,
        start: int = 0,
        stop: int | None = None,
        *,
        serializer: SerializerLike = bytes,
        page_messages: int = 10_000,
    ) -> Reading:
        """Read the messages of a topic by offset, without a subscription.

        Iterate over the pages with ``async for page in ...``. A page has columns (``offsets``,
        ``due_ms``, ``published_ms``, ``values()``) and can be iterated for single messages.
        Reading is in order and repeatable: messages appear as they were published, also if
        they were acknowledged or cancelled since.

        Args:
          topic: as for ``producer``.
          start, stop: the range of offsets, without ``stop``. None is the end of the log at
            the time of the first page.
          serializer: as for ``consumer``.
          page_messages: the most messages in a page.

        Raises, also during iteration:
          InvalidRequest: if an argument is not valid.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        return Reading(self._line, topic, start, stop, serializer, page_messages)

    def peek(
        self,
        topic: str,
        *,
        count: int | None = None,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        key: str | None = None,
        offset: int | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Peeking:
        """Show the pending messages of a topic in the delivery order, without consuming them.

        Iterate with ``async for message in ...``. A message is pending if it is not yet due,
        or if a shared subscription has not acknowledged it. The broker searches page by page,
        so a search for few among many messages takes a while but does not delay other
        clients. A message rescheduled between two pages may appear twice, or not at all.

        Args:
          topic: as for ``producer``.
          count: stop after this number of messages.
          due_from, due_until: only messages due at or after ``due_from``, and before
            ``due_until``.
          key: only messages with this key.
          offset: only the message with this offset.
          properties: only messages with all of these properties. A str also matches other
            values with the same text.

        Raises, also during iteration:
          InvalidRequest: if an argument is not valid.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        sought = criteria(due_from, due_until, key, properties) | {"offset": offset}
        return Peeking(self.admin, topic, sought, count)

    async def show(self, message: One, topic: str | None = None) -> MessageHistory:
        """Return the history of a message, and its state in each subscription.

        Args:
          message: the id, the receipt or the message, or its offset in ``topic``.
          topic: the topic of an offset, as for ``producer``.

        Raises:
          InvalidRequest: if the arguments do not name a message.
          NotFound: if the message does not exist.
        """
        full, offset = name_message(message, topic)
        return MessageHistory.of(await self.admin("messages.show", topic=full, offset=offset))

    async def forecast(
        self,
        topic: str,
        *,
        by: Delay = (1, "hour"),
        within: Delay = (1, "day"),
        origin: datetime | None = None,
    ) -> Forecast:
        """Count the messages of a topic that become due in each span of time.

        Args:
          topic: as for ``producer``.
          by: the length of each span. There may be at most 20,000 spans.
          within: how far to look ahead.
          origin: a time at which one of the spans begins; None is midnight in UTC.

        Raises:
          InvalidRequest: if an argument is not valid.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        answer = await self.admin(
            "topics.forecast",
            topic=topic,
            by_ms=delivery_times.delay_ms(by),
            within_ms=delivery_times.delay_ms(within),
            origin_ms=None if origin is None else delivery_times.at_ms(origin),
        )
        return Forecast.of(answer)

    async def pause(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        until: datetime | None = None,
        duration: Delay | None = None,
    ) -> None:
        """Pause deliveries of a topic, or to one of its subscriptions.

        Publishing continues. Consumers may acknowledge the messages they have received.
        Without ``until`` and ``duration`` the pause lasts until ``resume``.

        Args:
          topic: as for ``producer``.
          subscription: the subscription to pause; None pauses the topic.
          until: when deliveries resume automatically, an aware datetime.
          duration: or how long the pause lasts.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          NotFound: if the topic or the subscription does not exist.
        """
        for_ms, until_ms = delivery_times.one(duration, until)
        await self.admin(
            "dispatch.pause",
            topic=topic,
            subscription=subscription,
            for_ms=None if duration is None else max(1, for_ms),
            until_ms=None if until is None else max(1, until_ms),
        )

    async def resume(self, topic: str, subscription: str | None = None) -> None:
        """Resume deliveries of a topic, or to one of its subscriptions.

        A topic and its subscriptions are paused independently. A subscription gets messages
        only if neither is paused.
        """
        await self.admin("dispatch.resume", topic=topic, subscription=subscription)

    async def admin(self, verb: str, **arguments: Any) -> Any:
        """Send an administrative request by name, and return its answer as plain values.

        If the connection is lost, idempotent requests are sent again on the next one: those
        that read something, such as ``get``, ``list`` and ``peek``, and those that set a
        state, such as ``update`` and ``pause``.

        Raises:
          Disconnected: if no answer arrives. The request may or may not have taken effect.
          EscapementError: if the broker refuses.
        """
        return await ask_verb(self._line, verb, **arguments)
