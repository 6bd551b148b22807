"""The class ``Broker``: a client of a broker, with a method for each operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from typing import Any

from escapement.client import delivery_times
from escapement.client.administration.amending import amend
from escapement.client.administration.bulk import Bulk
from escapement.client.administration.finding import find
from escapement.client.administration.forecast import Forecast, NamespaceForecast
from escapement.client.administration.hints import hint
from escapement.client.administration.message_history import MessageHistory
from escapement.client.administration.outcome import Outcomes
from escapement.client.administration.peeking import Peeking
from escapement.client.administration.reading import Reading
from escapement.client.administration.row_acks import ack_rows
from escapement.client.administration.schedules import Schedules
from escapement.client.administration.verbs import ask_verb
from escapement.client.connection.line import Line
from escapement.client.connection.lines import Lines
from escapement.client.constructor import internal
from escapement.client.consuming.consumption import Consumption
from escapement.client.consuming.inbox import Inbox
from escapement.client.consuming.traced_inbox import TracedInbox
from escapement.client.delivery_times import Delay, Where
from escapement.client.message_ids import One, What, name_message
from escapement.client.producing.groups import Groups
from escapement.client.producing.producer import Producer
from escapement.client.producing.producer_bounds import Bounds
from escapement.client.producing.traced_producer import TracedProducer
from escapement.client.selection import Selection, criteria, select
from escapement.client.serializers import SerializerLike
from escapement.client.settings import check_reason
from escapement.errors import InvalidRequest
from escapement.message import NO_TIME, Int64s, MessageId
from escapement.protocol import commands as wire
from escapement.traits import KeyRange


class Broker:
    """A client of a broker, created by ``connect``. It reconnects when the connection is lost."""

    @internal
    def __init__(self, lines: Lines, welcome: wire.Welcome, reason: str = "") -> None:
        self._lines = lines
        self._welcome = welcome
        self._reason = reason  # "" if the requests have no other reason than the client

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._welcome.broker

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits that the broker announced when the client connected first.

        The keys are ``max_frame_bytes``, ``max_batch_messages``, ``max_batch_bytes`` and
        ``max_delay_ms``.
        """
        return self._welcome.limits

    @property
    def connected(self) -> bool:
        """Whether the client is connected at the moment, to all brokers that it has used."""
        return self._lines.connected

    def because(self, reason: str) -> Broker:
        """Return this client with a reason for its requests, for the audit log of the broker.

        The result uses the same connections. It sends the reason with each administrative request,
        each cancel, reschedule and run-now, each bulk change, and each new producer. The broker
        records them with this reason, and not with that of the ``Settings``. It also records
        cancels, reschedules, run-nows and new producers of applications then. Brokers of an earlier
        version ignore the reason.

        ::

            await broker.because("ticket 4711").cancel(ids)

        Args:
          reason: at most 500 characters. "" stands for the reason of the ``Settings``.

        Raises:
          InvalidRequest: if the reason is too long.
        """
        return Broker(self._lines, self._welcome, check_reason(reason))

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
        """Open a producer, which sends messages to a topic.

        If the topic does not exist, the broker creates it, unless it is configured not to.

        Args:
          topic: the name of the topic: ``tenant/namespace/name``, or ``name`` for a topic in
            public/default.
          name: the name of the producer. With a name, publishing is exactly-once across
            restarts of the application: a new producer with the same name continues at
            ``next_sequence``, and the broker refuses further messages of the earlier one
            (``ProducerFenced``). Without a name, publishing is exactly-once for the life of
            this object.
          serializer: how to convert values to bytes: bytes, str, ``JSON``, ``MSGPACK`` or a pair
            of functions.
          linger: the longest time to collect messages for the next batch while another batch
            is unanswered.
          max_batch_messages, max_batch_bytes: the bounds of a batch. Lower limits of the broker
            replace them. A single message may be larger than ``max_batch_bytes``, up to the
            broker's limit.
          max_in_flight_messages, max_in_flight_bytes: the bounds of messages without a
            receipt. Sending waits while one of them is reached.
          send_timeout: the longest wait for a receipt. After it, sending the message fails. With
            the error ``Disconnected`` the message may or may not be stored, and with any other
            error it is not stored.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        bounds = Bounds(
            linger_s=delivery_times.delay_ms(linger, "linger") / 1000,
            batch_messages=max_batch_messages,
            batch_bytes=max_batch_bytes,
            in_flight_messages=max_in_flight_messages,
            in_flight_bytes=max_in_flight_bytes,
            send_timeout_s=delivery_times.delay_ms(send_timeout, "send_timeout") / 1000,
        ).within(self.limits)
        producer_type = Producer if self._lines.tracer is None else TracedProducer
        line = await self._lines.of_topic(topic)
        producer = producer_type(line, topic, name, serializer, bounds, self._reason)
        line.attach(producer)
        await producer._wait_opened()
        return producer

    def consumer(
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
    ) -> AbstractAsyncContextManager[Inbox]:
        """Open a consumer of a subscription, which is created if it does not exist.

        Use it with ``async with``. When the block ends, the client waits until the broker has
        answered the acknowledgements, and the consumer leaves the subscription. The broker then
        redelivers the messages that are not acknowledged.

        Args:
          topic: the name of the topic, as for ``producer``.
          subscription: the name of the subscription.
          kind: shared, exclusive or failover. Only shared subscriptions deliver by due time. The
            others deliver at once, in the order in which the messages were published.
          position: where a new subscription begins. "latest" selects messages that are
            published or become due from now on, "earliest" all messages in the log, and an
            offset or a message id the messages from it on. An aware datetime selects messages
            due from then on and all that are published from now on (shared), or messages that the
            broker accepted from then on (exclusive and failover).
          permits: the size of the delivery buffer: how many messages the broker may send before
            the application receives them. 0 is for a consumer that calls ``pull``.
          ack_wait: how long a received message may stay unacknowledged before the broker
            redelivers it; None selects the setting of the subscription. The broker refuses a
            time longer than the subscription's ``max_backoff``.
          serializer: how to convert payloads to values: bytes, str, ``JSON``, ``MSGPACK`` or a
            pair of functions.
          name: the name of this consumer, which the broker shows to administrators.
          key_range: which keys of a shared subscription this consumer receives. ``(first, last)``
            selects the keys whose slot lies in this range (see ``escapement.slot_of``), and
            "auto" lets the broker assign a range. Messages without a key go to any consumer. None
            selects the keys that are in no other consumer's range.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        inbox_type = Inbox if self._lines.tracer is None else TracedInbox
        ack_wait_ms = 0 if ack_wait is None else delivery_times.delay_ms(ack_wait, "ack_wait")

        def make(line: Line) -> Inbox:
            return inbox_type(
                line,
                topic,
                subscription,
                kind=kind,
                position=position,
                permits=permits,
                ack_wait_ms=ack_wait_ms,
                choice=serializer,
                name=name,
                key_range=key_range,
            )

        return Consumption(self._lines, topic, make)

    @property
    def groups(self) -> Groups:
        """The message groups of topics: close, list, get or delete them.

        When a subscription has finished all messages of a closed group, the broker publishes a
        follow-up message.
        """
        return Groups(self.admin)

    @property
    def schedules(self) -> Schedules:
        """The recurring schedules of the broker: create, list, pause, resume or delete them."""
        return Schedules(self.admin)

    @property
    def bulk(self) -> Bulk:
        """Bulk changes: cancel, reschedule, run now or redrive all messages that match."""
        return Bulk(self.admin)

    async def ack_rows(self, table: str, ids: Collection[Any]) -> int:
        """Acknowledge rows of a message table by their ids, so that they are never sent again.

        No consumer is needed, and the rows may never have been delivered. Acknowledging a row again
        changes nothing.

        Args:
          table: the message table, such as "shop.my_message" or "table://shop/my_message".
          ids: the values of the column ``id``, such as ``message.row["id"]``.

        Returns:
          How many rows this call acknowledged. Rows that do not exist, or that were acknowledged
          before, do not count.

        Raises:
          InvalidRequest: if an argument is not valid.
          NotFound: if the broker does not serve the table.
          StorageUnavailable: if the database does not accept the acknowledgement now. Rows may be
            acknowledged later. Call it again to be sure.
          Disconnected: if no answer arrives. Some rows may be acknowledged; call it again.
          EscapementError: if the broker refuses. More than 10,000 ids are sent in several requests,
            so some rows may be acknowledged then.
        """
        return await ack_rows(self.admin, table, ids)

    def hint(self, *tables: str) -> None:
        """Tell the broker that rows were committed, so that it looks for them at once.

        Call it after a commit. The call sends a short command and does not wait. Without it, the
        broker finds the rows too, only later. So nothing is lost if the command is: for example
        because the client is not connected at the moment.

        Args:
          tables: message tables, each named as for ``ack_rows``. Without any, the rows are in
            outboxes, or in the table of ``sql.ack``.

        Raises:
          InvalidRequest: if an argument does not name a message table.
        """
        hint(self._lines, tables)

    async def find(self, topic: str, dedup: str | Sequence[str]) -> list[MessageId | None]:
        """Look up messages by their dedup keys.

        The broker knows a dedup key from the moment its message is durable, for the length of
        the topic's dedup window (``dedup_window_ms``).

        Args:
          topic: the name of the topic, as for ``producer``.
          dedup: one dedup key, or several.

        Returns:
          The id of the message with each key, in order; None for an unknown key.

        Raises:
          InvalidRequest: if a key is not valid.
          NotFound: if the topic does not exist.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        name, offsets = await find(self._lines, topic, dedup)
        return [MessageId(name, offset) if offset >= 0 else None for offset in offsets.tolist()]

    async def cancel(
        self,
        what: What | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        dedup: str | Sequence[str] | None = None,
    ) -> Outcomes:
        """Cancel messages for all subscriptions to which they have not been delivered yet.

        The status of each message is final, even if the broker crashes:

        - ``DONE``: the message will never be delivered to these subscriptions.
        - ``DELIVERED``: it had been delivered to all subscriptions that get it. Nothing has
          changed.
        - ``OVER``: no subscription will receive it, and some may never have received it, because
          it expired or was dropped. Nothing has changed.
        - ``UNKNOWN``: the topic has no such message, or does not know the dedup key.

        A subscription to which the message had been delivered is named in ``handed``. It keeps
        the message, and may redeliver it. Cancelling a cancelled message changes nothing.

        After a broker has stopped uncleanly, it is not known whether it had delivered the
        messages that were due by then. Until they are acknowledged, they count as delivered.

        Args:
          what: messages of one topic, one or several: their ids (``MessageId``, or text such as
            ``"shop/eu/orders@17"``), their receipts (of ``send`` and ``send_many``), delivered
            messages, a result of ``select``, or offsets, also as an int64 array.
          topic: the topic, as for ``producer``. It is needed with offsets, ``key`` and ``dedup``.
          key: instead of ``what``, all pending messages with this key. Messages that are
            published during the call may not be included.
          dedup: instead of ``what``, one or several dedup keys of messages. The broker knows
            them for the length of the topic's dedup window.

        Raises:
          InvalidRequest: if the arguments do not name messages of one topic. Nothing is sent.
          NotFound: if the topic does not exist.
          EscapementError: if the broker refuses, or does not answer in time. More than 32,768
            messages are sent in several requests, so some may be cancelled then.
        """
        request = partial(wire.Cancel, reason=self._reason)
        return await amend(self._lines, what, topic, key, dedup, request)

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

        Selecting changes nothing. ``len`` of the result is the number of messages that match.
        Pass the result to ``cancel``, ``reschedule`` or ``run_now``. The broker searches page by
        page. A search by time reads only the index, and is fast. A search by key or properties
        also reads messages.

        Args:
          topic: the name of the topic, as for ``producer``.
          due_from, due_until: only messages due at or after ``due_from``, and before
            ``due_until``.
          key: only messages with this key.
          properties: only messages with all of these properties, as for ``peek``.
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
        spread: Delay | None = None,
    ) -> Outcomes:
        """Change the due time of messages, for all subscriptions that have not received them yet.

        The statuses are as for ``cancel``, and just as final. A message whose status is ``DONE``
        is delivered at its new time and not at the old one. A cancelled message stays cancelled
        (``CANCELLED``). Exclusive and failover subscriptions ignore due times.

        Args:
          what, topic, key, dedup: name the messages, as for ``cancel``.
          delay: the new delay, counted from the moment the broker accepts the request; see
            ``Producer.send``.
          at: the new due time, instead of ``delay``. A time in the past means now.
          spread: scatter the messages over this span, from the new due time on. A hash of its
            offset chooses the place of each message, so repeating the request gives the same.

        Raises:
          InvalidRequest: if the messages or the time are not valid. Nothing is sent.
          NotFound, DelaysDisabled, DelayTooLong: if the topic does not exist, or its namespace
            does not allow the delay. Nothing has changed.
          EscapementError: if the broker refuses, or does not answer in time. Some messages may
            be rescheduled; the others keep their due times.
        """
        if delay is None and at is None:
            raise InvalidRequest("no time was given: pass delay= or at=, or call run_now")
        delay_ms, at_ms = delivery_times.one(delay, at)
        spread_ms = delivery_times.span_ms(spread)
        request = self._reschedule(delay_ms, at_ms, spread_ms)
        return await amend(self._lines, what, topic, key, dedup, request)

    async def run_now(
        self,
        what: What | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        dedup: str | Sequence[str] | None = None,
        spread: Delay | None = None,
    ) -> Outcomes:
        """Make messages due now, for all subscriptions that have not received them yet.

        With ``spread`` they are due within this span from now on; see ``reschedule``. The other
        arguments and the errors are as for ``cancel``, and the outcomes as for ``reschedule``.
        """
        spread_ms = delivery_times.span_ms(spread)
        request = self._reschedule(NO_TIME, NO_TIME, spread_ms)
        return await amend(self._lines, what, topic, key, dedup, request)

    def _reschedule(
        self, delay_ms: int, at_ms: int, spread_ms: int
    ) -> Callable[[int, str, Int64s], wire.Reschedule]:
        return partial(
            wire.Reschedule,
            delay_ms=delay_ms,
            at_ms=at_ms,
            spread_ms=spread_ms,
            reason=self._reason,
        )

    def read(
        self,
        topic: str,
        start: One = 0,
        stop: One | None = None,
        *,
        serializer: SerializerLike = bytes,
        page_messages: int = 10_000,
    ) -> Reading:
        """Read the messages of a topic by offset, without a subscription.

        Iterate over the pages with ``async for page in ...``. A page has its messages in columns
        (``offsets``, ``due_ms``, ``published_ms``, ``values()``). Iterate over a page to get
        single messages. The messages are ordered by offset and are as they were published, even
        if they were acknowledged, rescheduled or cancelled since. So reading can be repeated.

        Args:
          topic: the name of the topic, as for ``producer``.
          start: the offset or the id of the first message to read.
          stop: the offset or the id at which to stop; it is not read. None stops at the end that
            the log has when the first page is read.
          serializer: how to convert payloads to values, as for ``consumer``.
          page_messages: the most messages in a page.

        Raises, also during iteration:
          InvalidRequest: if an argument is not valid.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        _, first = name_message(start, topic)
        end = None if stop is None else name_message(stop, topic)[1]
        return Reading(self._lines, topic, first, end, serializer, page_messages)

    def peek(
        self,
        topic: str,
        *,
        count: int | None = None,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        key: str | None = None,
        offset: One | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Peeking:
        """Show the pending messages of a topic, next due first, without consuming them.

        Iterate with ``async for message in ...``. A message is pending if it is not yet due,
        or if a shared subscription has not acknowledged it. The broker searches page by page. So
        a search for a few among many messages may take long, but does not delay other clients. A
        message that is rescheduled between two pages may appear twice, or not at all.

        Args:
          topic: the name of the topic, as for ``producer``.
          count: stop after this number of messages; None shows all.
          due_from, due_until: only messages due at or after ``due_from``, and before
            ``due_until``.
          key: only messages with this key.
          offset: only the message with this offset or id.
          properties: only messages with all of these properties. A value that is a str also
            matches a number or another value with the same text.

        Raises, also during iteration:
          InvalidRequest: if an argument is not valid.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        found = None if offset is None else name_message(offset, topic)[1]
        sought = criteria(due_from, due_until, key, properties) | {"offset": found}
        return Peeking(self.admin, topic, sought, count)

    async def show(self, message: One, topic: str | None = None) -> MessageHistory:
        """Return when a message was published and is due, and its state in each subscription.

        Args:
          message: the id of the message, its receipt, the delivered message, or its offset.
          topic: the topic, as for ``producer``. It is needed with an offset.

        Raises:
          InvalidRequest: if the arguments do not name a message.
          NotFound: if the message does not exist.
        """
        full, offset = name_message(message, topic)
        return MessageHistory._of(await self.admin("messages.show", topic=full, offset=offset))

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
          topic: the name of the topic, as for ``producer``.
          by: the length of each span. There may be at most 20,000 spans.
          within: how far to look ahead from now.
          origin: a time at which one of the spans begins; None selects midnight in UTC.

        Raises:
          InvalidRequest: if an argument is not valid.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        spans = delivery_times.span_arguments(by, within, origin)
        return Forecast._of(await self.admin("topics.forecast", topic=topic, **spans))

    async def forecast_namespace(
        self,
        namespace: str | None = None,
        *,
        by: Delay = (1, "hour"),
        within: Delay = (1, "day"),
        origin: datetime | None = None,
    ) -> NamespaceForecast:
        """Count the messages of a namespace that become due in each span of time, and overdue ones.

        The answer may be some time old: the broker counts in the background, and rests afterwards
        for 30 times as long as it has counted. Five minutes after the rest, a count is too old for
        an answer. Brokers with up to a million pending messages need less than a second to count.

        Args:
          namespace: the full name of the namespace, such as ``shop/eu``; None for all namespaces.
          by: the length of each span, as for ``forecast``.
          within: how far to look ahead from the time of the count.
          origin: a time at which one of the spans begins; None selects midnight in UTC.

        Raises:
          Busy: if the broker counts, and has no recent count.
          InvalidRequest: if an argument is not valid.
          EscapementError: if the broker refuses, or does not answer in time.
        """
        spans = delivery_times.span_arguments(by, within, origin)
        answer = await self.admin("namespaces.forecast", namespace=namespace, **spans)
        return NamespaceForecast._of(answer)

    async def pause(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        until: datetime | None = None,
        duration: Delay | None = None,
    ) -> None:
        """Pause the deliveries of a topic, or of one of its subscriptions.

        Publishing continues. Consumers may acknowledge the messages that they have received. At
        most one of ``until`` and ``duration`` may be given. Without both, the pause lasts until
        ``resume`` is called.

        Args:
          topic: the name of the topic, as for ``producer``.
          subscription: the subscription to pause; None pauses the whole topic.
          until: the time at which deliveries resume by themselves, an aware datetime.
          duration: how long the pause lasts, instead of ``until``.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          NotFound: if the topic or the subscription does not exist.
        """
        for_ms, until_ms = delivery_times.one(duration, until, ("duration", "until"))
        await self.admin(
            "dispatch.pause",
            topic=topic,
            subscription=subscription,
            for_ms=None if duration is None else max(1, for_ms),
            until_ms=None if until is None else max(1, until_ms),
        )

    async def resume(self, topic: str, subscription: str | None = None) -> None:
        """End the pause of a topic, or of one of its subscriptions.

        A topic and its subscriptions are paused independently. A subscription delivers messages
        only while neither the topic nor the subscription is paused.

        Args:
          topic: the name of the topic, as for ``producer``.
          subscription: the subscription to resume; None resumes the topic.

        Raises:
          NotFound: if the topic or the subscription does not exist.
        """
        await self.admin("dispatch.resume", topic=topic, subscription=subscription)

    async def admin(self, verb: str, **arguments: Any) -> Any:
        """Send an administrative request by name, and return the broker's answer.

        If the connection is lost before the answer arrives, idempotent requests are sent again
        on the next connection. These are requests that read something, such as ``topics.get``,
        and requests that set a state, such as ``dispatch.pause``.

        Args:
          verb: the name of the request, such as ``topics.stats``. The protocol's documentation
            lists all verbs.
          arguments: the arguments of the request, by name. They must be plain values: None,
            numbers, str, bytes, lists and maps.

        Raises:
          Disconnected: if no answer arrives. The request may or may not have taken effect.
          EscapementError: if the broker refuses.
        """
        return await ask_verb(self._lines, self._reason, verb, **arguments)
