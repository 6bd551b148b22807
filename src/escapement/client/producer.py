"""A producer: values in, receipts out.

What it promises: a receipt means that the message is durable; a message is stored once,
however often connections are lost; messages of one producer are stored in the order in
which they were sent. It is the outbox that keeps these, the producer only carries what
the outbox says to the broker and back.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from copy import copy
from datetime import datetime
from types import TracebackType
from typing import Any, Final

import anyio
import numpy as np

from escapement.client import content, schedule
from escapement.client.attachment import Attached
from escapement.client.bounds import Bounds
from escapement.client.builder import MessageBuilder
from escapement.client.groups import FollowUp, Group, Groups
from escapement.client.line import Line
from escapement.client.outbox import Outbox
from escapement.client.promise import Promise
from escapement.client.receipt import Pending, Receipt, Receipts
from escapement.client.retry import Retry
from escapement.client.schedule import Delay
from escapement.client.serializers import SerializerLike, serializer
from escapement.dedup import NO_DIGEST, digest, digests
from escapement.errors import Disconnected, EscapementError, InvalidRequest, ProducerFenced
from escapement.message import DEFAULT_PRIORITY, Blobs, MessageBatch, Times
from escapement.names import TopicName, anonymous_name, check_name
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command


class Producer(Attached):
    """Made by ``Broker.producer``; for any number of tasks at once."""

    def __init__(
        self,
        line: Line,
        topic: str,
        name: str | None,
        choice: SerializerLike,
        bounds: Bounds,
    ) -> None:
        super().__init__(line)
        self.topic: Final = TopicName.parse(topic).full
        # Without a name of its own it has one that nobody else has, so that what is
        # sent again is known again.
        self.name: Final = anonymous_name() if name is None else check_name("producer", name)
        self._serializer = serializer(choice)
        self._outbox = Outbox(bounds, Retry())
        self._room = Promise()
        self._epoch = -1

    @property
    def next_sequence(self) -> int:
        """The number of the next message; one more than the last that is stored, at first."""
        return self._outbox.next_sequence

    @property
    def waits_for(self) -> EscapementError | None:
        """Why what was sent first is not stored yet, where that is known; it is tried again."""
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
    ) -> Receipt:
        """Send one message and wait until it is durable.

        Concurrent sends of any number of tasks travel as one batch.

        Args:
          value: what the serializer takes.
          delay: how long to wait, counted by the broker: a timedelta, ``(3, "minutes")``,
            or ``"3m"``.
          at: or when to deliver it, an aware datetime; a time that has passed is now.
          key: for the application's own use.
          properties: a small map of plain values, for the application's own use.
          priority: 0 to 255; of what is due, shared subscriptions take the lower first.
          dedup: says that messages are the same: of two with one key, sent by whomever within
            the topic's window (``dedup_window_ms``, 10 minutes), only the first is stored, and
            the receipt of the second has its id and says ``duplicate``. So it is when the first
            has been cancelled meanwhile: a retry does not bring back what was cancelled. To send
            it after all, use another key, or reschedule the first rather than cancel it.
          group: the name of the topic's group that the message belongs to; see ``Groups``.
          sequence: the message's number, if the application counts by itself: of one
            that is stored already, the receipt says so.

        Raises:
          InvalidRequest: before anything is sent, if an argument cannot be meant.
          Disconnected: if no receipt came in time; whether it is stored is not known.
          EscapementError: if the broker refused: it is not stored.
        """
        pending = await self.submit(
            value,
            delay=delay,
            at=at,
            key=key,
            properties=properties,
            priority=priority,
            dedup=dedup,
            group=group,
            sequence=sequence,
        )
        return await pending.wait()

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
    ) -> Pending:
        """Send one message; the receipt may be waited for later, with ``await``.

        Waits only while too much is in flight. Arguments and errors as in ``send``.
        """
        payload = self._serializer.dumps(value)
        delay_ms, at_ms = schedule.one(delay, at)
        key_bytes = content.key(key) if key is not None else b""
        packed = content.properties(properties) if properties else b""
        if priority != DEFAULT_PRIORITY:
            content.check_priority(priority)
        same = NO_DIGEST if dedup is None else digest(dedup)
        member_of = b"" if group is None else content.group(group)
        await self._have_room()
        now_s = anyio.current_time()
        parcel, row = self._outbox.add(
            payload,
            key_bytes,
            packed,
            priority,
            delay_ms,
            at_ms,
            sequence,
            now_s,
            same,
            member_of,
        )
        self._line.wake(self)
        return Pending(self.topic, parcel, row)

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
    ) -> Receipts:
        """Send messages as one batch (or a few, if the broker's limits ask for it).

        Args:
          values: what the serializer takes, each.
          delay: one for all; or a list with one each, or None; or int64 milliseconds.
          at: or one time for all; or a list with one each; or int64 Unix milliseconds.
          keys: one each, or None.
          properties: one map each, or None.
          priorities: one for all, or one each.
          dedup: one key each, or None; see ``send``.
          groups: one group for all, or one each, or None; see ``send``.
          sequence: the number of the first; see ``send``.

        Raises:
          As ``send``. A batch that the limits split may have been stored in part; sent
          again with the same ``sequence`` it is completed.
        """
        count = len(content.several("values", values))
        dumps = self._serializer.dumps
        batch = MessageBatch(
            Blobs.of([dumps(value) for value in values]),
            None
            if keys is None
            else Blobs.of([content.key(k) if k else b"" for k in content.several("keys", keys)]),
            None
            if properties is None
            else Blobs.of(
                [
                    content.properties(p) if p else b""
                    for p in content.several("properties", properties)
                ]
            ),
            content.priorities(priorities, count),
            content.groups(groups, count),
        )
        for column in (batch.keys, batch.properties, batch.priorities, batch.groups):
            if column is not None and len(column) != count:
                raise InvalidRequest(f"a column of {len(column)} came with {count} messages")
        times = schedule.times(delay, at, count)
        return await self.send_batch(batch, times, dedup=dedup, sequence=sequence)

    async def send_batch(
        self,
        batch: MessageBatch,
        times: Times | None = None,
        *,
        dedup: Sequence[str | None] | None = None,
        sequence: int | None = None,
    ) -> Receipts:
        """Send columns as they are; the fastest way. Errors as ``send_many``."""
        if not isinstance(batch, MessageBatch):
            raise InvalidRequest(f"a batch is a MessageBatch, not {type(batch).__name__}")
        if not len(batch):
            return Receipts(self.topic, np.zeros(0, np.int64), np.zeros(0, np.bool_))
        times = times or Times()
        for column in (times.delay_ms, times.at_ms):
            if column is not None and len(column) != len(batch):
                raise InvalidRequest(f"{len(column)} times were given for {len(batch)} messages")
        same = None if dedup is None else digests(dedup)
        if same is not None and len(same) != len(batch):
            raise InvalidRequest(f"{len(same)} dedup keys were given for {len(batch)} messages")
        await self._have_room()
        parcels = self._outbox.add_batch(batch, times, sequence, anyio.current_time(), same)
        self._line.wake(self)
        for parcel in parcels:
            await parcel.wait()
        for parcel in parcels:
            if parcel.error is not None:
                raise copy(parcel.error)
        return Receipts.of(self.topic, parcels)

    def message(self, value: Any) -> MessageBuilder[Coroutine[Any, Any, Receipt]]:
        """A message to be described step by step, then sent."""
        return MessageBuilder(self.send, value)

    async def close_group(self, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group of the topic, behind what was sent so far; see ``Groups.close``."""
        await self.flush()
        return await Groups(self._line).close(self.topic, group, subscription, then)

    async def flush(self) -> None:
        """Wait until everything sent so far is settled, one way or the other."""
        last = self._outbox.last
        if last is not None:
            await last.wait()

    async def aclose(self) -> None:
        """Wait for what is in flight, then give the producer back."""
        await self.flush()
        if self.error is None:
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
        elif self.error is None:
            self._close("this producer is closed")

    async def _have_room(self) -> None:
        self._check()
        while self._outbox.full:
            self._room = Promise() if self._room.settled else self._room
            await self._room.wait()
            self._check()

    # -- what it says to the broker, and back ------------------------------------------

    def _request(self, request_id: int) -> Command:
        return wire.OpenProducer(request_id, self.id, self.topic, self.name, self._epoch)

    def _closing(self, request_id: int) -> Command:
        return wire.CloseProducer(request_id, self.id)

    def _ready(self, answer: Command) -> None:
        assert isinstance(answer, wire.ProducerReady)
        self._epoch = answer.epoch
        self._outbox.resume(answer.last_sequence)
        self._room.settle()

    def _work(self, now_s: float, ready: bool) -> float:
        outbox = self._outbox
        deadline_s = outbox.expire(now_s)
        if ready:
            parcels, again_s = outbox.take(now_s)
            for parcel, after in parcels:
                command = wire.Publish(
                    self.id,
                    parcel.sequence,
                    after,
                    parcel.delay_ms,
                    parcel.at_ms,
                    parcel.body,
                    parcel.dedup,
                )
                try:
                    self._line.send(command)
                except EscapementError as error:
                    outbox.refused(parcel.sequence, error, now_s)
            deadline_s = min(deadline_s, again_s)
        self._settled()
        return deadline_s

    def _lost(self) -> None:
        self._outbox.lost()

    def _fail(self, error: EscapementError) -> None:
        self._outbox.fail(error)
        self._room.settle()

    def heard(self, command: Command) -> None:
        match command:
            case wire.Receipt():
                self._outbox.receipt(
                    command.sequence,
                    command.base_offset,
                    command.duplicate,
                    command.offsets,
                    command.repeated,
                )
            case wire.Refused():
                error = command.error()
                if isinstance(error, ProducerFenced):
                    self.failed(error)
                else:
                    self._outbox.refused(command.sequence, error, anyio.current_time())
            case wire.ProducerClosed():
                self._refused(command.error())
        self._settled()
        if not self._outbox.empty:
            self._line.wake(self)

    def _settled(self) -> None:
        if not self._room.settled and not self._outbox.full:
            self._room.settle()
