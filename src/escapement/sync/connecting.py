"""The function ``connect`` of the blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, NoReturn

from anyio.from_thread import start_blocking_portal

from escapement.client import connect as client
from escapement.client.broker import Broker as AsyncBroker
from escapement.client.connection.link import StreamFactory
from escapement.client.settings import Settings
from escapement.sync.broker import Broker
from escapement.sync.loop import Loop


def connect(
    url: str = "escapement://localhost",
    *,
    name: str = "",
    stream_factory: StreamFactory | None = None,
    settings: Settings | None = None,
    backend: str = "asyncio",
) -> AbstractContextManager[Broker]:
    """Connect to a broker, and stay connected until the ``with`` block ends.

    The arguments and errors are those of ``escapement.connect``. In addition, ``backend`` selects
    the library that runs the event loop, "asyncio" or "trio".
    """
    context = client.connect(url, name=name, stream_factory=stream_factory, settings=settings)
    return _Connection(context, backend)


class _Connection(AbstractContextManager[Broker]):
    """The context manager of ``connect``. Uses outside ``with`` raise an error that says so."""

    def __init__(self, context: AbstractAsyncContextManager[AsyncBroker], backend: str) -> None:
        self._context = _connected(context, backend)

    def __enter__(self) -> Broker:
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._context.__exit__(*error)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"there is no {name!r} before the client is connected: write `with "
            "escapement.sync.connect(...) as broker:`"
        )


@contextmanager
def _connected(
    connected: AbstractAsyncContextManager[AsyncBroker], backend: str
) -> Iterator[Broker]:
    with start_blocking_portal(backend) as portal:
        with portal.wrap_async_context_manager(connected) as broker:
            loop = Loop(portal)
            try:
                yield Broker(loop, broker)
            finally:
                loop.close()
