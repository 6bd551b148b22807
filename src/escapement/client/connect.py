"""Connecting to a broker, and staying connected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from escapement.client.address import Address
from escapement.client.broker import Broker
from escapement.client.line import Line
from escapement.client.link import Stream, StreamFactory
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
    """Connect to a broker, and stay connected until the block ends.

    When a connection is lost, it is made again, and everything goes on. When the block
    ends well, publishes and acknowledgements under way are waited for; when it ends with
    an exception, they are not.

    Args:
      url: ``escapement://host:port``.
      name: of this client, for whoever looks at the broker.
      stream_factory: makes the connection instead of TCP to ``url``; an async callable
        that returns a byte stream as anyio has them.
      settings: how patient to be.

    Raises:
      InvalidRequest: if the url is none.
      Disconnected: if the broker cannot be reached the first time.
      EscapementError: if it refuses us.
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
                failure = error  # raised as it is, not in the group that the tasks make of it
            finally:
                line.close(Disconnected("the connection was closed by this side"))
            tasks.cancel_scope.cancel()
    finally:
        # Also when we are cancelled meanwhile: nobody would ever hear of it.
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
            # Of one attempt the cause says more; of several, their group says less.
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise OSError(f"{address}: {cause.strerror or cause}") from error

    return factory
