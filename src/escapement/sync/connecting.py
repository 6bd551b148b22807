"""The function ``connect`` of the blocking client."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal

from escapement.client import connect as client
from escapement.client.broker import Broker as AsyncBroker
from escapement.client.connection.link import StreamFactory
from escapement.client.settings import Settings
from escapement.client.tracing.tracing import Tracing
from escapement.client.unopened import Unopened
from escapement.clock import elapsed_s
from escapement.sync.broker import Broker
from escapement.sync.loop import Loop


def connect(
    url: str = "escapement://localhost",
    *,
    name: str = "",
    token: str | None = None,
    token_file: str | Path | None = None,
    stream_factory: StreamFactory | None = None,
    settings: Settings | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    tracing: Tracing | None = None,
    clock_s: Callable[[], float] = elapsed_s,
    backend: str = "asyncio",
) -> AbstractContextManager[Broker]:
    """Connect to a broker, and stay connected until the ``with`` block ends.

    The arguments and errors are those of ``escapement.connect``. In addition, ``backend`` selects
    the library that runs the event loop, "asyncio" or "trio".
    """
    context = client.connect(
        url,
        name=name,
        token=token,
        token_file=token_file,
        stream_factory=stream_factory,
        settings=settings,
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
        tracing=tracing,
        clock_s=clock_s,
    )
    return _Connection(context, backend)


class _Connection(Unopened, AbstractContextManager[Broker]):
    """The context manager of ``connect``.

    This is a class, because Python ends an unfinished generator when it is deleted. In a fork of
    the process, that would wait forever for the event loop, which the fork does not have.
    """

    _BEFORE = "before the client is connected: write `with escapement.sync.connect(...) as broker:`"

    def __init__(self, context: AbstractAsyncContextManager[AsyncBroker], backend: str) -> None:
        self._context = context
        self._backend = backend

    def __enter__(self) -> Broker:
        self._process = os.getpid()
        with ExitStack() as stack:
            portal = stack.enter_context(_LoopThread(self._backend))
            broker = stack.enter_context(portal.wrap_async_context_manager(self._context))
            loop = Loop(portal, broker._lines.tracer)
            stack.callback(loop.close)
            self._open = stack.pop_all()
        return Broker(loop, broker)

    def __exit__(self, *error: Any) -> bool | None:
        if os.getpid() != self._process:
            return None  # the connection belongs to the process that has forked this one
        return self._open.__exit__(*error)


class _LoopThread(AbstractContextManager[BlockingPortal]):
    """A thread in which an event loop runs, and a portal into it."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._started: Future[BlockingPortal] = Future()
        self._thread = Thread(target=self._run, name="escapement", daemon=True)

    def __enter__(self) -> BlockingPortal:
        self._thread.start()
        return self._started.result()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        portal = self._started.result()
        portal.call(portal.stop, kind is not None)
        self._thread.join()

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend=self._backend)
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        async with BlockingPortal() as portal:
            self._started.set_result(portal)
            await portal.sleep_until_stopped()
