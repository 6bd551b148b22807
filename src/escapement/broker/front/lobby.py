"""The lobby: accepted connections whose first message has not arrived.

Anybody can open connections and send a byte now and then. A task, a session and the state of TLS
take much more time and memory than a socket. So a connection gets them only when the kernel has its
whole first message: the frame with Hello, or the record with TLS's ClientHello. Until then it is a
socket in an ``epoll`` of its own. The lobby only looks at the bytes (``MSG_PEEK``), and the kernel
wakes it when there are enough (``SO_RCVLOWAT``). So a peer that sends byte by byte costs one turn
of the event loop, however long it takes.

Each turn handles at most ``_TURN`` sockets, so that a flood of connections does not hold up the
other tasks.
"""

from __future__ import annotations

import enum
import errno
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import trio

from escapement.broker.front.admission import Admission, Seat
from escapement.errors import Busy, EscapementError, ProtocolError
from escapement.event_log import EventLog
from escapement.protocol.connection import Connection
from escapement.protocol.frame import LENGTH_BYTES
from escapement.protocol.limits import MAX_HANDSHAKE_BYTES

_log = EventLog(__name__)

# The header of a TLS record: its type, two bytes of version, two of length.
_RECORD_HEADER_BYTES: Final = 5
_TLS_HANDSHAKE: Final = 22  # the type of the record with a ClientHello
# The longest record of TLS 1.2, which is longer than those of 1.3.
_MOST_RECORD_BYTES: Final = 16 * 1024 + 2048
# The sockets that one turn handles: less than a millisecond of work.
_TURN: Final = 16
# How often connections that are too slow are closed.
_SWEEP_S: Final = 0.1
# How long to accept no connections when the process has no file descriptors left.
_NO_DESCRIPTORS_S: Final = 0.1
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Errors of connections that ended before they were accepted.
_GONE: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM)
_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class First(enum.Enum):
    """The first message of a connection."""

    FRAME = "a whole frame, or bytes that are no valid frame"
    TLS = "a whole record of TLS, or bytes that are no valid record"


class Guest:
    """A connection in the lobby, or just leaving it."""

    __slots__ = ("deadline_s", "needs_bytes", "seat", "socket")

    def __init__(self, sock: socket.socket, seat: Seat, deadline_s: float) -> None:
        self.socket = sock
        self.seat = seat
        self.deadline_s = deadline_s  # when its handshake must be done
        self.needs_bytes = LENGTH_BYTES


class Lobby:
    """The connections whose first message has not arrived.

    Args:
      timeout_s: the time for the whole handshake of a connection, with its time in the lobby.
      explains: whether peers that are turned away are told why. Those that expect TLS are not.
      on_first: called with a guest whose first message is whole. The callee owns its socket and
        its seat.
    """

    def __init__(
        self,
        admission: Admission,
        timeout_s: float,
        explains: bool,
        on_first: Callable[[Guest, First], None],
    ) -> None:
        self._admission = admission
        self._timeout_s = timeout_s
        self._explains = explains
        self._on_first = on_first
        self._guests: dict[int, Guest] = {}  # by descriptor; the oldest first
        self._entered = trio.Event()  # set when there are guests
        self._epoll = select.epoll()

    def __len__(self) -> int:
        return len(self._guests)

    async def accept(self, listener: trio.SocketListener) -> None:
        """Accept connections until cancelled."""
        with socket.fromfd(
            listener.socket.fileno(), listener.socket.family, socket.SOCK_STREAM
        ) as sock:
            sock.setblocking(False)
            while True:
                await trio.lowlevel.wait_readable(sock)
                try:
                    for _ in range(_TURN):
                        self._enter(*sock.accept())
                except BlockingIOError:
                    pass
                except OSError as error:
                    if error.errno in _NO_DESCRIPTORS:
                        _log.error(
                            "connection.not_accepted",
                            "cannot accept a connection: %s",
                            os.strerror(error.errno),
                        )
                        await trio.sleep(_NO_DESCRIPTORS_S)
                    elif error.errno not in _GONE:
                        raise

    async def watch(self) -> None:
        """Let guests out whose first message is whole, and close slow ones, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sweep)
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    for descriptor, events in self._epoll.poll(0, _TURN):
                        if guest := self._guests.get(descriptor):
                            self._look(guest, events)
        finally:
            for guest in list(self._guests.values()):
                self._close(guest)
            self._epoll.close()

    async def _sweep(self) -> None:
        """Close guests whose time is over."""
        late = ProtocolError("the peer was silent for too long")
        while True:
            if not self._guests:
                self._entered = trio.Event()
                await self._entered.wait()
            await trio.sleep(_SWEEP_S)
            handled = 0
            while (guest := next(iter(self._guests.values()), None)) is not None:
                if guest.deadline_s > trio.current_time():
                    break
                if handled % _TURN == _TURN - 1:
                    await trio.lowlevel.checkpoint()
                handled += 1
                if self._guests.get(guest.socket.fileno()) is guest:
                    self._close(guest, late)

    def _enter(self, sock: socket.socket, address: Any) -> None:
        sock.setblocking(False)
        try:
            seat = self._admission.admit(address[0], lambda: None)
        except Busy as error:
            self._turn_away(sock, error)
            return
        guest = Guest(sock, seat, trio.current_time() + self._timeout_s)
        seat.end = lambda: self._close(guest)
        self._guests[sock.fileno()] = guest
        self._entered.set()
        _wake_at(sock, guest.needs_bytes)
        self._epoll.register(sock.fileno(), _EVENTS)

    def _look(self, guest: Guest, events: int) -> None:
        """Let a guest out if its message is whole; close it if that can no longer happen."""
        try:
            while True:
                found = guest.socket.recv(guest.needs_bytes, socket.MSG_PEEK)
                if len(found) < guest.needs_bytes:
                    break
                first, size_bytes = _first(found)
                if size_bytes <= len(found):
                    self._let_out(guest, first)
                    return
                guest.needs_bytes = size_bytes
                _wake_at(guest.socket, size_bytes)
                self._epoll.modify(guest.socket.fileno(), _EVENTS)
        except BlockingIOError:
            found = b""
        except OSError:
            self._close(guest)
            return
        if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            self._close(guest)

    def _let_out(self, guest: Guest, first: First) -> None:
        del self._guests[guest.socket.fileno()]
        self._epoll.unregister(guest.socket.fileno())
        _wake_at(guest.socket, 1)
        self._on_first(guest, first)

    def _close(self, guest: Guest, error: EscapementError | None = None) -> None:
        del self._guests[guest.socket.fileno()]
        self._turn_away(guest.socket, error)
        guest.seat.leave()

    def _turn_away(self, sock: socket.socket, error: EscapementError | None) -> None:
        """Close a socket; say why, if the peer would understand it."""
        if error is not None and self._explains:
            with suppress(OSError):
                # With unread bytes the kernel would discard the answer.
                with suppress(BlockingIOError):
                    sock.recv(MAX_HANDSHAKE_BYTES + LENGTH_BYTES)
                sock.send(b"".join(Connection("broker").last_words(error)))
        sock.close()


def _first(found: bytes) -> tuple[First, int]:
    """Return what a message is by its beginning, and how many bytes to wait for.

    Bytes that begin no valid message are not waited for: their connection is refused at once.
    """
    if found[0] == _TLS_HANDSHAKE:
        if len(found) < _RECORD_HEADER_BYTES:
            return First.TLS, _RECORD_HEADER_BYTES
        size_bytes = int.from_bytes(found[3:5], "big")
        return First.TLS, _RECORD_HEADER_BYTES + size_bytes * (size_bytes <= _MOST_RECORD_BYTES)
    size_bytes = int.from_bytes(found[:LENGTH_BYTES], "big")
    return First.FRAME, LENGTH_BYTES + size_bytes * (size_bytes <= MAX_HANDSHAKE_BYTES)


def _wake_at(sock: socket.socket, size_bytes: int) -> None:
    """Let the kernel call the socket readable when it has ``size_bytes``."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
