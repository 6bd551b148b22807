"""The event loop that a blocking client runs in, in a thread of its own: the way into it.

From the moment the connection is closed it takes nothing more, and says so in our words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from inspect import isawaitable
from typing import Any, TypeVar, overload

from anyio import CancelScope
from anyio.from_thread import BlockingPortal

from escapement.errors import Disconnected

T = TypeVar("T")


class Loop:
    """Where the client runs: as the portal into it, with errors of ours once it is closed."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.closed = False
        self._portal = portal

    @overload
    def call(self, act: Callable[..., Awaitable[T]], *arguments: Any) -> T: ...

    @overload
    def call(self, act: Callable[..., T], *arguments: Any) -> T: ...

    def call(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """What ``act`` returns, or awaits, there. Raises ``Disconnected`` once it is closed.

        Where Ctrl-C ends the wait it is cancelled there: what it would have taken stays.
        """
        self.check()
        visit, future = _Visit(act, arguments), None
        try:
            future = self._portal.start_task_soon(visit.pay)
            return future.result()
        except BaseException:
            if future is None or not future.done():
                self._portal.start_task_soon(visit.end)
            raise

    @overload
    def start_task_soon(self, act: Callable[..., Awaitable[T]]) -> Future[T]: ...

    @overload
    def start_task_soon(self, act: Callable[..., T]) -> Future[T]: ...

    def start_task_soon(self, act: Callable[..., Any]) -> Future[Any]:
        """The same without waiting for it."""
        self.check()
        return self._portal.start_task_soon(act)

    def wrap_async_context_manager(
        self, context: AbstractAsyncContextManager[T]
    ) -> AbstractContextManager[T]:
        """An asynchronous block as one that blocks."""
        return self._portal.wrap_async_context_manager(context)

    def check(self) -> None:
        """Raise ``Disconnected`` if this side has closed the connection."""
        if self.closed:
            raise Disconnected("the connection was closed by this side")


class _Visit:
    """One call, which may be ended before, while and after it runs."""

    def __init__(self, act: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._act = act
        self._arguments = arguments
        self._scope: CancelScope | None = None
        self._ended = False

    async def pay(self) -> Any:
        with CancelScope() as self._scope:
            if self._ended:
                return None
            found = self._act(*self._arguments)
            return await found if isawaitable(found) else found

    def end(self) -> None:
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()
