"""Serves an ASGI application in the event loop of its caller."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import hypercorn.trio
import trio
from hypercorn.config import Config

# How long requests in progress may take when the server stops.
STOP_S: Final = 5.0
# How long a connection stays open between requests. Clients and proxies keep idle connections for
# some seconds up to a minute. A request on a connection that the server closes meanwhile fails.
IDLE_S: Final = 75.0


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

    The server then accepts no more connections, and waits for the requests in progress.

    Args:
      port: the port to listen on; 0 for any free one.
      certificate: for TLS; None for plain HTTP.
      ready: called with the port, when the server accepts connections.

    Raises:
      OSError: if the address cannot be bound.
    """
    settings = Config()
    # Hypercorn would not close a socket that it cannot bind.
    listeners = await trio.open_tcp_listeners(port, host=host)
    bound = listeners[0].socket.getsockname()[1]
    settings.bind = [f"fd://{listener.socket.detach()}" for listener in listeners]
    settings.errorlog = logging.getLogger("hypercorn.error")
    settings.errorlog.setLevel(logging.WARNING)
    settings.include_server_header = False
    settings.graceful_timeout = STOP_S
    settings.keep_alive_timeout = IDLE_S
    if certificate is not None:
        settings.certfile, settings.keyfile = map(str, certificate)
    serve = partial(hypercorn.trio.serve, app, settings, shutdown_trigger=until, mode="asgi")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        ready(bound)


def address_text(host: str, port: int) -> str:
    """Return an address as in a URL: ``127.0.0.1:7651`` or ``[::1]:7651``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
