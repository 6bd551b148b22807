"""The output of one connection: a queue of frames, and the task that writes them.

Bounds: above ``outbound_bytes`` consumers get no more messages, and large answers wait. The same
holds if all connections together queue too much (:mod:`output_bound
<escapement.broker.delivery.output_bound>`). While others wait, a peer that accepts less than
``SLOW_BYTES`` in ``STALL_S`` is cut off. Above ``outbound_hard_bytes`` the broker cuts off the
peer, which does not read its answers.

Messages leave only while the broker holds the lease. The broker checks that before it queues them.
But while they wait here for a slow peer, the process may be stopped or the machine may sleep for
longer than a lease, and a successor may deliver them. So the lease is checked again right before
each part of them goes to the socket. If it has ended, the connection is cut. The unsent messages
were in flight, and other consumers get them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from escapement.broker.delivery.output_bound import FRAME_BYTES, STALL_S, OutputBound
from escapement.broker.limits import BrokerLimits
from escapement.broker.session.tls_transport import TlsTransport
from escapement.errors import EscapementError, LimitExceeded, LocalProtocolError, ProtocolError
from escapement.event_log import EventLog
from escapement.failpoints import failpoint
from escapement.message import Buffer
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection

_log = EventLog(__name__)

# The bytes handed to the socket between two checks of the lease. A writable socket usually accepts
# this much; half of it would double the calls.
PIECE_BYTES: Final = 256 * 1024
# The memory of a queued buffer besides its bytes.
_BUFFER_BYTES: Final = 64
# A peer that accepts less than this in STALL_S is cut off while others wait. If its own requests
# wait here, and so hold memory that requests of others wait for, it must accept FRAME_BYTES.
SLOW_BYTES: Final = 64 * 1024


class Outbound:
    """The queue of frames of one connection, and the task that writes them.

    Args:
      may_deliver: returns whether messages may still leave.
      output_waits: returns whether output of other connections waits for room.
      requests_wait: returns whether requests of other connections wait for memory.
      on_room: called when there is room for messages again.
      end: ends the connection at once.
    """

    def __init__(
        self,
        stream: trio.abc.SendStream,
        protocol: Connection,
        limits: BrokerLimits,
        bound: OutputBound,
        *,
        may_deliver: Callable[[], bool],
        output_waits: Callable[[], bool],
        requests_wait: Callable[[], bool],
        on_room: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self.finished = False  # nothing more is queued
        self._stream = stream
        # Its waits can be used while the stream writes.
        self._transport = stream
        if isinstance(stream, trio.SSLStream) and isinstance(stream.transport_stream, TlsTransport):
            self._transport = stream.transport_stream
            stream.transport_stream.wait = self._may_write_on
            stream.transport_stream.accepted = self._accepted
        self._socket: trio.socket.SocketType | None = None
        if isinstance(stream, trio.SocketStream) and os.name == "posix":
            self._socket = stream.socket
        self._protocol = protocol
        self._limits = limits
        self._bound = bound
        self._may_deliver = may_deliver
        self._output_waits = output_waits
        self._requests_wait = requests_wait
        self._on_room = on_room
        self._end = end
        self._frames: list[Buffer] = []
        self._pace = _Pace(SLOW_BYTES)  # of the current write
        self._fast_pace = _Pace(FRAME_BYTES)
        self._has_messages = False  # whether a queued frame has messages
        self._writes_messages = False  # whether the current write has messages
        self._size_bytes = 0
        self._discarded = False
        self._writable = trio.Event()
        self._refused = False  # ``has_room`` was False, and nothing was woken since
        self._one_answer = trio.Lock()
        self._roomy = trio.lowlevel.ParkingLot()

    @property
    def has_room(self) -> bool:
        """Whether messages may be queued. If not, ``on_room`` is called when they may."""
        return self._has_room_for(self._bound.frame_bytes(1))

    def _has_room_for(self, more_bytes: int) -> bool:
        if not self._bound.may_queue(self._size_bytes, more_bytes):
            self._bound.wait(self)
        elif self._size_bytes < self._limits.outbound_bytes:
            return True
        self._refused = True
        return False

    def has_room_again(self) -> None:
        """Wake the consumers and requests that wait for room."""
        self._refused = False
        self._roomy.unpark_all()
        self._on_room()

    async def room(self) -> None:
        """Wait until a large answer may be queued."""
        while not self._has_room_for(FRAME_BYTES) and not self._is_over:
            self._bound.check()
            if self._refused:  # the check has made no room
                await self._roomy.park()

    @asynccontextmanager
    async def large_answer(self) -> AsyncIterator[None]:
        """Wait for room, and count a large answer while it is made. One at a time is made."""
        async with self._one_answer:
            await self.room()
            self._count(FRAME_BYTES)
            try:
                yield
            finally:
                self._count(-FRAME_BYTES)

    @property
    def queued_bytes(self) -> int:
        """The size of the queue, with the frames that are being written."""
        return self._size_bytes

    @property
    def is_slow(self) -> bool:
        """Whether the peer has accepted less than ``FRAME_BYTES`` in ``STALL_S``."""
        return self._fast_pace.is_late

    @property
    def slow_since_s(self) -> float:
        """The time since which the peer has accepted less than ``SLOW_BYTES`` of this write."""
        return self._pace.since_s

    @property
    def _is_over(self) -> bool:
        return self.finished or self._protocol.closed or self._protocol.finished

    def send(self, command: wire.Command) -> None:
        """Queue a command. A command that cannot be sent ends this connection only.

        After the connection has ended, commands are ignored: the peer learns the outcome of its
        requests by asking again.
        """
        if self._is_over:
            return
        try:
            self._queue(self._protocol.send(command))
        except ProtocolError:
            _log.exception(
                "connection.failed", "closing a connection because a command cannot be sent on it"
            )
            self.cut_off()

    def answer(self, reply: wire.AdminReply) -> None:
        """Queue an answer that may be too large.

        Raises:
          LimitExceeded: the answer is too large; nothing was queued.
        """
        if self._is_over:
            return
        try:
            frames = self._protocol.send(reply)
        except LocalProtocolError as error:
            raise LimitExceeded(f"the answer cannot be sent: {error}; ask for less") from None
        self._queue(frames)

    def deliver(self, messages: wire.Deliver) -> None:
        """Queue messages. They are not sent once the lease has ended."""
        self._has_messages = True
        self.send(messages)

    def last_words(self, error: EscapementError) -> None:
        """Queue the reason why the connection ends."""
        if not self.finished:
            self._queue(self._protocol.last_words(error))

    def finish(self) -> None:
        """Queue nothing more. Queued frames are still written."""
        self.finished = True
        self._writable.set()
        self._roomy.unpark_all()

    def cut_off(self) -> None:
        """End the connection at once, and release its queue. Its requests may last."""
        self.discard()
        self._end()

    def discard(self) -> None:
        """Release the queued frames, because the connection ends. Nothing more is queued."""
        self.finish()
        self._refused = False
        self._frames.clear()
        self._count(-self._size_bytes)
        self._discarded = True
        self._bound.leave(self)

    def _queue(self, frames: list[Buffer]) -> None:
        self._frames += frames
        self._count(_memory_of(frames))
        self._writable.set()
        if self._size_bytes > self._limits.outbound_hard_bytes:
            _log.warning(
                "connection.cut_off",
                "cutting off a peer that does not read its answers",
                reason="unread_answers",
            )
            self.cut_off()
        self._bound.check()

    def _count(self, more_bytes: int) -> None:
        """Change the number of queued bytes."""
        if self._discarded:
            return
        before_bytes = self._size_bytes
        self._size_bytes += more_bytes
        self._bound.change(before_bytes, self._size_bytes)
        if more_bytes < 0 and self._refused and self.has_room:
            self.has_room_again()

    async def run(self) -> None:
        """Write queued frames until ``finish`` was called and none is left; close the stream."""
        try:
            await self._write_all()
        finally:
            self.discard()

    async def _write_all(self) -> None:
        while True:
            if not self._frames:
                if self.finished:
                    await self._stream.aclose()
                    return
                self._writable = trio.Event()
                await self._writable.wait()
                continue
            frames, self._frames = self._frames, []
            has_messages, self._has_messages = self._has_messages, False
            size_bytes = _memory_of(frames)
            data = memoryview(b"".join(frames))
            frames.clear()
            self._bound.begin_write(self)
            failpoint("reply")
            await self._write(data, has_messages)
            del data  # it does not count any more
            self._bound.end_write(self)
            self._count(-size_bytes)

    async def _write(self, left: memoryview, has_messages: bool) -> None:
        """Write frames; those with messages only while messages may leave."""
        self._pace = _Pace(SLOW_BYTES)
        self._fast_pace = _Pace(FRAME_BYTES)
        self._writes_messages = has_messages
        while left:
            may_leave = not has_messages or self._may_deliver()
            if may_leave and (written := self._write_at_once(left[:PIECE_BYTES])):
                left = left[written:]
                self._accepted(written)
                if left:
                    await trio.lowlevel.checkpoint()
                continue
            await self._may_write_on()
            if self._socket is None:
                await self._stream.send_all(left[:PIECE_BYTES])
                left = left[PIECE_BYTES:]

    def _accepted(self, size_bytes: int) -> None:
        self._pace.accepted(size_bytes)
        self._fast_pace.accepted(size_bytes)

    async def _may_write_on(self) -> None:
        """Wait until the peer accepts more, and cut it off if it is slow or must not get it."""
        self._check_pace()
        await self._accepts_more()
        if self._writes_messages and not self._may_deliver():
            _log.warning(
                "connection.cut_off",
                "the lease has ended: cutting off a peer that was to get messages",
                reason="lease_expired",
            )
            self.cut_off()
            await trio.lowlevel.checkpoint()

    async def _accepts_more(self) -> None:
        """Wait until the peer accepts more; cut it off if it is too slow while others wait."""
        while True:
            late_in_s = self._fast_pace.late_in_s
            with trio.move_on_after(late_in_s if late_in_s > 0 else STALL_S):
                await self._transport.wait_send_all_might_not_block()
                return
            self._check_pace()

    def _check_pace(self) -> None:
        slow = self._pace.is_late and (self._output_waits() or self._requests_wait())
        if slow or (self.is_slow and self._roomy and self._requests_wait()):
            _log.warning(
                "connection.cut_off",
                "cutting off a peer that reads too slowly while others wait",
                reason="slow_reader",
            )
            self.cut_off()
        self._bound.check()

    def _write_at_once(self, data: memoryview) -> int:
        """Write what the socket accepts without a wait, so without a turn of the event loop.

        Return the number of bytes written; 0 without a socket.
        """
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0


class _Pace:
    """Whether a peer accepts at least ``least_bytes`` in each ``STALL_S``."""

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = self._left_bytes = least_bytes
        self.since_s = trio.current_time()

    def accepted(self, size_bytes: int) -> None:
        """Note that the peer accepted bytes."""
        self._left_bytes -= size_bytes
        if self._left_bytes <= 0:
            self._left_bytes, self.since_s = self._least_bytes, trio.current_time()

    @property
    def is_late(self) -> bool:
        """Whether it has not accepted that many for ``STALL_S``."""
        return self.late_in_s <= 0

    @property
    def late_in_s(self) -> float:
        """The time until it is late if it accepts nothing more."""
        return self.since_s + STALL_S - trio.current_time()


def _memory_of(frames: list[Buffer]) -> int:
    return sum(map(len, frames)) + _BUFFER_BYTES * len(frames)
