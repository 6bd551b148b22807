"""What one connection is to be sent: a queue of frames, and the task that writes them.

Bounds: past ``outbound_bytes`` consumers get nothing more, and a peer that reads nothing
while answers pile up is cut off at ``outbound_hard_bytes``.

Messages leave only while the lease is held. That was checked when they were queued, but a
process can be stopped, or a machine sleep, for longer than a lease while they wait here
for a slow peer, and a successor delivers them meanwhile. So it is asked again right before
each part of them goes to the socket, and if the answer is no, the connection is cut:
everything unsent was in flight, and goes to whoever is connected next.
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

# Handed to the socket in one piece: once begun, the rest of it leaves without a question.
# A kernel that says "writable" mostly takes this much; half of it costs twice the calls.
PIECE_BYTES: Final = 256 * 1024


class Outbound:
    """See the module's docstring.

    Args:
      may_deliver: whether messages may still leave.
      on_room: called when there is room for messages again.
      cut_off: ends the connection, at once.
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
        self.finished = False  # nothing more is said
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
        self._has_messages = False  # whether any of the frames carries some
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
        """Queue a command; what cannot be sent ends this connection and nothing else.

        After our goodbye nothing is said: the peer learns what became of its requests by
        asking again.
        """
        if self._is_over:
            return
        try:
            self._queue(self._protocol.send(command))
        except ProtocolError:
            _log.exception("ending a connection that cannot be answered")
            self._cut_off()

    def answer(self, reply: wire.AdminReply) -> None:
        """Queue an answer that may be larger than an answer can be.

        Raises:
          LimitExceeded: it is; nothing was sent.
        """
        if self._is_over:
            return
        try:
            frames = self._protocol.send(reply)
        except LocalProtocolError as error:
            raise LimitExceeded(f"the answer cannot be sent: {error}; ask for less") from None
        self._queue(frames)

    def deliver(self, messages: wire.Deliver) -> None:
        """Queue messages, which are not sent once the lease has ended."""
        self._has_messages = True
        self.send(messages)

    def last_words(self, error: EscapementError) -> None:
        """Say why the connection ends."""
        if not self.finished:
            self._queue(self._protocol.last_words(error))

    def finish(self) -> None:
        """Say nothing more; what is queued is still written."""
        self.finished = True
        self._writable.set()

    def discard(self) -> None:
        """Release what is queued: the connection has ended."""
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
        """Write what is queued until there is nothing more to say; then close the stream."""
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
        """Write frames with messages among them, for as long as these may leave."""
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
        """Give a socket what it takes without a wait, and so without a turn of the event loop.

        Returns how many bytes that was; none where there is no socket.
        """
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0
