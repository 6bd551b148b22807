"""The event loop of a blocking client, which runs in its own thread.

Other threads *call* async functions in this loop, and wait for the results. They *post* plain
functions to it, without waiting. Many posted functions share one wake-up of the event loop, so
posting costs about a microsecond. Calls are posted, too. So the functions that a thread posts run
in order, and before the thread's later calls.

After the client has closed its connection, all calls and posts raise ``Disconnected``. A post and
the closing exclude each other by a lock. So the event loop runs whatever was posted before, and no
thread waits for a call that the event loop does not run.

Signal handlers interrupt the main thread at any place, also between two steps under a lock, and
may call and post as well. So the locks are reentrant.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

import anyio
import trio
from anyio import CancelScope
from anyio.abc import TaskGroup, TaskStatus
from anyio.from_thread import BlockingPortal

from escapement.errors import Disconnected, EscapementError, InvalidRequest
from escapement.event_log import EventLog

if TYPE_CHECKING:
    from escapement.client.tracing.tracer import Tracer

_log = EventLog(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# The bounds of posted functions and of their messages. They are some milliseconds of work for the
# event loop. A thread that posts messages waits for the event loop when one is reached.
MAX_POSTED: Final = 10_000
MAX_POSTED_BYTES: Final = 4 * 1024 * 1024


class Loop:
    """The calls and posts of other threads into the event loop of a portal of anyio."""

    def __init__(self, portal: BlockingPortal, tracer: Tracer | None = None) -> None:
        self._portal = portal
        self.tracer = tracer  # None if the client does not trace
        self._process = os.getpid()
        self._lock = RLock()  # guards the other three
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
          InvalidRequest: if the calling thread must not wait; see ``check_may_wait``.
        """
        self.check_may_wait()
        whole: Callable[[], Awaitable[T]] = partial(act, *arguments, **options)
        if self.tracer is not None:
            whole = self.tracer.carried(whole)
        visit = _Visit(whole)
        try:
            self.post(self._begin, visit)
            return visit.future.result()
        except BaseException:
            if not visit.future.done():
                with suppress(EscapementError):
                    self.post(visit.end)
            raise

    def check_may_wait(self) -> None:
        """Check that the calling thread may wait for the event loop.

        Raises:
          InvalidRequest: if the event loop runs in this thread, for example in a callback of a
            future, or in another process, because this one is its fork.
        """
        self.check_process()
        if get_ident() == self._thread and not self._closed:  # else another thread may have the id
            raise InvalidRequest(
                "a callback of a future must not wait for the client: it runs in the thread of the "
                "client. Use submit, or let another thread wait"
            )

    @property
    def is_here(self) -> bool:
        """Whether the event loop runs in this process, and not in one that has forked it."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Check that the event loop runs in this process. Raises ``InvalidRequest``."""
        if not self.is_here:
            raise InvalidRequest(
                "this process is a fork of the one that connected the client, and cannot use it: "
                "connect again after the fork"
            )

    def post(self, act: Callable[..., None], /, *arguments: Any, size_bytes: int = 0) -> None:
        """Let the event loop run ``act``, which must not raise. Does not wait.

        Args:
          size_bytes: the size of the arguments, if they are large; see ``crowded``.

        Raises:
          Disconnected: if the client has closed its connection.
          InvalidRequest: in a fork of the process that connected the client.
        """
        self.check_process()  # before the lock, which another thread may have held at the fork
        with self._lock:
            if self._closed:
                raise Disconnected("the connection was closed by this side")
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

    def close(self) -> None:
        """Run all posted functions, and accept no more calls and posts."""
        self._portal.call(self._end)

    # -- in the event loop's thread ------------------------------------------------------

    async def _serve(self, *, task_status: TaskStatus[Callable[[], object]]) -> None:
        """Run posted functions until ``close``, and then wait until all calls have ended.

        Other threads wake this task with the status.
        """
        self._thread = get_ident()
        self._bell = anyio.Event()
        self._calls: TaskGroup
        async with anyio.create_task_group() as self._calls:
            task_status.started(_caller(self._ring))
            while not self._closed:
                await self._bell.wait()
                self._bell = anyio.Event()
                self._run_posted()

    def _begin(self, visit: _Visit[Any]) -> None:
        self._calls.start_soon(visit.pay)

    def _ring(self) -> None:
        self._bell.set()

    def _run_posted(self) -> None:
        with self._lock:
            posted, self._posted = self._posted, []
            self._posted_bytes = 0
        for act, arguments in posted:
            try:
                act(*arguments)
            except Exception:  # the functions posted behind it must run
                _log.exception(
                    "client.call_failed", "the event loop cannot carry out what a thread has posted"
                )

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

    def __init__(self, act: Callable[[], Awaitable[T]]) -> None:
        self.future: Future[T] = Future()
        self._act = act
        self._scope: CancelScope | None = None
        self._ended = False

    async def pay(self) -> None:
        """Run ``act``, and pass its result to the future: ``Disconnected`` if ``end`` is called."""
        try:
            with CancelScope() as self._scope:
                if not self._ended:
                    self.future.set_result(await self._act())
                    return
        except anyio.get_cancelled_exc_class():
            self.future.set_exception(Disconnected("the connection was closed by this side"))
            raise
        except BaseException as error:  # for the thread that waits; the event loop must go on
            self.future.set_exception(error)
            return
        self.future.set_exception(Disconnected("the call was interrupted"))

    def end(self) -> None:
        """Cancel the call if it is running, and prevent it if it has not begun."""
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()
