"""The event loop of a blocking client, which runs in its own thread.

Other threads *call* async functions in this loop, and wait for the results. They *post* plain
functions to it, without waiting. Many posted functions share one wake-up of the event loop, so
posting costs about a microsecond. The functions that a thread posts run in order, and before the
thread's later calls.

After the client has closed its connection, all calls and posts raise ``Disconnected``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from threading import Lock
from typing import Any, Final, Generic, ParamSpec, TypeVar

import anyio
import trio
from anyio import CancelScope
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal

from escapement.errors import Disconnected

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# The bounds of posted functions and of their messages. They are some milliseconds of work for the
# event loop. A thread that posts messages waits for the event loop when one is reached.
MAX_POSTED: Final = 10_000
MAX_POSTED_BYTES: Final = 4 * 1024 * 1024


class Loop:
    """The calls and posts of other threads into the event loop of a portal of anyio."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._lock = Lock()  # guards the other three
        self._closed = False
        self._posted: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._posted_bytes = 0
        _, self._wake = portal.start_task(self._serve)

    def call(self, act: Callable[P, Awaitable[T]], /, *arguments: P.args, **options: P.kwargs) -> T:
        """Run ``act`` in the event loop and return its result.

        If Ctrl-C interrupts the wait, the call is cancelled in the event loop. So a call that
        receives a message does not lose it: the message stays with the consumer.

        Raises:
          Disconnected: if the client has closed its connection.
        """
        self._check()
        visit: _Visit[T] = _Visit(self._run_posted, partial(act, *arguments, **options))
        future = None
        try:
            future = self._portal.start_task_soon(visit.pay)
            return future.result()
        except BaseException:
            if future is None or not future.done():
                self._portal.start_task_soon(visit.end)
            raise

    def post(self, act: Callable[..., None], /, *arguments: Any, size_bytes: int = 0) -> None:
        """Let the event loop run ``act``, which must not raise. Does not wait.

        Args:
          size_bytes: the size of the arguments, if they are large; see ``crowded``.

        Raises:
          Disconnected: if the client has closed its connection.
        """
        with self._lock:
            self._check()
            if not self._posted:
                # This comes first. If Ctrl-C interrupts this method between the two steps, the
                # event loop wakes up for nothing. The other way round, it would never wake up.
                self._wake()
            self._posted.append((act, arguments))
            self._posted_bytes += size_bytes

    @property
    def crowded(self) -> bool:
        """Whether threads must not post messages. They wait with ``call``, which runs the posts."""
        return len(self._posted) >= MAX_POSTED or self._posted_bytes >= MAX_POSTED_BYTES

    def iterate(self, found: AsyncIterator[T]) -> Iterator[T]:
        """Return a blocking iterator over the items of an async iterator, none of which is None."""

        async def following() -> T | None:
            return await anext(found, None)

        return iter(lambda: self.call(following), None)

    def wrap_async_context_manager(
        self, context: AbstractAsyncContextManager[T]
    ) -> AbstractContextManager[T]:
        """Return a blocking context manager that enters and exits ``context`` in the event loop.

        Raises:
          Disconnected: if the client has closed its connection.
        """
        self._check()
        return self._portal.wrap_async_context_manager(context)

    def close(self) -> None:
        """Run all posted functions, and accept no more calls and posts."""
        self._portal.call(self._end)

    def _check(self) -> None:
        if self._closed:
            raise Disconnected("the connection was closed by this side")

    # -- in the event loop's thread ------------------------------------------------------

    async def _serve(self, *, task_status: TaskStatus[Callable[[], object]]) -> None:
        """Run posted functions until ``close``. Other threads wake this task with the status."""
        self._bell = anyio.Event()
        task_status.started(_caller(self._ring))
        while not self._closed:
            await self._bell.wait()
            self._bell = anyio.Event()
            self._run_posted()

    def _ring(self) -> None:
        self._bell.set()

    def _run_posted(self) -> None:
        with self._lock:
            posted, self._posted = self._posted, []
            self._posted_bytes = 0
        for act, arguments in posted:
            try:
                act(*arguments)
            except Exception:  # other threads wait for what they have posted
                _log.exception("the event loop cannot carry out what a thread has posted")

    def _end(self) -> None:
        with self._lock:
            self._closed = True
        # A thread may have posted after the task has run posted functions for the last time.
        self._run_posted()
        self._ring()


def _caller(act: Callable[[], None]) -> Callable[[], object]:
    """Return a function by which other threads let this event loop call ``act``, without a wait."""
    try:
        return partial(asyncio.get_running_loop().call_soon_threadsafe, act)
    except RuntimeError:
        return partial(trio.lowlevel.current_trio_token().run_sync_soon, act)


class _Visit(Generic[T]):
    """One call of ``act`` in the event loop, which can be cancelled at any time, even before it."""

    def __init__(self, before: Callable[[], None], act: Callable[[], Awaitable[T]]) -> None:
        self._before = before
        self._act = act
        self._scope: CancelScope | None = None
        self._ended = False

    async def pay(self) -> T:
        """Run ``act`` and return its result. Raises ``Disconnected`` if ``end`` is called."""
        self._before()
        with CancelScope() as self._scope:
            if not self._ended:
                return await self._act()
        raise Disconnected("the call was interrupted")

    def end(self) -> None:
        """Cancel the call if it is running, and prevent it if it has not begun."""
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()
