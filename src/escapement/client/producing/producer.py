"""The class ``Producer``, which sends messages to a topic and returns receipts.

A receipt means that the message is durable. A message is stored once, even if connections are
lost. Messages of one producer are stored in the order in which they were sent. The *outbox* (see
``outbox``) implements these promises: it collects messages in batches, the publish requests. The
producer sends these to the broker, and passes the broker's answers to the outbox.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final

import anyio
import numpy as np

from escapement.client import content, delivery_times
from escapement.client.connection.attachment import Attached
from escapement.client.connection.line import Line
from escapement.client.connection.retried_request import ask_verb_of
from escapement.client.connection.retry import Retry
from escapement.client.constructor import internal
from escapement.client.delivery_times import Delay
from escapement.client.producing.builder import MessageBuilder
from escapement.client.producing.groups import FollowUp, Group, Groups
from escapement.client.producing.outbox import Outbox
from escapement.client.producing.producer_bounds import Bounds
from escapement.client.producing.publish_request import NewMessage, PublishRequest
from escapement.client.producing.receipt import Pending, Receipt, Receipts, receipt_of
from escapement.client.producing.replace import Replace, ReplaceColumns, replacing
from escapement.client.serializers import SerializerLike, serializer
from escapement.dedup import NO_DIGEST, digest, digests
from escapement.errors import Disconnected, EscapementError, InvalidRequest, ProducerFenced
from escapement.message import DEFAULT_PRIORITY, Blobs, MessageBatch, Times
from escapement.names import TopicName, anonymous_name, check_name
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command
from escapement.protocol.limits import LIMIT_PRODUCER_REASON


class Producer(Attached):
    """A producer of a topic, created by ``Broker.producer``.

    Any number of tasks may use it at once. As an async context manager it closes itself at
    the end of the ``async with`` block.

    Attributes:
      topic: the full name of the topic.
      name: the name of the producer, generated if none was given.
    """

    @internal
    def __init__(
        self,
        line: Line,
        topic: str,
        name: str | None,
        choice: SerializerLike,
        bounds: Bounds,
        reason: str,
    ) -> None:
        super().__init__(line)
        self.topic: Final = TopicName.parse(topic).full
        # Every producer has a unique name, so that the broker recognises resent messages.
        self.name: Final = anonymous_name() if name is None else check_name("producer", name)
        self._serializer = serializer(choice)
        self._outbox = Outbox(bounds, Retry(), self.name)
        self._epoch = -1
        self._reason = reason  # for the audit log; "" if the client gives none

    @property
    def next_sequence(self) -> int:
        """The number (*sequence*) that the next message gets.

        A new producer continues after the last message that the broker has stored under its name.
        """
        return self._outbox.next_sequence

    @property
    def waits_for(self) -> EscapementError | None:
        """The error because of which the oldest message without a receipt is delayed, or None.

        The client continues to send the message.
        """
        if self._outbox.empty:
            return None
        if self._line.link is None:
            return Disconnected("there is no connection to the broker")
        return self._outbox.refusal

    # -- sending -------------------------------------------------------------------

    async def send(
        self,
        value: Any,
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        key: str | None = None,
        properties: Mapping[str, Any] | None = None,
        priority: int = DEFAULT_PRIORITY,
        dedup: str | None = None,
        group: str | None = None,
        sequence: int | None = None,
        spread: Delay | None = None,
        replace: Replace | str | None = None,
    ) -> Receipt:
        """Send one message and wait until it is durable.

        If several tasks send at the same time, their messages share one batch.

        Args:
          value: a value that the serializer accepts.
          delay: the delay before delivery, counted from the moment the broker accepts the
            message: a timedelta, ``(3, "minutes")``, or ``"3m"``.
          at: the time of delivery, instead of ``delay``: an aware datetime. A time in the past
            means now.
          key: a text for the application. Subscriptions may deliver the messages of a key in
            order, and consumers may choose ranges of keys.
          properties: a small map from str to values that msgpack can encode, for the
            application.
          priority: 0 to 255. Of several due messages, a shared subscription delivers the one
            with the lowest number first.
          dedup: a dedup key. If several messages, from any producers, have the same key within
            the topic's dedup window (``dedup_window_ms``, 10 minutes by default), the broker
            stores only the first. The receipts of the others have the id of the first, and
            ``duplicate`` is True. This also holds if the first was cancelled, so sending a
            cancelled message again does not restore it. To send it after all, use another key,
            or reschedule the first message instead of cancelling it.
          group: the name of the message's group in the topic; see ``Groups``.
          sequence: the number of the message, if the application numbers its messages. Numbers
            must increase. If the number is not above the last one that the broker has stored
            for this producer, the message is not stored, and ``duplicate`` of the receipt is
            True.
          spread: deliver the message later than ``delay`` or ``at`` (or now, with neither), by a
            part of this span. It is never early, and less than ``spread`` late. A hash of the
            dedup key chooses the part; without a dedup key, a hash of the producer's name and
            ``sequence``. So sending the message again gives the same part.
          replace: a replace key, any text, or a ``Replace``. If a message of the topic with the
            same key is pending, a ``str`` (or ``Replace.latest``) replaces it by this one,
            ``Replace.first`` keeps it and drops this one, and ``Replace.debounce`` replaces it but
            limits how long delivery is put off. A message is pending until it was delivered to any
            subscription. ``replaced`` and ``kept`` of the receipt say what happened.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          Disconnected: if no receipt arrives in time. The message may or may not be stored.
          ProducerFenced: if a newer producer with the same name has taken over. The message may
            or may not be stored.
          EscapementError: if the broker refuses. The message is not stored.
        """
        message = self._prepare(
            value, delay, at, key, properties, priority, dedup, group, spread, replace
        )
        if self._full:
            await self._have_room_for(message)
        request, row = self._put(message, sequence)
        await request.wait()
        return receipt_of(self.topic, request, row)

    async def submit(
        self,
        value: Any,
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        key: str | None = None,
        properties: Mapping[str, Any] | None = None,
        priority: int = DEFAULT_PRIORITY,
        dedup: str | None = None,
        group: str | None = None,
        sequence: int | None = None,
        spread: Delay | None = None,
        replace: Replace | str | None = None,
    ) -> Pending:
        """Send one message without waiting for its receipt.

        The call waits only while too many messages are unanswered. The arguments are those of
        ``send``.

        Returns:
          An object to ``await`` for the receipt. Awaiting it raises the errors of ``send``.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          LimitExceeded: if the message is larger than the broker accepts.
          EscapementError: if this producer is closed or has failed.
        """
        message = self._prepare(
            value, delay, at, key, properties, priority, dedup, group, spread, replace
        )
        if self._full:
            await self._have_room_for(message)
        return Pending(self.topic, *self._put(message, sequence))

    def _prepare(
        self,
        value: Any,
        delay: Delay | None = None,
        at: datetime | None = None,
        key: str | None = None,
        properties: Mapping[str, Any] | None = None,
        priority: int = DEFAULT_PRIORITY,
        dedup: str | None = None,
        group: str | None = None,
        spread: Delay | None = None,
        replace: Replace | str | None = None,
    ) -> NewMessage:
        """Check the arguments of ``submit``, and return the message. Any thread may call this.

        Raises:
          InvalidRequest: if an argument is not valid.
        """
        payload = self._serializer.dumps(value)
        delay_ms, at_ms = delivery_times.one(delay, at)
        content.check_priority(priority)
        return NewMessage(
            payload,
            content.key(key),
            content.properties(properties),
            priority,
            content.group(group),
            delay_ms,
            at_ms,
            NO_DIGEST if dedup is None else digest(dedup),
            delivery_times.span_ms(spread),
            None if replace is None else self._replacing(replace),
        )

    def _replacing(self, replace: Replace | str) -> Replace:
        self._check_replaces()
        return replacing(replace)

    def _check_replaces(self) -> None:
        if not self._outbox.bounds.replaces:
            raise InvalidRequest(
                "the broker is too old for replace=: it does not know replace keys; upgrade it"
            )

    async def _have_room_for(self, message: NewMessage) -> None:
        """Wait until the outbox has room for a message. Raises the errors of ``_have_room``."""
        await self._have_room()

    def _put(self, message: NewMessage, sequence: int | None) -> tuple[PublishRequest, int]:
        """Put a message into the outbox, without waiting. Raises the errors of ``submit``.

        Returns:
          The publish request that has the message, and the message's row in it.
        """
        self._check()
        found = self._outbox.add(message, sequence, anyio.current_time)
        self._line.wake(self)
        return found

    async def send_many(
        self,
        values: Sequence[Any],
        *,
        delay: Any = None,
        at: Any = None,
        keys: Sequence[str | None] | None = None,
        properties: Sequence[Mapping[str, Any] | None] | None = None,
        priorities: Any = None,
        dedup: Sequence[str | None] | None = None,
        groups: str | Sequence[str | None] | None = None,
        sequence: int | None = None,
        spread: Delay | None = None,
        replace: Sequence[Replace | str | None] | None = None,
    ) -> Receipts:
        """Send messages as one batch, and wait until all are durable.

        A batch that is larger than the broker accepts is sent in several requests.

        Args:
          values: a list of values that the serializer accepts.
          delay: one delay for all messages; a list with a delay or None per message; or an
            int64 array of milliseconds.
          at: the time of delivery, instead of ``delay``: one time for all messages; a list with
            a time or None per message; or an int64 array of Unix milliseconds.
          keys: a list with a key or None per message.
          properties: a list with a map or None per message.
          priorities: one priority for all messages, or a list with one per message.
          dedup: a list with a dedup key or None per message; see ``send``.
          groups: one group for all messages, or a list with a group or None per message; see
            ``send``.
          sequence: the number of the first message; see ``send``.
          spread: scatter the due times of the messages over this span; see ``send``.
          replace: a list with a replace key, a ``Replace`` or None per message; see ``send``.
            Messages of the batch with the same key meet each other in their order.

        Returns:
          One receipt per message, in columns.

        Raises:
          The errors of ``send``. If the batch was sent in several requests, some of them may
          be stored. To store the others, send the batch again with the same ``sequence``.
        """
        count = len(content.several("values", values))
        dumps = self._serializer.dumps
        names = [groups] * count if isinstance(groups, str) else groups
        batch = MessageBatch(
            Blobs.of([dumps(value) for value in values]),
            content.column("keys", keys, content.key),
            content.column("properties", properties, content.properties),
            content.priorities(priorities, count),
            content.column("groups", names, content.group),
        )
        for column in (batch.keys, batch.properties, batch.priorities, batch.groups):
            if column is not None and len(column) != count:
                raise InvalidRequest(f"a list of {len(column)} was given for {count} messages")
        times = delivery_times.times(delay, at, count)
        return await self.send_batch(
            batch, times, dedup=dedup, sequence=sequence, spread=spread, replace=replace
        )

    async def send_batch(
        self,
        batch: MessageBatch,
        times: Times | None = None,
        *,
        dedup: Sequence[str | None] | None = None,
        sequence: int | None = None,
        spread: Delay | None = None,
        replace: Sequence[Replace | str | None] | None = None,
    ) -> Receipts:
        """Send a batch of columns, and wait until all messages are durable.

        This is the fastest way to publish, because no object is made for a single message.

        Args:
          batch: the columns of the messages. The payloads are bytes: the serializer is not
            used.
          times: the delays or delivery times of the messages; None delivers them at once.
          dedup: a list with a dedup key or None per message; see ``send``.
          sequence: the number of the first message; see ``send``.
          spread: scatter the due times of the messages over this span; see ``send``.
          replace: a list with a replace key, a ``Replace`` or None per message; see ``send``.
            Messages of the batch with the same key meet each other in their order.

        Returns:
          One receipt per message, in columns.

        Raises:
          The errors of ``send_many``.
        """
        if not isinstance(batch, MessageBatch):
            raise InvalidRequest(f"batch must be a MessageBatch, not {type(batch).__name__}")
        if not len(batch):
            return Receipts(self.topic, np.zeros(0, np.int64), np.zeros(0, np.bool_))
        times = times or Times()
        for column in (times.delay_ms, times.at_ms):
            if column is not None and len(column) != len(batch):
                raise InvalidRequest(f"{len(column)} times were given for {len(batch)} messages")
        same = None if dedup is None else digests(dedup)
        if same is not None and len(same) != len(batch):
            raise InvalidRequest(f"{len(same)} dedup keys were given for {len(batch)} messages")
        spread_ms = delivery_times.span_ms(spread)
        replaces = None
        if replace is not None:
            self._check_replaces()
            if len(content.several("replace", replace)) != len(batch):
                raise InvalidRequest(
                    f"{len(replace)} replace keys were given for {len(batch)} messages"
                )
            replaces = ReplaceColumns.of(replace)
        await self._have_room()
        now_s = anyio.current_time()
        requests = self._outbox.add_batch(batch, times, sequence, now_s, same, spread_ms, replaces)
        self._line.wake(self)
        for request in requests:
            await request.wait()
        for request in requests:
            if request.error is not None:
                raise copy(request.error)
        return Receipts._of(self.topic, requests)

    def message(self, value: Any) -> MessageBuilder[Coroutine[Any, Any, Receipt]]:
        """Return a builder with which to describe a message step by step and then send it."""
        return MessageBuilder(self.send, value)

    async def close_group(self, group: str, subscription: str, then: FollowUp) -> Group:
        """Wait for all messages sent before, then close a group of this producer's topic.

        Args, the result and errors are as for ``Groups.close``.
        """
        await self.flush()
        groups = Groups(partial(ask_verb_of, self._line))
        return await groups.close(self.topic, group, subscription, then)

    async def flush(self) -> None:
        """Wait until all messages that were sent before this call are durable or have failed."""
        last = self._outbox.last
        if last is not None:
            await last.wait()

    async def aclose(self) -> None:
        """Wait until all messages are durable or have failed, then close this producer."""
        await self.flush()
        if self._error is None:
            done = self._close("this producer is closed")
            with anyio.move_on_after(self._line.settings.close_timeout_s):
                await done.wait()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.aclose()
        elif self._error is None:
            self._close("this producer is closed")

    # -- commands from and to the broker -----------------------------------------------

    async def _drain(self) -> None:
        await self.flush()

    @property
    def _full(self) -> bool:
        return self._outbox.full

    def _request(self, request_id: int) -> Command:
        link = self._line.link
        is_known = link is not None and LIMIT_PRODUCER_REASON in link.welcome.limits
        reason = self._reason if is_known else ""
        return wire.OpenProducer(request_id, self._id, self.topic, self.name, self._epoch, reason)

    def _closing(self, request_id: int) -> Command:
        return wire.CloseProducer(request_id, self._id)

    def _ready(self, answer: Command) -> None:
        assert isinstance(answer, wire.ProducerReady)
        self._epoch = answer.epoch
        self._outbox.resume(answer.last_sequence)
        self._made_room()

    def _work(self, now_s: float, ready: bool) -> float:
        outbox = self._outbox
        deadline_s = outbox.expire(now_s)
        if ready:
            requests, again_s = outbox.take(now_s)
            for request, after in requests:
                command = wire.Publish(
                    self._id,
                    request.sequence,
                    after,
                    request.times.delay_ms,
                    request.times.at_ms,
                    request.body,
                    request.dedup,
                    *((None, None) if request.replace is None else request.replace),
                )
                try:
                    self._line.send(command)
                except EscapementError as error:
                    outbox.refused(request.sequence, error, now_s)
            deadline_s = min(deadline_s, again_s)
        self._made_room()
        return deadline_s

    def _lost(self) -> None:
        self._outbox.lost()

    def _fail(self, error: EscapementError) -> None:
        self._outbox.fail(error)

    def _heard(self, command: Command) -> None:
        match command:
            case wire.Receipt():
                self._outbox.receipt(
                    command.sequence,
                    command.base_offset,
                    command.duplicate,
                    command.offsets,
                    command.repeated,
                    command.previous,
                )
            case wire.Refused():
                error = command.error()
                if isinstance(error, ProducerFenced):
                    self._failed(error)
                else:
                    self._outbox.refused(command.sequence, error, anyio.current_time())
            case wire.ProducerClosed():
                self._refused(command.error())
        self._made_room()
        if not self._outbox.empty:
            self._line.wake(self)
