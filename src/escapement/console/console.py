"""Runs the console in this process until it is told to stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from escapement.clock import SystemClock
from escapement.console.app import ConsoleApp
from escapement.console.config import ConsoleConfig
from escapement.event_log import EventLog
from escapement.gateway.app import GatewayApp
from escapement.gateway.clients import Clients, Connect
from escapement.gateway.serving import serve_app

_log = EventLog(__name__)


async def run_console(
    config: ConsoleConfig,
    connect: Connect,
    connect_gateway: Connect,
    until: Callable[[], Awaitable[None]],
    ready: Callable[[str], None],
    now_ms: Callable[[], int] | None = None,
) -> None:
    """Serve the pages, and the gateway, until the awaitable of ``until`` has finished.

    Args:
      connect, connect_gateway: connect to the brokers with a token; "" for none. The
        first names the client "console", so the audit log records what people do.
      ready: called with the address, when the console accepts requests.
      now_ms: returns the time in Unix milliseconds; None for the clock of this machine.

    Raises:
      InvalidRequest: if the address cannot be bound.
    """

    def announce(address: str) -> None:
        _log.info("console.ready", "the console is on %s", address, address=address)
        ready(address)

    async with trio.open_nursery() as nursery:
        clients, programs = Clients(connect, nursery), Clients(connect_gateway, nursery)
        nursery.start_soon(clients.sweep)
        nursery.start_soon(programs.sweep)
        app = ConsoleApp(config, clients, now_ms or SystemClock().now_ms, GatewayApp(programs))
        await serve_app(config, app, until, announce)
        await clients.close()
        await programs.close()
        nursery.cancel_scope.cancel()
