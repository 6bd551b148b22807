"""Runs the gateway in this process until it is told to stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from escapement.event_log import EventLog
from escapement.gateway.app import GatewayApp
from escapement.gateway.clients import Clients, Connect
from escapement.gateway.config import GatewayConfig
from escapement.http.server import Certificate, address_text, serve_http

_log = EventLog(__name__)


async def run_gateway(
    config: GatewayConfig,
    connect: Connect,
    until: Callable[[], Awaitable[None]],
    ready: Callable[[str], None],
) -> None:
    """Serve HTTP until the awaitable of ``until`` has finished.

    The gateway then accepts no more requests, ends those that wait for messages, finishes the
    others, and closes its clients.

    Args:
      connect: connects to the brokers with a token; "" for none.
      ready: called with the address, when the gateway accepts requests.

    Raises:
      OSError: if the address cannot be bound.
    """

    def announce(port: int) -> None:
        address = address_text(config.host, port)
        _log.info("gateway.ready", "the gateway is on %s", address, address=address)
        ready(address)

    certificate = None
    if config.tls_cert is not None and config.tls_key is not None:
        certificate = Certificate(config.tls_cert, config.tls_key)
    async with trio.open_nursery() as nursery:
        clients = Clients(connect, nursery)
        nursery.start_soon(clients.sweep)
        app = GatewayApp(clients)

        async def stopping() -> None:
            await until()
            app.stop()

        await serve_http(
            app.asgi, config.host, config.port, stopping, certificate=certificate, ready=announce
        )
        await clients.close()
        nursery.cancel_scope.cancel()
