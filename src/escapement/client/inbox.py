"""An inbox: what a subscription delivers to one consumer.

At most ``permits`` messages wait here: see ``tray`` for the credit that bounds them, and
``ackbox`` for what becomes of acknowledgements.

When a link is lost, what waits here is dropped: the broker delivers it again, to
whomever. What was taken out already can still be acknowledged; an acknowledgement counts
by the message's offset, not by who held it.

Taking a message out of what waits here costs no checkpoint, but for one in
``CHECKPOINT_EVERY``; when nothing waits, iterating waits.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from copy import copy
from typing import Final

import anyio

from escapement.client import schedule
from escapement.client.ackbox import LINGER_S, AckBox, Slip
from escapement.client.attachment import Attached, State
from escapement.client.batch import Batch, Batches, Message
from escapement.client.line import Answer, Line
from escapement.client.naming import What, name_messages
from escapement.client.promise import Promise, all_settled
from escapement.client.retry import Retry
from escapement.client.returned import Returned
from escapement.client.schedule import Delay, Where
from escapement.client.serializers import SerializerLike, serializer
from escapement.client.tray import Tray
from escapement.errors import Disconnected, EscapementError, InvalidRequest
from escapement.message import Int64s
from escapement.names import TopicName, check_name
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command
from escapement.protocol.limits import MAX_ACK_ROWS, MAX_PERMITS
from escapement.traits import KeyRange, check_key_range

log = logging.getLogger("escapement.client")

# A loop that never waits gives others a turn this often: 64 messages of a few
# microseconds are well below what anyone notices, and a checkpoint costs as much as one.
CHECKPOINT_EVERY: Final = 64
BACK_OFF: Final = -1


class Inbox(Attached):
    """Made by ``Broker.consumer``; for one task at a time, but acks are for any."""

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
        if type(permits) is not int or not 1 <= permits <= MAX_PERMITS:
            raise InvalidRequest(f"permits are 1 to {MAX_PERMITS}, not {permits!r}")
        if kind not in ("shared", "exclusive", "failover"):
            raise InvalidRequest(f"a subscription is shared, exclusive or failover, not {kind!r}")
        self.topic = TopicName.parse(topic).full
        self.subscription: Final = check_name("subscription", subscription)
        self.name: Final = check_name("consumer", name) if name else ""
        self.active = kind != "failover"  # of a failover: whether it is the one that receives
        self._kind = kind
        self._position: Final = str(schedule.position(position))
        self._ack_wait_ms = ack_wait_ms
        self._key_range = check_key_range(key_range)
        if key_range is not None and kind != "shared":
            raise InvalidRequest(f"a key range is for shared subscriptions, not {kind} ones")
        self.loads = serializer(choice).loads
        self._tray = Tray(permits)
        self._turns = 0
        self._arrived = Promise()
        self._acks = AckBox(Retry())
        self._room = Promise()
        self._nacks = Returned()
        self._releases = Returned()
        self._untried: Int64s | None = None  # at the end: what nobody took out of here
        self._leaving = False  # it asks for nothing any more
        self._closed = False  # by this side
        self.rewinds = 0  # how often what was delivered was taken back by a seek

    # -- taking out ------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message; waits for it. Ends when the inbox is closed."""
        self._turns += 1
        if self._turns % CHECKPOINT_EVERY == 0:
            # Before a message is taken: a cancellation must not lose one.
            await anyio.lowlevel.checkpoint()
        message = self._tray.pop()
        if message is None:
            if not await self._some():
                raise StopAsyncIteration
            message = self._tray.pop()
            assert message is not None
        self._give_credit()
        return message

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None if none comes within ``timeout_s`` or ever."""
        if self._tray.empty:
            with anyio.move_on_after(timeout_s):
                await self._some()
        message = self._tray.pop()
        self._give_credit()
        return message

    def batches(self) -> Batches:
        """The messages in columns, as they were delivered: ``async for batch in ...``."""
        return Batches(self.next_batch)

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """What is left of the batch begun, or the next; None if none comes in time or ever."""
        await anyio.lowlevel.checkpoint()
        if self._tray.empty:
            with anyio.move_on_after(timeout_s):
                await self._some()
        batch = self._tray.pop_batch()
        self._give_credit()
        return batch

    async def _some(self) -> bool:
        """Wait until messages are there; False says that none will ever be."""
        while self._tray.empty:
            if self.error is not None:
                if self._closed:
                    return False
                raise copy(self.error)
            if self._arrived.settled:
                self._arrived = Promise()
            await self._arrived.wait()
        return True

    def _give_credit(self) -> None:
        if self._state is State.READY and (permits := self._tray.due_credit()):
            self._allow(permits)

    def _allow(self, permits: int) -> None:
        if not self._leaving:
            self._line.send(wire.Flow(self.id, permits))

    # -- giving back -----------------------------------------------------------------

    async def ack(self, what: What, *, durable: bool = False) -> int | None:
        """Be done with messages: ids, messages or offsets, one or many, or a column of offsets.

        Without ``durable`` it returns at once and the acknowledgement travels with the
        next; with it, it returns when they will never come again, and on how many it took
        effect (those already acknowledged do not count again).

        Raises:
          InvalidRequest: if these are not messages of this topic; nothing happens.
          Disconnected: if it was to be durable, and no answer came in time. It goes on being
            told to the broker; ``flush_acks`` waits once more.
        """
        return await self._acknowledge(self._named(what), None, durable)

    async def ack_range(self, first: int, last: int, *, durable: bool = False) -> int | None:
        """Be done with the messages from offset ``first`` to ``last``, both included."""
        if not 0 <= first <= last:
            raise InvalidRequest(f"{first} to {last} is no range of offsets")
        return await self._acknowledge(None, (first, last + 1), durable)

    async def nack(self, what: What, delay: Delay | None = None) -> None:
        """Give messages back, to be delivered again after ``delay`` or the usual back-off.

        If the connection is lost meanwhile, they come again at once.
        """
        self.give_back(self._named(what), delay)

    async def release(self, what: What, delay: Delay | None = None) -> None:
        """Hand messages back untried: this delivery does not count as an attempt.

        They are delivered again, to whomever, after ``delay`` or at once, marked redelivered.
        """
        self.hand_back(self._named(what), delay)

    async def extend(self, what: What, wait: Delay) -> int:
        """Need longer: these are not taken back before ``wait`` from now.

        A deadline that is later stays. Returns how many of them this consumer still holds;
        the others were taken back, and somebody else may have them.
        """
        offsets, wait_ms = self._named(what), schedule.delay_ms(wait)
        if self._state is not State.READY:
            return 0  # all was taken back when the connection was lost
        self._line.wake(self)
        try:
            answer = await self._line.ask(
                lambda number: wire.Extend(number, self.id, offsets, wait_ms)
            )
        except Disconnected:
            return 0
        assert isinstance(answer, wire.Acked)
        return answer.count

    async def seek(self, position: Where) -> None:
        """Have the subscription begin again: at latest, earliest, an offset, or a datetime.

        It is as if the subscription were deleted and made again there, but that its settings
        and consumers stay. What it has delivered is taken back, from all of its consumers;
        what waits here is dropped. Attempts count from 1 again. A message taken out before
        and acknowledged after this counts as acknowledged.

        Raises:
          InvalidRequest: for an offset past the log's end.
          Disconnected: if no answer came; whether it was sought is not known.
        """
        where = str(schedule.position(position))
        await self._until_answered(self._acks.unsettled)  # what was before belongs to before
        arguments = {
            "topic": self.topic,
            "subscription": self.subscription,
            "position": where,
        }
        await self._line.ask(lambda number: wire.Admin(number, "subscriptions.seek", arguments))

    async def flush(self) -> None:
        """Wait until every acknowledgement so far is answered, one way or the other."""
        for slip in self._acks.unsettled:
            await slip.wait()

    async def flush_acks(self) -> None:
        """Wait until every acknowledgement so far is durable.

        Raises:
          EscapementError: what the first was refused with, of those that were.
          Disconnected: if some have no answer in time; they go on being told to the broker.
        """
        await self.until_durable(self._acks.unsettled)

    async def until_durable(self, slips: Sequence[Slip]) -> None:
        """The same for some of them."""
        await self._until_answered(slips)
        for slip in slips:
            if slip.error is not None:
                raise copy(slip.error)

    async def _until_answered(self, slips: Sequence[Slip]) -> None:
        timeout_s = self._line.settings.request_timeout_s
        if not await all_settled(slips, timeout_s):
            raise Disconnected(
                f"no answer within {timeout_s:g} s: whether acknowledgements are durable is not "
                "known; they go on being sent"
            )

    def _named(self, what: What) -> Int64s:
        _, offsets = name_messages(what, self.topic)
        if len(offsets) > MAX_ACK_ROWS:
            raise InvalidRequest(f"{len(offsets)} at once are more than {MAX_ACK_ROWS}")
        return offsets

    async def _acknowledge(
        self, offsets: Int64s | None, span: tuple[int, int] | None, durable: bool
    ) -> int | None:
        await self.have_room()
        now_s = anyio.current_time()
        slip = Slip(now_s) if durable else self._acks.gathering(now_s)
        before = slip.rows
        if offsets is not None:
            slip.add(offsets)
        if span is not None:
            slip.add_range(*span)
        if not durable:
            self._acks.added(slip.rows - before)
            self._line.wake(self)
            return None
        self._acks.put(slip)
        self._line.wake(self)
        await self.until_durable([slip])
        return slip.count

    async def have_room(self) -> None:
        """Wait while too many acknowledgements are unanswered."""
        self._check()
        while self._acks.full:
            if self._room.settled:
                self._room = Promise()
            await self._room.wait()
            self._check()

    def done(self, offset: int) -> Slip:
        """Acknowledge one message, some time soon; never waits."""
        # Asking for the time costs as much as all the rest of this.
        slip = self._acks.begun or self._acks.gathering(anyio.current_time())
        slip.add_one(offset)
        self._acks.added(1)
        self._line.wake(self)
        return slip

    def give_back(self, offsets: Int64s, delay: Delay | None) -> None:
        """Nack messages; never waits."""
        delay_ms = BACK_OFF if delay is None else schedule.delay_ms(delay)
        if self._state is State.READY and len(offsets):
            self._nacks.add(offsets, delay_ms)
            self._line.wake(self)

    def hand_back(self, offsets: Int64s, delay: Delay | None) -> None:
        """Release messages; never waits."""
        delay_ms = 0 if delay is None else schedule.delay_ms(delay)
        if self._state is State.READY and len(offsets):
            self._releases.add(offsets, delay_ms)
            self._line.wake(self)

    async def aclose(self) -> None:
        """Have the acknowledgements answered, then leave; what is not acknowledged goes back.

        What was not taken out of here goes back untried, also what is on its way here. When it
        is cancelled, the broker is told all the same, and its answers not awaited; then what is
        on its way counts as an attempt.
        """
        if self.error is not None:
            return
        with anyio.move_on_after(self._line.settings.close_timeout_s):
            try:
                await self.flush()
                await self._halt()
            finally:
                if self._state is State.READY:
                    self._untried = self._tray.waiting()
                    self._work(anyio.current_time(), True)
                    self._send_back()
                self._closed = True
                done = self._close("this consumer is closed")
            await done.wait()

    async def _halt(self) -> None:
        """All that the broker has sent is here after this, and no more comes."""
        self._leaving = True
        if self._state is State.READY:
            with suppress(EscapementError):
                await self._line.ask(lambda number: wire.Halt(number, self.id))

    # -- what it says to the broker, and back ------------------------------------------

    def _request(self, request_id: int) -> Command:
        return wire.Subscribe(
            request_id,
            self.id,
            self.topic,
            self.subscription,
            self._kind,
            self._position,
            self._ack_wait_ms,
            self.name,
            self._key_range,
        )

    def _closing(self, request_id: int) -> Command:
        return wire.CloseConsumer(request_id, self.id, self._untried)

    def _ready(self, answer: Command) -> None:
        self._allow(self._tray.all_credit())

    def _work(self, now_s: float, ready: bool) -> float:
        if not ready:
            return float("inf")
        slips, again_s = self._acks.take(now_s)
        # While acknowledgements gather, what is given back gathers with them.
        if again_s > now_s + LINGER_S:
            self._send_back()
        for slip in slips:
            self._send_slip(slip)
        return again_s

    def _send_back(self) -> None:
        for piece, delay_ms in self._nacks.take():
            self._line.send(wire.Nack(0, self.id, piece, delay_ms))
        for piece, delay_ms in self._releases.take():
            self._line.send(wire.Release(0, self.id, piece, delay_ms))

    def _send_slip(self, slip: Slip) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, wire.Acked):
                self._acks.answered(slip, answer.count)
            elif isinstance(answer, Disconnected):
                slip.sent = False
            elif isinstance(answer, EscapementError):
                if not answer.retryable:
                    log.warning("%s: an acknowledgement was refused: %s", self.topic, answer)
                self._acks.refused(slip, answer, anyio.current_time())
            if not self._room.settled and not self._acks.full:
                self._room.settle()
            self._line.wake(self)

        offsets, firsts, lasts = slip.columns()
        self._line.request(
            lambda number: wire.Ack(number, self.id, offsets, firsts, lasts), answered
        )

    def _lost(self) -> None:
        self._tray.clear()
        self._nacks.clear()
        self._releases.clear()
        self._acks.lost()
        if self._kind == "failover":
            self.active = False

    def _fail(self, error: EscapementError) -> None:
        self._tray.clear()
        self._acks.fail(error)
        self._room.settle()
        self._arrived.settle()

    def heard(self, command: Command) -> None:
        match command:
            case wire.Deliver():
                self._deliver(command)
            case wire.ConsumerActive():
                self.active = command.active
            case wire.ConsumerRewound():
                self._rewound()
            case wire.ConsumerClosed():
                self._refused(command.error())

    def _rewound(self) -> None:
        if self._state is State.READY:
            self.rewinds += 1
            self._nacks.clear()
            self._releases.clear()
            if permits := self._tray.drop():
                self._allow(permits)

    def _deliver(self, command: wire.Deliver) -> None:
        if self._state is not State.READY:
            return
        self._tray.put(
            Batch(
                self,
                command.offsets,
                command.due_ms,
                command.attempts,
                command.redelivered,
                command.decode(),
            )
        )
        self._arrived.settle()
