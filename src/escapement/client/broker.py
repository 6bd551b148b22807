"""The client's face: what can be asked of a broker, by name and with its types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from escapement.client import amending, finding, schedule, selection
from escapement.client.asking import ask_verb
from escapement.client.bounds import Bounds
from escapement.client.forecast import Forecast
from escapement.client.groups import Groups
from escapement.client.inbox import Inbox
from escapement.client.life import Life
from escapement.client.line import Line
from escapement.client.naming import One, What, name_message
from escapement.client.outcome import Outcomes
from escapement.client.peeking import Peeking
from escapement.client.producer import Producer
from escapement.client.reading import Reading
from escapement.client.schedule import Delay, Where
from escapement.client.schedules import Schedules
from escapement.client.selection import Selection
from escapement.client.serializers import SerializerLike
from escapement.errors import InvalidRequest
from escapement.message import NO_TIME, MessageId
from escapement.protocol import commands as wire
from escapement.traits import KeyRange


class Broker:
    """A connection to a broker, kept up. Made by ``connect``."""

    def __init__(self, line: Line, welcome: wire.Welcome) -> None:
        self._line = line
        self._welcome = welcome

    @property
    def name(self) -> str:
        """What the broker calls itself."""
        return self._welcome.broker

    @property
    def limits(self) -> Mapping[str, Any]:
        """How much it takes, as it said when we first connected."""
        return self._welcome.limits

    @property
    def connected(self) -> bool:
        """Whether there is a connection just now."""
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
        """A producer for a topic, which is created if need be.

        Args:
          topic: ``tenant/namespace/name``, or ``name`` in public/default.
          name: makes it exactly-once across restarts: whoever opens the name goes on
            where it ended (``next_sequence``), and fences an earlier holder. Without one,
            it is exactly-once for as long as this object lives.
          serializer: see ``escapement.client.serializers``.
          linger: while a batch is under way, how long at most messages gather for the next.
          max_batch_messages, max_batch_bytes: bounds of a batch; the broker's are kept too. A
            single message may be larger than a batch, up to what the broker takes.
          max_in_flight_messages, max_in_flight_bytes: when as much is without a receipt,
            sending waits.
          send_timeout: after so long without a receipt a send fails; then it is not known
            whether the message is stored, unless the error says so.

        Raises:
          InvalidRequest: before anything is sent, if an argument cannot be meant.
          EscapementError: if the broker refuses, or there is none in time.
        """
        bounds = Bounds(
            linger_s=schedule.delay_ms(linger) / 1000,
            batch_messages=max_batch_messages,
            batch_bytes=max_batch_bytes,
            in_flight_messages=max_in_flight_messages,
            in_flight_bytes=max_in_flight_bytes,
            send_timeout_s=schedule.delay_ms(send_timeout) / 1000,
        ).within(self.limits)
        producer = Producer(self._line, topic, name, serializer, bounds)
        self._line.attach(producer)
        await producer.opened()
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
        """An inbox on a subscription, which is created if need be.

        When the block ends, acknowledgements are sent and what is not acknowledged goes
        back to the subscription at once.

        Args:
          topic: as for ``producer``.
          subscription: its name.
          kind: shared, exclusive or failover.
          position: where a new subscription begins: latest, earliest, an offset, or an aware
            datetime (shared: what is due from then on; otherwise: accepted from then on).
          permits: how many messages may wait here, beyond those taken out.
          ack_wait: how long a message may go unacknowledged; None is the
            subscription's. The broker refuses a longer one than the subscription's
            ``max_backoff``.
          serializer: see ``escapement.client.serializers``.
          name: of this consumer, for whoever looks at the broker.
          key_range: of a shared subscription, only messages whose keys have a slot in
            ``(first, last)`` (``escapement.slot_of``), or in the part that the subscription
            gives it ("auto"); messages without a key go to anyone.

        Raises:
          InvalidRequest: before anything is sent, if an argument cannot be meant.
          EscapementError: if the broker refuses, or there is none in time.
        """
        inbox = Inbox(
            self._line,
            topic,
            subscription,
            kind=kind,
            position=position,
            permits=permits,
            ack_wait_ms=0 if ack_wait is None else schedule.delay_ms(ack_wait),
            choice=serializer,
            name=name,
            key_range=key_range,
        )
        self._line.attach(inbox)
        await inbox.opened()
        try:
            yield inbox
        finally:
            await inbox.aclose()

    @property
    def groups(self) -> Groups:
        """Groups of messages, and what follows when a subscription is done with one."""
        return Groups(self._line)

    @property
    def schedules(self) -> Schedules:
        """What the broker publishes again and again."""
        return Schedules(self.admin)

    async def find(self, topic: str, dedup: str | Sequence[str]) -> list[MessageId | None]:
        """The messages that were published with one or more dedup keys; None where none is known.

        A key is known while the topic's window (``dedup_window_ms``) lasts, and once its
        message is durable.

        Raises:
          InvalidRequest: if a key is no text.
          NotFound: if there is no such topic.
          EscapementError: if the broker refuses, or there is none in time.
        """
        name, offsets = await finding.find(self._line, topic, dedup)
        return [MessageId(name, offset) if offset >= 0 else None for offset in offsets.tolist()]

    async def cancel(
        self,
        what: What | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        dedup: str | Sequence[str] | None = None,
    ) -> Outcomes:
        """Cancel messages for every subscription that has not been handed them yet.

        The answer is final: what is ``done`` is never handed to any of these again, whatever
        crashes; a message that is ``DELIVERED`` had been handed to every subscription, one that is
        ``OVER`` is to come to none any more and had not been handed to all. A
        subscription in ``handed`` keeps what it had, with its retries.

        After a broker ended uncleanly, messages that were due before its restart may have been
        handed out. Until they are acknowledged they count as handed out: a message that all
        subscriptions may have had is ``DELIVERED``. Cancelling again what is cancelled
        changes nothing.

        Args:
          what: ids, receipts (of ``send`` and ``send_many``) or delivered messages of one
            topic, any number of them; what ``select`` gave; or bare offsets, also as an int64
            array.
          topic: of bare offsets, keys and dedup keys; as for ``producer``.
          key: instead of ``what``, all messages with this key that are pending when they are
            looked for; what is published meanwhile is not among them.
          dedup: instead of ``what``, the dedup keys of the messages, which are known while
            the topic's window lasts.

        Raises:
          InvalidRequest: before anything is sent, if these are not messages of one topic.
          NotFound: if there is no such topic.
          EscapementError: if the broker refuses, or there is none in time. Of more than
            32,768 messages some may then be cancelled.
        """
        what = await self._with_key(what, topic, key, dedup)
        return await amending.cancel(self._line, what, topic, dedup)

    async def _with_key(
        self,
        what: What | None,
        topic: str | None,
        key: str | None,
        dedup: str | Sequence[str] | None,
    ) -> What | None:
        if key is None:
            return what
        if what is not None or dedup is not None or topic is None or not key:
            raise InvalidRequest("key= goes with topic=, and with nothing else")
        return await self.select(topic, key=key)

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
        """The pending messages that match, to be counted, cancelled or rescheduled.

        Nothing is changed: ``len`` of it is a dry run, and ``cancel`` and ``reschedule`` take
        it as it is. It is looked for page by page, by time in the index alone; by key and
        properties the messages themselves are read.

        Args:
          due_from, due_until: only what is due from then on, and before then.
          key, properties: as for ``peek``.
          progress: told, now and then, how many have been found while more is looked for.

        Raises:
          InvalidRequest: if an argument cannot be meant.
          EscapementError: if the broker refuses, or there is none in time.
        """
        return await selection.select(
            self.admin, topic, due_from, due_until, key, properties, progress
        )

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
        """Give messages another time, for every shared subscription not handed them yet.

        As with ``cancel`` the answer is final: what is ``done`` is handed out at its new time
        and not at its old one. What is cancelled is not rescheduled (``CANCELLED``).
        Exclusive and failover subscriptions ignore times, and go on doing so.

        Args:
          what, topic, key, dedup: as for ``cancel``.
          delay, at: as for ``Producer.send``; one of them. A time that has passed is now.

        Raises:
          InvalidRequest: before anything is sent, for messages or times that are none.
          NotFound, DelaysDisabled, DelayTooLong: the broker refuses; nothing happened.
          EscapementError: if the broker refuses, or there is none in time. Some of the
            messages may then be rescheduled, the others are due when they were.
        """
        if delay is None and at is None:
            raise InvalidRequest("say when: a delay or a time; or run_now")
        times = schedule.one(delay, at)
        what = await self._with_key(what, topic, key, dedup)
        return await amending.reschedule(self._line, what, topic, dedup, *times)

    async def run_now(
        self,
        what: What | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        dedup: str | Sequence[str] | None = None,
    ) -> Outcomes:
        """Have messages due now; else as ``reschedule``."""
        what = await self._with_key(what, topic, key, dedup)
        return await amending.reschedule(self._line, what, topic, dedup, NO_TIME, NO_TIME)

    def read(
        self,
        topic: str,
        start: int = 0,
        stop: int | None = None,
        *,
        serializer: SerializerLike = bytes,
        page_messages: int = 10_000,
    ) -> Reading:
        """A topic's messages by offset, without a subscription: ``async for page in ...``.

        In order and repeatable: each as it was published, whatever has become of it since. A
        page is columns (``offsets``, ``due_ms``, ``published_ms``, ``values()``), and gives
        single messages when iterated.

        Args:
          start, stop: which offsets, ``stop`` not included; None is the end as it is when
            the first page is asked for.
          page_messages: at most so many in a page.

        Raises, also while reading:
          InvalidRequest: if an argument cannot be meant.
          EscapementError: if the broker refuses, or there is none in time.
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
        """What is pending on a topic, next due first: ``async for message in ...``.

        Nothing is consumed. Shown is what is not yet due, and what is due and not yet
        acknowledged by every shared subscription. It is looked for page by page, so
        something rare among very many takes a while and holds nobody up; what is given another
        time between two pages may be shown twice, or not at all.

        Args:
          count: stop after so many.
          due_from, due_until: only what is due from then on, and before then.
          key: only messages with this key.
          offset: only the message of this offset.
          properties: only messages with all of these; a text stands for any value that is
            written so.

        Raises, also while iterating:
          InvalidRequest: if an argument cannot be meant.
          EscapementError: if the broker refuses, or there is none in time.
        """
        return Peeking(
            self.admin,
            topic,
            count=count,
            due_from=due_from,
            due_until=due_until,
            key=key,
            offset=offset,
            properties=properties,
        )

    async def show(self, message: One, topic: str | None = None) -> Life:
        """One message's life: what it is, and how each subscription stands to it.

        Args:
          message: its id, its receipt, the message itself, or its offset in ``topic``.

        Raises:
          InvalidRequest: if that names no message.
          NotFound: if there is no such message.
        """
        full, offset = name_message(message, topic)
        return Life.of(await self.admin("messages.show", topic=full, offset=offset))

    async def forecast(
        self,
        topic: str,
        *,
        by: Delay = (1, "hour"),
        within: Delay = (1, "day"),
        origin: datetime | None = None,
    ) -> Forecast:
        """How many of a topic's messages fall due when.

        Args:
          by: how long each span of time is; the spans are at most 20,000.
          within: how far to look ahead.
          origin: a time at which a span begins; None is midnight in UTC.

        Raises:
          InvalidRequest: if an argument cannot be meant.
          EscapementError: if the broker refuses, or there is none in time.
        """
        answer = await self.admin(
            "topics.forecast",
            topic=topic,
            by_ms=schedule.delay_ms(by),
            within_ms=schedule.delay_ms(within),
            origin_ms=None if origin is None else schedule.at_ms(origin),
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
        """Have nothing more handed out of a topic, or to one of its subscriptions.

        Publishing goes on. What consumers hold they may acknowledge.

        Args:
          until: when it goes on by itself; an aware datetime.
          duration: after how long it does. With neither: when ``resume`` says so.

        Raises:
          InvalidRequest: before anything is sent, if an argument cannot be meant.
          NotFound: if there is no such topic or subscription.
        """
        for_ms, until_ms = schedule.one(duration, until)
        await self.admin(
            "dispatch.pause",
            topic=topic,
            subscription=subscription,
            for_ms=None if duration is None else max(1, for_ms),
            until_ms=None if until is None else max(1, until_ms),
        )

    async def resume(self, topic: str, subscription: str | None = None) -> None:
        """Hand out again what is due of a topic, or to one of its subscriptions.

        The two are paused apart: a subscription goes on once neither is paused.
        """
        await self.admin("dispatch.resume", topic=topic, subscription=subscription)

    async def admin(self, verb: str, **arguments: Any) -> Any:
        """Ask the broker by name, with plain arguments; returns its plain answer.

        If the connection is lost, what only looks is asked again on the next, and what says how
        something is to be from now on: `get`, `list`, `peek`, `update`, `pause` and their like.

        Raises:
          Disconnected: if no answer came; what became of the request is not known.
          EscapementError: if the broker refused.
        """
        return await ask_verb(self._line, verb, arguments)
