"""The event loop of a blocking client, which runs in its own thread.

Other threads call async functions in this loop, and wait for the results. After the client has
closed its connection, all calls raise ``Disconnected``.
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
    """The calls that other threads make into the event loop, through a portal of anyio.

    ``closed`` is True after the client has closed its connection.
    """

    def __init__(self, portal: BlockingPortal) -> None:
        self.closed = False
        self._portal = portal

    def call(self, act: Callable[P, Awaitable[T]], /, *arguments: P.args, **options: P.kwargs) -> T:
        """Run ``act`` in the event loop and return its result.

        If Ctrl-C interrupts the wait, the call is cancelled in the event loop. So a call that
        receives a message does not lose it: the message stays with the consumer.

        Raises:
          Disconnected: if the client has closed its connection.
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
        """Start ``act`` in the event loop, and return a future for its result.

        Raises:
          Disconnected: if the client has closed its connection.
        """
        self.check()
        return self._portal.start_task_soon(act)

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
        self.check()
        return self._portal.wrap_async_context_manager(context)

    def check(self) -> None:
        """Raise ``Disconnected`` if the client has closed its connection."""
        if self.closed:
            raise Disconnected("the connection was closed by this side")


class _Visit(Generic[T]):
    """One call of ``act`` in the event loop, which can be cancelled at any time, even before it."""

    def __init__(self, act: Callable[[], Awaitable[T]]) -> None:
        self._act = act
        self._scope: CancelScope | None = None
        self._ended = False

    async def pay(self) -> T:
        """Run ``act`` and return its result. Raises ``Disconnected`` if ``end`` is called."""
        with CancelScope() as self._scope:
            if not self._ended:
                return await self._act()
        raise Disconnected("the call was interrupted")

    def end(self) -> None:
        """Cancel the call if it is running, and prevent it if it has not begun."""
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()
