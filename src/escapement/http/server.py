"""Serves an ASGI application in the event loop of its caller."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from hypercorn.config import Config

from escapement.http.connections import Connections

# How long requests in progress may take when the server stops.
STOP_S: Final = 5.0
# How long a connection stays open between requests. Clients and proxies keep idle connections for
# some seconds up to a minute. A request on a connection that the server closes meanwhile fails.
IDLE_S: Final = 75.0
# How long a client may leave an answer unread. Then its connection ends.
UNREAD_S: Final = 60.0


class Certificate(NamedTuple):
    """The certificate of a server and its key, both PEM files."""

    cert: Path
    key: Path


async def serve_http(
    app: Any,
    host: str,
    port: int,
    until: Callable[[], Awaitable[None]],
    *,
    certificate: Certificate | None = None,
    ready: Callable[[int], None],
) -> None:
    """Listen, and serve an application until the awaitable of ``until`` has finished.

    The server then accepts no more connections, and waits for the requests in progress. Connections
    that are open after ``STOP_S``, or when the caller is cancelled, are ended.

    Args:
      port: the port to listen on; 0 for any free one.
      certificate: for TLS; None for plain HTTP.
      ready: called with the port, when the server accepts connections.

    Raises:
      OSError: if the address cannot be bound.
    """
    listeners = await trio.open_tcp_listeners(port, host=host)
    for listener in listeners:
        _give_up_unread(listener.socket)
    bound = listeners[0].socket.getsockname()[1]
    settings = _settings(certificate)
    connections = Connections(app, settings)
    accepted: list[Any] = [*listeners]
    if certificate is not None:
        context = settings.create_ssl_context()
        assert context is not None
        accepted = [trio.SSLListener(one, context, https_compatible=True) for one in listeners]
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_listeners, connections.serve, handler_nursery=nursery)
        try:
            async with trio.open_nursery() as accepting:
                await accepting.start(serve, accepted)
                ready(bound)
                await until()
                accepting.cancel_scope.cancel()
            with trio.move_on_after(STOP_S):
                await connections.finish()
        finally:
            connections.abort()
            nursery.cancel_scope.cancel()


def _give_up_unread(listening: trio.socket.SocketType) -> None:
    """End the connections of a listening socket whose clients do not read. Only Linux can."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        listening.setsockopt(socket.IPPROTO_TCP, option, int(UNREAD_S * 1000))


def _settings(certificate: Certificate | None) -> Config:
    """Return the settings of hypercorn."""
    settings = Config()
    settings.errorlog = logging.getLogger("hypercorn.error")
    settings.errorlog.setLevel(logging.WARNING)
    settings.include_server_header = False
    settings.keep_alive_timeout = IDLE_S
    if certificate is not None:
        settings.certfile, settings.keyfile = map(str, certificate)
    return settings


def address_text(host: str, port: int) -> str:
    """Return an address as in a URL: ``127.0.0.1:7651`` or ``[::1]:7651``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
