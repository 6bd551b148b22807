"""The event loop of a blocking client, which runs in its own thread.

After the connection is closed, all calls raise ``Disconnected``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from anyio import CancelScope
from anyio.from_thread import BlockingPortal

from escapement.errors import Disconnected

P = ParamSpec("P")
T = TypeVar("T")


class Loop:
    """A portal into the event loop, which raises ``Disconnected`` after closing."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.closed = False
        self._portal = portal

    def call(self, act: Callable[P, Awaitable[T]], /, *arguments: P.args, **options: P.kwargs) -> T:
        """Run ``act`` in the event loop and return its result.

        If Ctrl-C interrupts the wait, the call is cancelled in the event loop, so that a
        message that it would have received stays in the delivery buffer.

        Raises:
          Disconnected: if this side has closed the connection.
        """
        self.check()
        visit: _Visit[T] = _Visit(partial(act, *arguments, **options))
        future = None
        try:
            future = self._portal.start_task_soon(visit.pay)
            return future.result()
        except BaseException:
            if future is None or not future.done():
                self._portal.start_task_soon(visit.end)
            raise

    def start_task_soon(self, act: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run ``act`` in the event loop without waiting; raises as ``call``."""
        self.check()
        return self._portal.start_task_soon(act)

    def iterate(self, found: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an async iterator that yields no None."""

        async def following() -> T | None:
            return await anext(found, None)

        return iter(lambda: self.call(following), None)

    def wrap_async_context_manager(
        self, context: AbstractAsyncContextManager[T]
    ) -> AbstractContextManager[T]:
        """Return an async context manager as a blocking one; raises as ``call``."""
        self.check()
        return self._portal.wrap_async_context_manager(context)

    def check(self) -> None:
        """Raise ``Disconnected`` if this side has closed the connection."""
        if self.closed:
            raise Disconnected("the connection was closed by this side")


class _Visit(Generic[T]):
    """One call into the event loop, which can be ended before, during and after its run."""

    def __init__(self, act: Callable[[], Awaitable[T]]) -> None:
        self._act = act
        self._scope: CancelScope | None = None
        self._ended = False

    async def pay(self) -> T:
        with CancelScope() as self._scope:
            if not self._ended:
                return await self._act()
        raise Disconnected("the call was interrupted")

    def end(self) -> None:
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()
