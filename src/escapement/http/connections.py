"""The open connections of a server: each one ends alone, and all of them can be ended.

Hypercorn reads requests and writes answers. It does not expect some kinds of invalid requests, such
as a header of a WebSocket that is not ASCII, and raises errors of all kinds. It also waits without
an end for a client that does not read its answer.
"""

from __future__ import annotations

from typing import Any, Final, cast

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol.events import Event, Response
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from escapement.event_log import EventLog

# The most characters of an error in the log. It may have what a client sent.
_MOST_CHARS: Final = 200

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

_log = EventLog(__name__)


class _Connection(TCPServer):
    """A connection that ends when its client has closed it.

    Hypercorn would keep its socket open for the time that a connection may be idle. With HTTP/2, it
    would keep it forever if the client had not yet allowed it to send the whole of an answer.
    """

    _is_over = False

    async def _read_data(self) -> None:
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol):
            _refuse_upgrade(protocol)
            _announce_close(protocol)
        await super()._read_data()
        self._is_over = True
        await self.idle_task.stop()
        protocol = self.protocol.protocol
        if isinstance(protocol, H2Protocol):
            for buffer in list(protocol.stream_buffers.values()):
                await buffer.close()

    async def _idle_timeout(self) -> None:
        if not self._is_over:
            await super()._idle_timeout()


def _refuse_upgrade(protocol: H11Protocol) -> None:
    """Ignore the header ``Upgrade: h2c``, which RFC 9113 has abolished.

    Hypercorn would wait without an end if the request is a CONNECT. A client that wants HTTP/2 may
    begin with it.
    """
    check = protocol._check_protocol

    async def check_beginning(request: h11.Request) -> None:
        if request.method == b"PRI":
            await check(request)

    setattr(protocol, "_check_protocol", check_beginning)  # noqa: B010


def _announce_close(protocol: H11Protocol) -> None:
    """Send ``Connection: close`` with an answer that begins before the end of its request.

    Hypercorn closes the connection after such an answer. A client that does not know it would send
    its next request on this connection, and get no answer.
    """
    send = protocol.stream_send

    async def send_event(event: Event) -> None:
        if isinstance(event, Response) and protocol.connection.their_state is h11.SEND_BODY:
            # The end may have been received, and the reader looks at it in its next turn.
            await trio.lowlevel.checkpoint()
            if protocol.connection.their_state is h11.SEND_BODY:
                event.headers.append((b"connection", b"close"))
        await send(event)

    setattr(protocol, "stream_send", send_event)  # noqa: B010


class Connections:
    """The open connections of a server.

    Args:
      app: the ASGI application.
      settings: those of hypercorn.
    """

    def __init__(self, app: Any, settings: Config) -> None:
        self._app = ASGIWrapper(app)
        self._settings = settings
        self._context = WorkerContext(None)
        self._open: set[Stream] = set()
        self._ended: Final = trio.Event()  # set when none is open after ``finish``

    async def serve(self, stream: Stream) -> None:
        """Answer the requests of a connection until it ends. Its failure ends nothing else."""
        self._open.add(stream)
        # Hypercorn takes both kinds of streams, but declares one.
        declared = cast("trio.SSLStream[trio.SocketStream]", stream)
        state = ConnectionState({})
        try:
            await _Connection(self._app, self._settings, self._context, state, declared)
        except* Exception as errors:
            error = first_of(errors)
            text = f"{type(error).__name__}: {error}"[:_MOST_CHARS]
            _log.info("http.connection_failed", "a connection failed: %s", text)
        finally:
            self._open.discard(stream)
            if not self._open and self._context.terminated.is_set():
                self._ended.set()

    async def finish(self) -> None:
        """End idle connections, and wait until the requests in progress have their answers."""
        await self._context.terminated.set()
        if self._open:
            await self._ended.wait()

    def abort(self) -> None:
        """End all connections now, also those whose clients do not read."""
        for stream in self._open:
            transport = stream if isinstance(stream, trio.SocketStream) else stream.transport_stream
            transport.socket.close()


def first_of(errors: BaseExceptionGroup[Exception]) -> Exception:
    """Return the first error of a group, which may have further groups in it."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception)
    return found
