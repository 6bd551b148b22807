"""Runs the pusher in the process of an HTTP server: `--push` of the gateway and the console.

The two share an event loop, and nothing else. A stop first ends the pusher, with the posts in
progress, and then the server. If the pusher fails, the server stops too, so that no process seems
to push and does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from escapement.errors import EscapementError
from escapement.event_log import EventLog

_log = EventLog(__name__)

Until = Callable[[], Awaitable[None]]
# Serves until the awaitable of its first argument has finished. Calls the second one with its
# address.
Serve = Callable[[Until, Callable[[str], None]], Awaitable[None]]
# Pushes until the awaitable of its first argument has finished. Calls the second one with the
# number of targets.
Push = Callable[[Until, Callable[[int], None]], Awaitable[None]]


async def serve_and_push(
    serve: Serve, push: Push, until: Until, ready: Callable[[str, int], None]
) -> None:
    """Run a server and a pusher until the awaitable of ``until`` has finished.

    Args:
      ready: called with the address and the number of targets, when both are ready.

    Raises:
      EscapementError: if the pusher fails. The server has then finished its requests.
    """
    asked, over = trio.Event(), trio.Event()
    failure: EscapementError | None = None

    async def wait() -> None:
        await until()
        asked.set()

    async def run_server(task_status: trio.TaskStatus[str]) -> None:
        await serve(over.wait, task_status.started)

    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        async with trio.open_nursery() as server:
            address = await server.start(run_server)
            try:
                await push(asked.wait, lambda count: ready(address, count))
            except EscapementError as error:
                # Raised below, so that the server finishes its requests.
                failure = error
                _log.error("push.failed", "posts have ended: %s", error, code=error.code)
            over.set()
        waiting.cancel_scope.cancel()
    if failure is not None:
        raise failure
