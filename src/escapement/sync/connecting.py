"""The function ``connect`` of the blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anyio.from_thread import start_blocking_portal

from escapement.client import connect as client
from escapement.client.connection.link import StreamFactory
from escapement.client.settings import Settings
from escapement.sync.broker import Broker
from escapement.sync.loop import Loop


@contextmanager
def connect(
    url: str = "escapement://localhost",
    *,
    name: str = "",
    stream_factory: StreamFactory | None = None,
    settings: Settings | None = None,
    backend: str = "asyncio",
) -> Iterator[Broker]:
    """Connect to a broker, and stay connected until the ``with`` block ends.

    The arguments and errors are those of ``escapement.connect``. In addition, ``backend`` selects
    the library that runs the event loop, "asyncio" or "trio".
    """
    with start_blocking_portal(backend) as portal:
        connected = client.connect(url, name=name, stream_factory=stream_factory, settings=settings)
        with portal.wrap_async_context_manager(connected) as broker:
            loop = Loop(portal)
            try:
                yield Broker(loop, broker)
            finally:
                loop.closed = True
