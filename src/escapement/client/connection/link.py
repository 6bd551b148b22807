"""A link: one connection to a broker, with reading, writing and the heartbeat.

A link sends commands over a stream of bytes, such as a TCP connection, and passes received
commands to a function, ``dispatch``. It handles only the handshake and the heartbeat itself. When
a link ends, the client's line (see ``line``) opens a new one.

Sending queues a command, and ``flush`` writes all queued commands together, as far as the socket
accepts them without a wait. A separate task writes the rest, and everything for a stream that is
not a socket. So sending never waits. The queue has no bound of its own: producers and consumers
bound their unanswered commands.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import count
from socket import socket
from typing import Final, Protocol

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskGroup

from escapement.client.connection.address import TLS_SCHEME
from escapement.client.connection.tls import CLOSED, reason_of
from escapement.clock import SystemClock
from escapement.errors import Disconnected, EscapementError, RemoteProtocolError
from escapement.message import Buffer
from escapement.protocol.commands import (
    Command,
    Goodbye,
    Hello,
    Moved,
    Ping,
    Pong,
    Refused,
    Welcome,
)
from escapement.protocol.connection import Connection
from escapement.protocol.limits import DEFAULT_PORT, PROTOCOL_VERSION

# The most bytes to read at a time: about as much as the kernel returns at once, and small enough
# for fast allocation.
READ_BYTES: Final = 64 * 1024
# Buffers to send are joined until they have this size, so that fewer writes are needed.
WRITE_BYTES: Final = 256 * 1024
# A write of so many bytes that takes this time has waited for the other side.
_WAITED_S: Final = 0.05

# How often a link looks whether the broker has answered a ping, within the timeout. If this process
# was suspended, or the application did not let the event loop run, that counts as one look. So the
# answer is read before the link gives up.
_LOOKS: Final = 10


class Stream(Protocol):
    """The methods of a byte stream that a link uses. The byte streams of anyio have them."""

    async def receive(self, max_bytes: int = ...) -> bytes: ...

    async def send(self, item: bytes) -> None: ...

    async def aclose(self) -> None: ...


StreamFactory = Callable[[], Awaitable[Stream]]

_CLOCK: Final = SystemClock()

# The end of each error of a failed attempt to connect.
_HINT: Final = "start a broker with `escapement serve`, or check the address"

# The beginning of an HTTP server's answer to Hello, which is no request: 400 Bad Request.
_HTTP: Final = b"HTTP/"

# The exceptions that a stream raises if the connection has ended, or if it cannot be opened.
_ENDS: Final = (
    OSError,
    anyio.EndOfStream,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
)


class Link:
    """A connection to a broker on which the handshake is done. ``Link.open`` creates it."""

    def __init__(self, stream: Stream, connection: Connection, welcome: Welcome) -> None:
        self.welcome = welcome
        self.error: EscapementError | None = None  # why the link ended
        self.silent = False  # whether it ended because the broker did not answer the heartbeat
        self._stream = stream
        self._socket = _socket_of(stream)
        self._connection = connection
        self._outgoing: list[Buffer] = []
        self._bell = anyio.Event()  # set while the writing task has work
        self._idle = anyio.Event()  # set while the writing task does not write
        self._idle.set()
        self._signs = 0  # how often the other side has sent something, or made room for a write
        self._beats = True  # whether the link sends pings
        self._ping = Ping(0), _CLOCK.now_ms()  # the last ping, and when it was sent
        self._answered_ms = self._ping[1]  # when the last ping that has its answer was sent
        self._tasks: TaskGroup | None = None

    @classmethod
    async def open(
        cls,
        factory: StreamFactory,
        address: str,
        client: str,
        timeout_s: float,
        token: str = "",
        features: Mapping[str, int | bytes | str] | None = None,
    ) -> Link | Moved:
        """Connect to the broker, do the handshake, and return the link.

        If the process has no broker of the bundle that ``features`` name, return its answer, Moved.

        Args:
          factory: opens the byte stream.
          address: the broker's address, for errors.
          client: the name of this client, which the broker shows.
          timeout_s: the longest time for both steps.
          token: the token of the client, "" if it has none.
          features: the features of Hello; see ``escapement.protocol.limits``.

        Raises:
          Disconnected: if the broker cannot be reached, or does not answer in time.
          RemoteProtocolError: if an HTTP server answers.
          EscapementError: the broker's error, if it refuses the connection.
        """
        try:
            with anyio.fail_after(timeout_s):
                stream = await factory()
                try:
                    hello = Hello(PROTOCOL_VERSION, client, dict(features or {}), token)
                    found = await cls._greet(stream, hello, address)
                    if isinstance(found, Moved):
                        await stream.aclose()
                    return found
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await stream.aclose()
                    raise
        except TimeoutError:
            raise Disconnected(
                f"cannot connect to {address}: no answer within {timeout_s:g} s; {_HINT}"
            ) from None
        except _ENDS as error:
            reason = str(error) or "it closed the connection"
            if isinstance(error, ssl.SSLError):
                raise Disconnected(f"cannot connect to {address}: {reason_of(error)}") from error
            if not str(error) and address.startswith(TLS_SCHEME):
                reason = CLOSED
            raise Disconnected(f"cannot connect to {address}: {reason}; {_HINT}") from error

    @classmethod
    async def _greet(cls, stream: Stream, hello: Hello, address: str) -> Link | Moved:
        connection = Connection("client")
        await stream.send(b"".join(connection.send(hello)))
        while True:
            data = await stream.receive(READ_BYTES)
            if not connection.unfinished_bytes and data.startswith(_HTTP):
                raise RemoteProtocolError(
                    f"an HTTP server answers at {address}, not a broker. Give the address on which "
                    f"`escapement serve` listens: its port is {DEFAULT_PORT} unless --listen names "
                    "another. The gateway, the console and the side port (--http) have other ports."
                )
            connection.receive_data(data)
            event = connection.next_event()
            if isinstance(event, Welcome):
                return cls(stream, connection, event)
            if isinstance(event, Moved):
                return event
            if isinstance(event, Refused):
                raise event.error()
            if isinstance(event, Goodbye):
                raise Disconnected(f"the broker said goodbye: {event.reason}")

    @property
    def sent_after_ms(self) -> int:
        """A time in Unix milliseconds: the broker sent the command being dispatched after it.

        A process that was suspended may read a command that the broker sent days before. But the
        broker sent each command behind a Pong after it had read the Ping. Without pings the time is
        now.
        """
        return self._answered_ms if self._beats else _CLOCK.now_ms()

    def send(self, command: Command) -> None:
        """Queue a command. The caller must call ``flush`` in the same turn of the event loop.

        A link that has ended discards the command: the line will report the end, or send again.

        Raises:
          LocalProtocolError: if the protocol does not allow the command now, or the command is
            larger than a frame.
        """
        if self.error is None:
            self._outgoing += self._connection.send(command)

    def flush(self) -> None:
        """Write the queued commands as far as the socket accepts them; let the task do the rest."""
        if self._outgoing and self._socket is not None and self._idle.is_set():
            buffers, self._outgoing = self._outgoing, []
            for piece in _joined(buffers):
                if self._outgoing or (written := _write_at_once(self._socket, piece)) < len(piece):
                    self._outgoing.append(memoryview(piece)[written:])
                    written = 0
        if self._outgoing:
            self._bell.set()

    def end(self, error: EscapementError) -> None:
        """End the link because of ``error``. If it has an error already, it keeps that one."""
        self.error = self.error or error
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def discard(self) -> None:
        """Close the connection of a link that was never run."""
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()

    async def written(self) -> None:
        """Flush, and wait until all queued commands are written, or the link has ended."""
        self.flush()
        while self.error is None and (self._outgoing or not self._idle.is_set()):
            await self._idle.wait()

    async def run(
        self,
        dispatch: Callable[[Command], None],
        heartbeat_s: float | None,
        heartbeat_timeout_s: float,
    ) -> None:
        """Read and write until the link ends. Afterwards ``self.error`` has the reason.

        Args:
          dispatch: called with each received command, except those of the heartbeat and Goodbye.
          heartbeat_s: the interval between two pings; None sends no pings.
          heartbeat_timeout_s: the link ends if nothing arrives for this time after a ping, and no
            long write goes on.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                if self.error is not None:
                    return
                tasks.start_soon(self._write)
                self._beats = heartbeat_s is not None
                if heartbeat_s is not None:
                    tasks.start_soon(self._beat, heartbeat_s, heartbeat_timeout_s)
                await self._read(dispatch)
                tasks.cancel_scope.cancel()
        finally:
            self.error = self.error or Disconnected("the connection was closed")
            self._outgoing.clear()
            self._idle.set()
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()

    async def _read(self, dispatch: Callable[[Command], None]) -> None:
        connection = self._connection
        try:
            while not connection.closed:
                for command in connection.events():
                    if isinstance(command, Ping):
                        self._send_heartbeat(Pong(command.token))
                    elif isinstance(command, Pong):
                        if command.token == self._ping[0].token:
                            self._answered_ms = self._ping[1]
                    elif isinstance(command, Goodbye):
                        self.end(Disconnected(f"the broker said goodbye: {command.reason}"))
                    else:
                        dispatch(command)
                connection.receive_data(await self._receive())
                self._signs += 1
        except RemoteProtocolError as error:
            self.end(error)
        except _ENDS as error:
            self.end(
                Disconnected(f"the connection was lost: {str(error) or 'the broker closed it'}")
            )

    async def _receive(self) -> bytes:
        """Wait for received bytes and return them; read a socket directly, which costs less."""
        if self._socket is None:
            return await self._stream.receive(READ_BYTES)
        while True:
            await anyio.wait_readable(self._socket)
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                raise anyio.EndOfStream
            return data

    async def _write(self) -> None:
        try:
            while True:
                await self._bell.wait()
                self._bell = anyio.Event()
                self._idle = anyio.Event()
                while self._outgoing:
                    buffers, self._outgoing = self._outgoing, []
                    for piece in _joined(buffers):
                        await self._send_piece(piece)
                self._idle.set()
        except _ENDS as error:
            self.end(
                Disconnected(f"the connection was lost: {str(error) or 'the broker closed it'}")
            )

    async def _send_piece(self, piece: bytes) -> None:
        """Write bytes. A broker that still reads them cannot answer yet, and is not silent."""
        for low in range(0, len(piece), WRITE_BYTES):
            began_s = anyio.current_time()
            await self._stream.send(piece[low : low + WRITE_BYTES])
            if anyio.current_time() - began_s > _WAITED_S:
                self._signs += 1

    def _send_heartbeat(self, command: Ping | Pong) -> None:
        """Send a command of the heartbeat, unless Goodbye is queued and nothing may follow it."""
        if not self._connection.finished:
            self.send(command)
            self.flush()

    async def _beat(self, heartbeat_s: float, timeout_s: float) -> None:
        asked_s = anyio.current_time()
        for token in count(1):
            await anyio.sleep_until(asked_s + heartbeat_s)
            asked_s, signs = anyio.current_time(), self._signs
            self._ping = Ping(token), _CLOCK.now_ms()
            self._send_heartbeat(self._ping[0])
            for _ in range(_LOOKS):
                await anyio.sleep(timeout_s / _LOOKS)
                if self._signs != signs:
                    break
            else:
                self.silent = True
                self.end(Disconnected(f"the broker has sent nothing for {timeout_s:g} s"))


def _joined(buffers: list[Buffer]) -> Iterator[bytes]:
    """Join the buffers in order, and yield pieces of at least ``WRITE_BYTES``, except the last."""
    parts: list[Buffer] = []
    size = 0
    for buffer in buffers:
        parts.append(buffer)
        size += len(buffer)
        if size >= WRITE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _socket_of(stream: Stream) -> socket | None:
    """Return the socket that may be read and written directly, or None.

    asyncio has no such socket: its transports have buffers of their own.
    """
    if not isinstance(stream, SocketStream):
        return None
    found = stream.extra(SocketAttribute.raw_socket)
    return found if isinstance(found, socket) else None


def _write_at_once(to: socket, piece: bytes) -> int:
    """Write what the socket accepts now, and return its size.

    An error counts as nothing: the writing task will meet it, too.
    """
    try:
        return to.send(piece)
    except OSError:
        return 0
