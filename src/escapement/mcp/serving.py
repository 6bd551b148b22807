"""Runs the server of one agent over standard input and output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from escapement.event_log import EventLog
from escapement.gateway.clients import Clients, Connect
from escapement.mcp.limits import Limits
from escapement.mcp.server import AgentServer
from escapement.mcp.stdio import standard_streams

# The longest wait for producers to close. Only calls that were given up have unsent messages, and
# agents kill a process that does not end within seconds.
CLOSE_S: Final = 1.0

_log = EventLog(__name__)


async def run_mcp(
    limits: Limits,
    connect: Connect,
    until: Callable[[], Awaitable[None]],
    now_ms: Callable[[], int],
) -> None:
    """Serve an agent until standard input ends, or the awaitable of ``until`` has finished.

    Calls in progress are then given up. The broker need not be there at the start: a call connects
    if no connection is open.

    Args:
      connect: connects to the brokers. Its argument is always "".
      now_ms: returns the wall-clock time.
    """
    async with trio.open_nursery() as nursery:
        clients = Clients(connect, nursery)
        nursery.start_soon(clients.sweep)
        server = AgentServer(clients, limits, now_ms).protocol
        serving = trio.CancelScope()

        async def stop() -> None:
            await until()
            serving.cancel()

        nursery.start_soon(stop)
        _log.info("mcp.ready", "serving an agent", writes=limits.may_write)
        with serving:
            async with standard_streams() as (requests, results):
                await server.run(requests, results, server.create_initialization_options())
        _log.info("mcp.stopped", "the agent has gone, or a signal asked to stop")
        with trio.move_on_after(CLOSE_S):
            await clients.close()
        nursery.cancel_scope.cancel()
