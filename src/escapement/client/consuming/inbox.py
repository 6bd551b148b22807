"""The class ``Inbox``, a consumer: it receives messages, acknowledges them, and closes.

Delivered messages wait in the *delivery buffer* until the application receives them. The buffer has
at most ``permits`` messages (see ``delivery_buffer``). Acknowledgements are sent through the *ack
queue* (see ``ack_queue``), and negative acknowledgements, rejects and releases through the *return
queue* (see ``return_queue``).

A *link* is one connection to the broker; after it is lost, the client connects again. When a link
is lost, the consumer discards its delivery buffer, and the broker redelivers the messages to any
consumer of the subscription. The application can still acknowledge messages that it has received:
the broker identifies a message by its offset, independent of the consumer.

Messages that wait in the delivery buffer for longer than the ack wait are discarded. The broker
has taken them back by then, and may have delivered them to another consumer.

A *seek* moves the subscription to another position. All earlier deliveries are then void, so the
consumer discards its delivery buffer.

Receiving takes messages from the delivery buffer without a checkpoint, except for every
``CHECKPOINT_EVERY``-th message, and waits while the buffer is empty.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from math import inf
from typing import Final

import anyio

from escapement.client import delivery_times
from escapement.client.ack_deadlines import AckDeadlines
from escapement.client.connection.attachment import Attached, State
from escapement.client.connection.line import Answer, Line
from escapement.client.connection.promise import Promise
from escapement.client.connection.retried_request import ask_verb_of
from escapement.client.connection.retry import Retry
from escapement.client.constructor import internal
from escapement.client.consuming.ack_queue import LINGER_S, AckQueue, PendingAck
from escapement.client.consuming.batch import Batch, Batches, Message
from escapement.client.consuming.delivery_buffer import DeliveryBuffer
from escapement.client.consuming.return_queue import BACK_OFF, ReturnKind, ReturnQueue, check_detail
from escapement.client.delivery import Source
from escapement.client.delivery_times import Delay, Where
from escapement.client.message_ids import What, name_messages
from escapement.client.serializers import SerializerLike, serializer
from escapement.errors import Conflict, Disconnected, EscapementError, InvalidRequest
from escapement.event_log import EventLog
from escapement.field import Field
from escapement.message import Int64s
from escapement.names import SUBSCRIPTION_KINDS, check_name, full_name
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command
from escapement.protocol.limits import LIMIT_DETAIL, LIMIT_REJECTS, MAX_ACK_ROWS, MAX_PERMITS
from escapement.traits import KeyRange, check_key_range

_log = EventLog("escapement.client")

# A loop that receives messages without waiting lets other tasks run after this many messages.
# Receiving a message takes less than a microsecond, so 64 of them take a short time. A checkpoint
# takes several microseconds.
CHECKPOINT_EVERY: Final = 64
# The broker may not notice that a link was lost. Then it still has this consumer, and refuses to
# open it on the next link, if it is exclusive or has a range of keys. It closes a silent connection
# after 90 s (``idle_timeout_s``).
OWN_CLAIM_S: Final = 120.0


class Inbox(Attached):
    """A consumer of a subscription, created by ``Broker.consumer``.

    Iterate over it to receive messages. Only one task may receive at a time, and any task may
    acknowledge.

    Attributes:
      topic: the full name of the topic.
      subscription: the name of the subscription.
      name: the name of this consumer, or "".
      active: whether this consumer is the one that a failover subscription delivers to. Always
        True for other subscriptions.
      fields: the names and types of the columns of a message table. They arrive when this consumer
        joins, and whenever they have changed. None for ordinary topics.
    """

    @internal
    def __init__(
        self,
        line: Line,
        topic: str,
        subscription: str,
        *,
        kind: str,
        position: Where,
        permits: int,
        ack_wait_ms: int,
        choice: SerializerLike,
        name: str,
        key_range: KeyRange,
    ) -> None:
        super().__init__(line)
        if type(permits) is not int or not 0 <= permits <= MAX_PERMITS:
            raise InvalidRequest(
                f"permits must be an integer from 0 to {MAX_PERMITS}, not {permits!r}"
            )
        if kind not in SUBSCRIPTION_KINDS:
            raise InvalidRequest(f"kind must be shared, exclusive or failover, not {kind!r}")
        self.topic = full_name(topic)
        self.subscription: Final = check_name("subscription", subscription)
        self.name: Final = check_name("consumer", name) if name else ""
        self.active = kind != "failover"
        self.fields: tuple[Field, ...] | None = None
        self._kind = kind
        self._position: Final = str(delivery_times.position(position, self.topic))
        self._ack_wait_ms = ack_wait_ms
        self._key_range = check_key_range(key_range)
        if key_range is not None and kind != "shared":
            raise InvalidRequest(f"only shared subscriptions have key ranges; this one is {kind}")
        self._log = b""  # the id of the log, and that of the subscription in it
        self._subscription_id = 0
        self._loads = serializer(choice).loads
        self._buffer = DeliveryBuffer(permits)
        self._only_pulls = permits == 0
        self._pulling = False
        self._clock_s = line.clock_s
        self._received = 0
        self._arrived = Promise()
        self._acks = AckQueue(Retry())
        self._returned = ReturnQueue()
        self._untried: Int64s | None = None  # on closing: offsets of messages left in the buffer
        self._leaving = False  # True from ``aclose`` on: the consumer grants no more permits
        self._closed = False  # True after ``aclose``
        # Until then, a conflict may be one with this consumer on its earlier link.
        self._own_claim_until_s = -inf
        self._voided = 0  # how often all earlier deliveries became void

    # -- receiving -------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message and return it. The iteration ends when this consumer closes.

        Raises:
          EscapementError: if the broker has closed this consumer, or the connection is closed.
        """
        message = self._at_once() or await self._receive(None)
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """Wait for the next message and return it.

        Args:
          timeout_s: how long to wait, in seconds; None waits without limit.

        Returns:
          The message, or None if none arrives in time or this consumer is closed by ``aclose``.

        Raises:
          EscapementError: if the broker has closed this consumer, or the connection is closed.
        """
        return self._at_once() or await self._receive(timeout_s)

    def _at_once(self) -> Message | None:
        """Return the next message. Return None if there is none, or a checkpoint must come first.

        This is apart from ``_receive``, because most messages need no wait.
        """
        self._received += 1
        if self._received % CHECKPOINT_EVERY == 0:
            return None
        buffer = self._buffer
        if self._clock_s() > buffer.until_s:
            self._discard_late()
        message = buffer.pop()
        if buffer.free >= buffer.enough:
            self._give_credit()
        return message

    async def _receive(self, timeout_s: float | None) -> Message | None:
        """Wait for the next message, and return it as ``receive`` does."""
        message = self._buffer.pop() if await self._some(timeout_s) else None
        self._give_credit()
        return message

    def batches(self) -> Batches:
        """Return an async iterator over the messages in batches: ``async for batch in ...``."""
        return Batches(self.next_batch)

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """Wait for the next batch of messages and return it.

        If ``receive`` has returned some messages of a batch, this returns the rest of that batch.

        Args:
          timeout_s: how long to wait, in seconds; None waits without limit.

        Returns:
          The batch, or None if none arrives in time or this consumer is closed by ``aclose``.

        Raises:
          EscapementError: if the broker has closed this consumer, or the connection is closed.
        """
        batch = self._buffer.pop_batch() if await self._some(timeout_s) else None
        self._give_credit()
        return batch

    async def pull(self, count: int, timeout_s: float | None = None) -> list[Batch]:
        """Pull messages: wait until there are any, and return at most ``count``.

        Between two pulls this consumer gets no messages. So no message waits in its buffer while
        other consumers of the subscription have nothing to do. Open it with ``permits=0``. If this
        call is cancelled, the broker redelivers the messages without counting an attempt.

        Args:
          count: the most messages to return.
          timeout_s: how long to wait for the first message, in seconds; None waits without limit.

        Returns:
          The messages in batches. It is empty if none arrives in time, if this consumer is closed,
          or if the pull took so long to end that the broker has taken all messages back.

        Raises:
          InvalidRequest: if ``count`` is not valid, this consumer was not opened with
            ``permits=0``, or another pull is in progress.
          EscapementError: if the broker has closed this consumer, or the connection is closed.
        """
        if type(count) is not int or not 1 <= count <= MAX_PERMITS:
            raise InvalidRequest(f"count must be an integer from 1 to {MAX_PERMITS}, not {count!r}")
        if not self._only_pulls:
            raise InvalidRequest("only a consumer that was opened with permits=0 can pull")
        if self._pulling:
            raise InvalidRequest("another pull of this consumer is in progress")
        self._check()
        self._pulling = True
        try:
            return await self._pull(count, timeout_s)
        finally:
            self._pulling = False

    async def _pull(self, count: int, timeout_s: float | None) -> list[Batch]:
        self._buffer.begin_pull(count)
        if self._state is State.READY:
            self._allow(self._buffer.grant_all())
        try:
            await self._some(timeout_s)
            await self._stop_pull()
        except BaseException:
            with anyio.move_on_after(self._line.settings.close_timeout_s, shield=True):
                await self._stop_pull()
            self._return(wire.Release, self._buffer.waiting(), 0)
            self._buffer.clear()
            raise
        # The broker may have taken a long time to stop.
        pulled, late = self._buffer.end_pull(self._clock_s())
        if late:
            warn_of_late(self.topic, self.subscription, late)
        return pulled

    async def _stop_pull(self) -> None:
        self._buffer.stop_pull()
        await self._halt()

    async def _some(self, timeout_s: float | None) -> bool:
        """Wait until the delivery buffer has messages, the time has passed, or this is closed.

        Returns whether it has messages, which the caller must take before it waits again. This is
        always a checkpoint. No message is taken before it, so a cancellation loses none.
        """
        if not self._buffer.empty:
            await anyio.lowlevel.checkpoint()
            if self._has_messages():
                return True
            # The connection was lost during the checkpoint, or the application came too late. The
            # broker sends the messages again.
        if timeout_s is None:
            return await self._arrival()
        with anyio.move_on_after(timeout_s):
            return await self._arrival()
        return self._has_messages()

    async def _arrival(self) -> bool:
        """Wait until the delivery buffer has messages, or this is closed; return which."""
        if self._only_pulls and not self._pulling:
            raise InvalidRequest("this consumer was opened with permits=0: call pull")
        while not (found := self._has_messages()) and not self._closed:
            self._check()
            if self._arrived.settled:
                self._arrived = Promise()
            await self._arrived.wait()
        return found

    def _has_messages(self) -> bool:
        """Return whether the delivery buffer has messages that the application may get."""
        if self._clock_s() > self._buffer.until_s:
            self._discard_late()
        return not self._buffer.empty

    def _discard_late(self) -> None:
        """Discard messages that the broker has taken back, because they waited too long here."""
        warn_of_late(self.topic, self.subscription, self._buffer.discard_late(self._clock_s()))
        self._give_credit()

    def _give_credit(self) -> None:
        if self._state is State.READY and (permits := self._buffer.due_credit()):
            self._allow(permits)

    def _allow(self, permits: int) -> None:
        if permits and not self._leaving:
            self._line.send(wire.Flow(self._id, permits))

    # -- acknowledging ---------------------------------------------------------------

    async def ack(self, what: What, *, durable: bool = False) -> int | None:
        """Acknowledge messages, so that the subscription never delivers them again.

        Without ``durable``, the call queues the acknowledgement, which is sent together with
        others. It waits only while very many acknowledgements are unanswered.

        Args:
          what: messages, their ids or their offsets, one or several; or an int64 array of
            offsets.
          durable: wait until the acknowledgement is durable, so that not even a crash of the
            broker can undo it.

        Returns:
          With ``durable``, the number of messages that this call acknowledged, not counting
          those that were acknowledged before. Otherwise None.

        Raises:
          InvalidRequest: if ``what`` does not name messages of this topic. Nothing is sent.
          Disconnected: with ``durable``, if no answer arrives in time. The client continues
            to send the acknowledgement, and ``flush_acks`` waits for it again.
          EscapementError: with ``durable``, if the broker refuses.
        """
        if not durable and isinstance(what, Message) and what._columns._origin is self:
            await what.ack()
            return None
        offsets = self._named(what)
        return await self._acknowledge(lambda pending_ack: pending_ack.add(offsets), durable)

    async def ack_range(self, first: int, last: int, *, durable: bool = False) -> int | None:
        """Acknowledge the messages with offsets from ``first`` to ``last``, both included.

        ``durable``, the result and errors are as for ``ack``.
        """
        if not 0 <= first <= last:
            raise InvalidRequest(f"{first} to {last} is not a range of offsets")
        return await self._acknowledge(
            lambda pending_ack: pending_ack.add_range(first, last + 1), durable
        )

    async def nack(self, what: What, delay: Delay | None = None) -> None:
        """Negatively acknowledge (nack) messages, so that the broker redelivers them.

        The call does not wait. If the connection is lost before the nack is sent, the broker
        redelivers the messages without regard to ``delay``.

        Args:
          what: the messages, as for ``ack``.
          delay: the broker redelivers them after this delay; None selects the back-off of the
            subscription.
        """
        self._give_back(self._named(what), delay)

    async def reject(self, what: What, detail: str = "") -> None:
        """Reject messages that can never be processed: the broker makes them dead letters.

        It does so at once, however many deliveries the subscription permits. The call does not
        wait. If the connection is lost before the reject is sent, the broker redelivers the
        messages. A broker of an earlier version retries them, as after ``nack``. So does every
        broker with the rows of a message table.

        Args:
          what: the messages, as for ``ack``.
          detail: why, in at most 200 characters, such as "HTTP 410". The dead letters have it
            beside their reason, ``rejected``. A broker of an earlier version leaves it out.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
        """
        self._give_up(self._named(what), detail)

    async def release(self, what: What, delay: Delay | None = None) -> None:
        """Release messages: the broker redelivers them without counting this delivery.

        Use it for messages that the application has not tried to process. The delivery does not
        count as an attempt. The next delivery goes to any consumer and is marked as redelivered.

        Args:
          what: the messages, as for ``ack``.
          delay: the broker redelivers them after this delay; None means at once.
        """
        self._hand_back(self._named(what), delay)

    async def extend(self, what: What, wait: Delay) -> int:
        """Extend the ack deadline of messages to at least ``wait`` from now.

        The broker redelivers a message that is not acknowledged before its ack deadline. A
        deadline that is later already stays. Messages that the application has not received are
        discarded at their first deadline nevertheless.

        Args:
          what: the messages, as for ``ack``.
          wait: the time that the application still needs.

        Returns:
          How many of these messages are still in flight at this consumer. The broker may have
          delivered the others to another consumer. If the connection is lost, the result is 0,
          because all deliveries to this consumer have ended.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent.
          Disconnected: if the broker does not answer in time. The deadlines may or may not be
            extended.
        """
        offsets, wait_ms = self._named(what), delivery_times.delay_ms(wait, "wait")
        return await self._count(lambda number: wire.Extend(number, self._id, offsets, wait_ms))

    async def seek(self, position: Where) -> None:
        """Move the subscription to another position, to skip messages or to receive them again.

        A seek has the effect of deleting the subscription and creating it at the new position,
        except that its settings and consumers stay. The earlier deliveries to all its consumers
        are void, and the consumers discard their delivery buffers. Attempts count from 1 again.
        The acknowledgement of a message that was received before the seek still counts if it is
        sent after the seek.

        Args:
          position: latest, earliest, an offset, a message id, or an aware datetime, as for
            ``Broker.consumer``.

        Raises:
          InvalidRequest: if the position is not valid, or an offset past the end of the log.
          Disconnected: if no answer arrives. The seek may or may not have taken effect.
          EscapementError: if the broker refuses.
        """
        where = str(delivery_times.position(position, self.topic))
        # Acknowledgements that were queued before the seek must take effect before it.
        await self._until_answered(self._acks.unsettled)
        await ask_verb_of(
            self._line,
            "subscriptions.seek",
            topic=self.topic,
            subscription=self.subscription,
            position=where,
        )

    async def flush_acks(self) -> None:
        """Wait until all acknowledgements that were queued before this call are durable.

        Raises:
          EscapementError: the error of the first of these that the broker has refused since the
            last call, or the error of a consumer that has failed or is closed.
          Disconnected: if some are not answered in time. The client continues to send them.
        """
        self._check()
        pending_acks = self._acks.unsettled
        await self._until_answered(pending_acks)
        refusal, self._acks.refusal = self._acks.refusal, None
        errors = [refusal, *[pending_ack.error for pending_ack in pending_acks]]
        for error in errors:
            if error is not None:
                raise copy(error)

    async def _until_durable(self, pending_acks: Sequence[PendingAck]) -> None:
        """Wait until the given pending acks are durable. Raises the errors of ``flush_acks``."""
        await self._until_answered(pending_acks)
        for pending_ack in pending_acks:
            if pending_ack.error is not None:
                raise copy(pending_ack.error)

    async def _until_answered(self, pending_acks: Sequence[PendingAck]) -> None:
        timeout_s = self._line.settings.request_timeout_s
        with anyio.move_on_after(timeout_s):
            for pending_ack in pending_acks:
                await pending_ack.wait()
            return
        raise Disconnected(
            f"no answer within {timeout_s:g} s: acknowledgements may or may not be durable. "
            "The client continues to send them"
        )

    def _named(self, what: What) -> Int64s:
        _, offsets = name_messages(what, self.topic)
        if len(offsets) > MAX_ACK_ROWS:
            raise InvalidRequest(
                f"{len(offsets)} messages are too many for one call: pass at most {MAX_ACK_ROWS}"
            )
        return offsets

    async def _acknowledge(self, add: Callable[[PendingAck], None], durable: bool) -> int | None:
        await self._have_room()
        if not durable:
            self._queue(add)
            return None
        pending_ack = PendingAck()
        add(pending_ack)
        self._acks.put(pending_ack)
        self._line.wake(self)
        await self._until_durable([pending_ack])
        return pending_ack.count

    def _done(self, offset: int) -> PendingAck:
        """Queue the acknowledgement of the message at ``offset``, without waiting."""
        pending_ack = self._acks.gathering()
        pending_ack.add_one(offset)
        self._acks.added(1)
        self._line.wake(self)
        return pending_ack

    def _all_done(self, offsets: Int64s) -> None:
        """Queue the acknowledgement of the messages at ``offsets``, without waiting."""
        self._queue(lambda pending_ack: pending_ack.add(offsets))

    def _queue(self, add: Callable[[PendingAck], None]) -> None:
        """Queue the acknowledgements that ``add`` adds to the open pending ack.

        Do nothing if this consumer has failed: nothing would send them, or settle them.
        """
        if self._error is not None:
            return
        pending_ack = self._acks.gathering()
        before = pending_ack.rows
        add(pending_ack)
        self._acks.added(pending_ack.rows - before)
        self._line.wake(self)

    def _give_back(self, offsets: Int64s, delay: Delay | None) -> None:
        """Queue the negative acknowledgement of the messages at ``offsets``, without waiting."""
        delay_ms = BACK_OFF if delay is None else delivery_times.delay_ms(delay)
        self._return(wire.Nack, offsets, delay_ms)

    def _give_up(self, offsets: Int64s, detail: str) -> None:
        """Queue the rejection of the messages at ``offsets``, without waiting."""
        self._return(wire.Reject, offsets, BACK_OFF, check_detail(detail))

    def _hand_back(self, offsets: Int64s, delay: Delay | None) -> None:
        """Queue the release of the messages at ``offsets``, without waiting."""
        self._return(wire.Release, offsets, 0 if delay is None else delivery_times.delay_ms(delay))

    async def _return_counted(
        self, kind: ReturnKind, what: What, delay: Delay | None = None, detail: str = ""
    ) -> int:
        """Nack, reject or release messages, and wait for the broker's answer.

        Returns:
          How many of these messages were in flight at this consumer, as for ``extend``. The call
          has no effect on the others.
        """
        offsets, delay_ms = self._named(what), 0 if kind is wire.Release else BACK_OFF
        if delay is not None:
            delay_ms = delivery_times.delay_ms(delay)
        said = check_detail(detail)
        return await self._count(
            lambda number: self._return_command(number, kind, offsets, delay_ms, said)
        )

    async def _count(self, command: Callable[[int], Command]) -> int:
        """Send a command about messages in flight, and return how many the broker says it changed.

        The result is 0 if the connection is lost, because all deliveries have ended then.
        """
        if self._state is not State.READY:
            return 0
        link = self._line.link
        try:
            answer = await self._line.ask(command)
        except Disconnected:
            if self._line.link is link:
                raise
            return 0
        assert isinstance(answer, wire.Acked)
        return answer.count

    def _return(self, kind: ReturnKind, offsets: Int64s, delay_ms: int, detail: str = "") -> None:
        if self._state is State.READY and len(offsets):
            self._returned.add(kind, offsets, delay_ms, detail)
            self._line.wake(self)

    async def aclose(self) -> None:
        """Wait until acknowledgements are answered, then leave the subscription.

        The wait ends after ``close_timeout_s`` of the settings. The broker redelivers the
        messages that are not acknowledged. For messages that the application has not received,
        the delivery does not count as an attempt. If this call is cancelled, the consumer leaves
        at once, and messages that the broker has sent and that have not arrived yet count as
        attempts.
        """
        if self._error is not None:
            return
        with anyio.move_on_after(self._line.settings.close_timeout_s):
            try:
                await self._drain()
                self._leaving = True
                await self._halt()
            finally:
                if self._state is State.READY:
                    self._untried = self._buffer.waiting()
                    self._work(anyio.current_time(), True)
                    self._send_back()
                self._closed = True
                done = self._close("this consumer is closed")
            await done.wait()

    async def _drain(self) -> None:
        """Wait without limit until all queued acknowledgements are durable or refused."""
        for pending_ack in self._acks.unsettled:
            await pending_ack.wait()

    async def _halt(self) -> None:
        """Stop deliveries, and wait until all messages that the broker has sent have arrived."""
        if self._state is State.READY:
            with suppress(EscapementError):
                await self._line.ask(lambda number: wire.Halt(number, self._id))

    # -- commands from and to the broker -----------------------------------------------

    @property
    def _full(self) -> bool:
        return self._acks.full

    def _request(self, request_id: int) -> Command:
        return wire.Subscribe(
            request_id,
            self._id,
            self.topic,
            self.subscription,
            self._kind,
            self._position,
            self._ack_wait_ms,
            self.name,
            self._key_range,
        )

    def _closing(self, request_id: int) -> Command:
        return wire.CloseConsumer(request_id, self._id, self._untried)

    def _ready(self, answer: Command) -> None:
        assert isinstance(answer, wire.ConsumerReady)
        self._log, self._subscription_id = answer.log, answer.subscription_id
        assert self._buffer.empty, "the buffer was not cleared after the earlier connection"
        self._allow(self._buffer.grant_all())

    def _work(self, now_s: float, ready: bool) -> float:
        if not ready:
            return inf
        pending_acks, again_s = self._acks.take(now_s)
        # Nacks and releases wait while acknowledgements are being collected, so that several of
        # them are sent together.
        if again_s > now_s + LINGER_S:
            self._send_back()
        for pending_ack in pending_acks:
            self._send_pending_ack(pending_ack)
        return again_s

    def _send_back(self) -> None:
        for returned in self._returned.take():
            self._line.send(self._return_command(0, *returned))

    def _return_command(
        self, number: int, kind: ReturnKind, offsets: Int64s, delay_ms: int, detail: str
    ) -> Command:
        """Return a command that the connected broker knows; without an answer if number is 0."""
        link = self._line.link
        known = {} if link is None else link.welcome.limits
        if kind is wire.Release:
            return wire.Release(number, self._id, offsets, delay_ms)
        if kind is wire.Reject and LIMIT_REJECTS in known:
            return wire.Reject(number, self._id, offsets, detail if LIMIT_DETAIL in known else "")
        return wire.Nack(number, self._id, offsets, delay_ms)

    def _send_pending_ack(self, pending_ack: PendingAck) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, wire.Acked):
                self._acks.answered(pending_ack, answer.count)
            elif isinstance(answer, Disconnected):
                pending_ack.sent = False
            elif isinstance(answer, EscapementError):
                if not answer.retryable:
                    _log.warning(
                        "client.ack_refused",
                        "%s: an acknowledgement was refused: %s",
                        self.topic,
                        answer,
                        topic=str(self.topic),
                        code=answer.code,
                    )
                self._acks.refused(pending_ack, answer, anyio.current_time())
            self._made_room()
            if self._acks.gathers or not isinstance(answer, wire.Acked):
                self._line.wake(self)

        offsets, firsts, lasts = pending_ack.columns()
        self._line.request(
            lambda number: wire.Ack(number, self._id, offsets, firsts, lasts), answered
        )

    def _unlinked(self) -> None:
        # The broker may have opened this consumer although its answer was lost.
        if self._state in (State.OPENING, State.READY) and self._claims:
            self._own_claim_until_s = anyio.current_time() + OWN_CLAIM_S
        super()._unlinked()

    @property
    def _claims(self) -> bool:
        """Whether the broker refuses other consumers while it has this one."""
        return self._kind == "exclusive" or isinstance(self._key_range, tuple)

    def _may_open_later(self, error: EscapementError) -> bool:
        if isinstance(error, Conflict) and anyio.current_time() < self._own_claim_until_s:
            return True
        return super()._may_open_later(error)

    def _lost(self) -> None:
        self._voided += 1
        self._buffer.clear()
        self._returned.clear()
        self._acks.lost()
        if self._kind == "failover":
            self.active = False

    def _fail(self, error: EscapementError) -> None:
        self._voided += 1
        self._buffer.clear()
        self._acks.fail(error)
        self._arrived.settle()

    def _heard(self, command: Command) -> None:
        match command:
            case wire.Deliver():
                self._deliver(command)
            case wire.Fields():
                self.fields = command.decode()
            case wire.ConsumerActive():
                self.active = command.active
            case wire.ConsumerRewound():
                self._rewound(command)
            case wire.ConsumerClosed():
                self._refused(command.error())

    def _rewound(self, command: wire.ConsumerRewound) -> None:
        if self._state is State.READY:
            self._subscription_id = command.subscription_id
            self._voided += 1
            self._returned.clear()
            self._allow(self._buffer.grant_all())

    def _batch_type(self) -> type[Batch]:
        """Return the class of the batches that this consumer delivers."""
        return Batch

    def _deliver(self, command: wire.Deliver) -> None:
        link = self._line.link
        if self._state is not State.READY or link is None:
            return
        messages = command.decode()
        if self.fields is not None:
            messages = replace(messages, fields=self.fields)
        self._buffer.put(
            self._batch_type()(
                self,
                command.offsets,
                command.due_ms,
                command.attempts,
                command.redelivered,
                messages,
                Source(self._log, self._subscription_id, self.subscription, link.sent_after_ms),
                AckDeadlines.after(self._clock_s(), command.wait_ms, command.waits_ms),
            )
        )
        self._arrived.settle()


def warn_of_late(topic: str, subscription: str, count: int) -> None:
    """Log that a consumer has discarded messages whose ack deadline has passed."""
    _log.warning(
        "client.messages_late",
        "%s: subscription %s discards %d messages that waited for longer than the ack wait",
        topic,
        subscription,
        count,
        topic=topic,
        subscription=subscription,
        messages=count,
    )
