"""The output of one connection: a queue of frames, and the task that writes them.

Bounds: above ``outbound_bytes`` consumers get no more messages. Above ``outbound_hard_bytes`` the
broker cuts off the peer, which does not read its answers.

Messages leave only while the broker holds the lease. The broker checks that before it queues them.
But while they wait here for a slow peer, the process may be stopped or the machine may sleep for
longer than a lease, and a successor may deliver them. So the lease is checked again right before
each part of them goes to the socket. If it has ended, the connection is cut. The unsent messages
were in flight, and other consumers get them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

import trio

from escapement.broker.limits import BrokerLimits
from escapement.errors import EscapementError, LimitExceeded, LocalProtocolError, ProtocolError
from escapement.message import Buffer
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection

_log = logging.getLogger(__name__)

# The bytes handed to the socket between two checks of the lease. A writable socket usually accepts
# this much; half of it would double the calls.
PIECE_BYTES: Final = 256 * 1024


class Outbound:
    """The queue of frames of one connection, and the task that writes them.

    Args:
      may_deliver: returns whether messages may still leave.
      on_room: called when there is room for messages again.
      cut_off: ends the connection at once.
    """

    def __init__(
        self,
        stream: trio.abc.SendStream,
        protocol: Connection,
        limits: BrokerLimits,
        *,
        may_deliver: Callable[[], bool],
        on_room: Callable[[], None],
        cut_off: Callable[[], None],
    ) -> None:
        self.finished = False  # nothing more is queued
        self._stream = stream
        self._socket: trio.socket.SocketType | None = None
        if isinstance(stream, trio.SocketStream) and os.name == "posix":
            self._socket = stream.socket
        self._protocol = protocol
        self._limits = limits
        self._may_deliver = may_deliver
        self._on_room = on_room
        self._cut_off = cut_off
        self._frames: list[Buffer] = []
        self._has_messages = False  # whether a queued frame has messages
        self._size_bytes = 0
        self._writable = trio.Event()

    @property
    def has_room(self) -> bool:
        """Whether messages may be queued."""
        return self._size_bytes < self._limits.outbound_bytes

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
            _log.exception("closing a connection because a command cannot be sent on it")
            self._cut_off()

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

    def discard(self) -> None:
        """Release the queued frames, because the connection has ended."""
        self._frames.clear()
        self._size_bytes = 0

    def _queue(self, frames: list[Buffer]) -> None:
        self._frames += frames
        self._size_bytes += sum(map(len, frames))
        self._writable.set()
        if self._size_bytes > self._limits.outbound_hard_bytes:
            _log.warning("cutting off a peer that does not read its answers")
            self._cut_off()

    async def run(self) -> None:
        """Write queued frames until ``finish`` was called and none is left; close the stream."""
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
            size_bytes = sum(map(len, frames))
            data = memoryview(b"".join(frames))
            if has_messages:
                await self._hand_over(data)
            else:
                left = data[self._write_at_once(data) :]
                if left:
                    await self._stream.send_all(left)
            # Frames may have been added meanwhile, up to the bound.
            was_full = not self.has_room
            self._size_bytes -= size_bytes
            if was_full and self.has_room:
                self._on_room()

    async def _hand_over(self, left: memoryview) -> None:
        """Write frames with messages among them, while messages may leave."""
        while left:
            if self._may_deliver() and (written := self._write_at_once(left[:PIECE_BYTES])):
                left = left[written:]
                if left:
                    await trio.lowlevel.checkpoint()
                continue
            await self._stream.wait_send_all_might_not_block()
            if not self._may_deliver():
                _log.warning("the lease has ended: cutting off a peer that was to get messages")
                self._cut_off()
                await trio.lowlevel.checkpoint()
            if self._socket is None:
                await self._stream.send_all(left[:PIECE_BYTES])
                left = left[PIECE_BYTES:]

    def _write_at_once(self, data: memoryview) -> int:
        """Write what the socket accepts without a wait, so without a turn of the event loop.

        Return the number of bytes written; 0 if there is no socket.
        """
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0
