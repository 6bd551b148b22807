"""The function ``connect``, which connects a client to a broker and keeps it connected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from escapement.client.broker import Broker
from escapement.client.connection.address import Address
from escapement.client.connection.line import Line
from escapement.client.connection.link import Stream, StreamFactory
from escapement.client.settings import Settings
from escapement.errors import Disconnected


@asynccontextmanager
async def connect(
    url: str = "escapement://localhost",
    *,
    name: str = "",
    stream_factory: StreamFactory | None = None,
    settings: Settings | None = None,
) -> AsyncIterator[Broker]:
    """Connect to a broker, and stay connected until the ``async with`` block ends.

    When the connection is lost, the client reconnects, and its producers and consumers continue.
    When the block ends without an error, the client waits until the broker has answered all
    publishes and acknowledgements, for at most ``close_timeout_s`` of the settings. When the block
    raises an exception, the client does not wait.

    Args:
      url: the address of the broker, ``escapement://host:port``. Without ``:port`` the port is
        7650.
      name: a name for this client, which it sends to the broker. Brokers do not use it yet.
      stream_factory: an async callable that returns an anyio byte stream, to use instead of a
        TCP connection to ``url``.
      settings: the timeouts of the client.

    Raises:
      InvalidRequest: if ``url`` is not the address of a broker.
      Disconnected: if the first attempt to connect fails.
      EscapementError: if the broker refuses the connection.
    """
    address = Address.parse(url)
    line = Line(stream_factory or _tcp(address), name, settings or Settings())
    link = await line.connect()
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            line.up(link)
            tasks.start_soon(line.keep, link)
            tasks.start_soon(line.pump)
            try:
                yield Broker(line, link.welcome)
                await _finish(line)
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                failure = error  # raised below, so that it is not wrapped in an exception group
            finally:
                line.close(Disconnected("the connection was closed by this side"))
            tasks.cancel_scope.cancel()
    finally:
        # Raise it even if this task was cancelled in the meantime. Otherwise it would be lost.
        if failure is not None:
            raise failure


async def _finish(line: Line) -> None:
    with anyio.move_on_after(line.settings.close_timeout_s):
        await line.drain()
        await line.say_goodbye()


def _tcp(address: Address) -> Callable[[], Any]:
    async def factory() -> Stream:
        try:
            return await anyio.connect_tcp(address.host, address.port)
        except OSError as error:
            # If one IP address was tried, the cause of the error has more detail. If several were
            # tried, the cause is an exception group, and the error itself has more detail.
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise OSError(f"{address}: {cause.strerror or cause}") from error

    return factory
