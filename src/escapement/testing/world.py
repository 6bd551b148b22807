"""A broker for tests, with a virtual clock and a database in memory.

The broker, the protocol and the client are the real ones. Only four things differ: the clock is
virtual, calls that a real broker makes in threads run in the event loop, the database is in memory,
and memory streams replace network connections. ``World.crash`` and ``World.restart`` act like a
kill and a start of the broker process.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import trio
import trio.testing

from escapement.broker.broker import Broker as Server
from escapement.broker.broker import BrokerConfig
from escapement.broker.crash import one_error
from escapement.broker.front.front import Front
from escapement.broker.runners import Runners
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.consuming.batch import Message
from escapement.client.consuming.inbox import Inbox
from escapement.client.settings import Settings
from escapement.errors import Disconnected
from escapement.storage.blocking import Run, inline
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.lease import Identity
from escapement.testing.clock import START_MS, VirtualClock

T = TypeVar("T")

# Timeouts that no test reaches.
_FOREVER_S: Final = 1e9
_FOREVER_MS: Final = 10**12
_URL: Final = "escapement://memory"


class World:
    """A broker for a test, with its clock and database, created by :func:`start`.

    Attributes:
      clock: the virtual clock of the broker.
      config: the configuration of the broker.
      index_directory: the directory in which the broker keeps its index of pending messages.
      bundle_id: the bundle of topics that the broker owns.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        clock: VirtualClock,
        engine: Engine,
        index_directory: Path,
        config: BrokerConfig,
        run: Run,
        bundle_id: int = 0,
    ) -> None:
        self.bundle_id = bundle_id
        self.clock = clock
        self.config = config
        self._nursery = nursery
        self._engine = engine
        self._run = run
        self.index_directory = index_directory
        self._server: Server | None = None
        self._front: Front | None = None
        self._incarnation = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def server(self) -> Server:
        """The broker object that is running, for tests that inspect its internals."""
        assert self._server is not None, "the broker is down"
        return self._server

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Broker]:
        """Connect a client to this broker, as ``escapement.connect`` does.

        When the ``async with`` block ends, the client waits until the broker has answered all
        acknowledgements and publishes. If the broker cannot answer, for example because a test has
        made its database fail, this wait lasts until the test advances the time. To avoid it, pass
        ``settings=Settings(heartbeat_s=None, close_timeout_s=0)``. Unanswered requests may then
        be lost, as when a connection breaks.

        Args:
          options: the arguments of ``escapement.connect``, without ``url`` and
            ``stream_factory``.
        """
        # Without a heartbeat, because the time advances in steps longer than its timeout.
        options.setdefault("settings", Settings(heartbeat_s=None))
        options.setdefault("clock_s", self.clock.elapsed_s)
        return connect(_URL, stream_factory=self._open_stream, **options)

    async def checkpoint(self) -> None:
        """Let the broker write a checkpoint, that is, save its state. It writes none by itself."""
        await self.server.checkpoint()

    async def stop(self) -> None:
        """Stop the broker cleanly, as an operator does, and wait until it has stopped."""
        self.server.stop()
        await self._ended.wait()

    async def crash(self) -> None:
        """Stop the broker at once, without saving anything, as ``kill -9`` does.

        Connected clients notice that the connection is lost, and wait before they reconnect. So
        after a restart, the test must advance the time until they are connected again.
        """
        self._incarnation.cancel()
        await self._ended.wait()

    async def restart(self) -> None:
        """Start a new broker with the database and the index of the one that has ended."""
        assert self._server is None, "the broker is running"
        self._incarnation, self._ended = trio.CancelScope(), trio.Event()
        await self._nursery.start(self._live)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        """Run one broker until it stops or crashes."""
        server = Server(
            self._engine,
            self.index_directory,
            Identity(f"{self.bundle_id:032}", "testing"),
            self.clock,
            Runners.all_by(self._run),
            self.config,
            self.bundle_id,
        )
        try:
            with self._incarnation:
                async with trio.open_nursery() as nursery:
                    front = Front.of_broker(server)
                    await nursery.start(front.run_broker, server)
                    self._server, self._front, self._streams = server, front, nursery
                    self.clock.next_wake_ms = server.next_wake_ms
                    task_status.started()
                    await server.stopped.wait()
                    nursery.cancel_scope.cancel()
        finally:
            self._server = self._front = None
            self.clock.next_wake_ms = lambda: None
            self._ended.set()

    async def _open_stream(self) -> MemoryStream:
        """Open a connection to the broker. Raises ``Disconnected`` while none is running."""
        await trio.lowlevel.checkpoint()
        if self._front is None:
            raise Disconnected("the broker is down")
        ours, theirs = trio.testing.memory_stream_pair()
        self._streams.start_soon(self._front.serve_stream, theirs)
        return MemoryStream(ours)


class MemoryStream:
    """A trio stream with the methods and exceptions of an anyio stream, which the client uses."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Wait for bytes and return at most ``max_bytes``.

        Raises:
          anyio.EndOfStream: if the other end has closed the stream.
          anyio.BrokenResourceError: if the stream is broken or closed.
        """
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return bytes(data)

    async def send(self, item: bytes) -> None:
        """Send all bytes of ``item``.

        Raises:
          anyio.BrokenResourceError: if the stream is broken or closed.
        """
        try:
            await self._stream.send_all(item)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


@asynccontextmanager
async def start(
    *,
    config: BrokerConfig | None = None,
    start_ms: int = START_MS,
    engine: Engine | None = None,
    run: Run = inline,
) -> AsyncIterator[World]:
    """Run a broker with a virtual clock and an empty database in memory.

    It runs until the ``async with`` block ends.

    Args:
      config: the configuration, as for a real broker. The timeouts of connections, the interval
        of checkpoints and the length of the lease have no effect, because virtual time advances
        in large steps.
      start_ms: the wall-clock time at the start, in Unix milliseconds.
      engine: a database to use instead of one in memory. Its calls must not wait.
      run: the function that runs the broker's blocking calls. It must not use threads, because
        virtual time does not wait for them.

    Raises:
      InvalidRequest: if trio does not run on a ``MockClock``.
    """
    clock = VirtualClock(start_ms)
    config = config or BrokerConfig(seed=0)
    limits = replace(
        config.limits,
        handshake_timeout_s=_FOREVER_S,
        idle_timeout_s=_FOREVER_S,
        checkpoint_interval_s=_FOREVER_S,
        lease_ms=_FOREVER_MS,
    )
    engine = engine or SqliteEngine.in_memory()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="escapement-testing-") as directory,
            one_error(),
        ):
            async with trio.open_nursery() as nursery:
                world = World(
                    nursery, clock, engine, Path(directory), replace(config, limits=limits), run
                )
                await world.restart()
                yield world
                nursery.cancel_scope.cancel()
    finally:
        engine.close()


async def arrived(inbox: Inbox) -> list[Message]:
    """Receive all messages that a consumer can get without advancing the time, and return them."""
    found: list[Message] = []

    async def read() -> None:
        async for message in inbox:
            found.append(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return found


def run(test: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Run the async function ``test`` under trio with virtual time, and return its result.

    Use it where the fixture ``mock_clock`` of pytest-trio is not available.

    Args:
      arguments: the arguments of ``test``.
    """
    return trio.run(test, *arguments, clock=trio.testing.MockClock())
