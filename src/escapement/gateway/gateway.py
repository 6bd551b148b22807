"""Runs the gateway in this process until it is told to stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from escapement.event_log import EventLog
from escapement.gateway.app import GatewayApp
from escapement.gateway.clients import Clients, Connect
from escapement.gateway.config import GatewayConfig
from escapement.gateway.serving import serve_app

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
      InvalidRequest: if the address cannot be bound.
    """

    def announce(address: str) -> None:
        _log.info("gateway.ready", "the gateway is on %s", address, address=address)
        ready(address)

    async with trio.open_nursery() as nursery:
        clients = Clients(connect, nursery)
        nursery.start_soon(clients.sweep)
        await serve_app(config, GatewayApp(clients), until, announce)
        await clients.close()
        nursery.cancel_scope.cancel()
