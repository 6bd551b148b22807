"""The event loop of a blocking client, which runs in its own thread.

After the connection is closed, all calls raise ``Disconnected``.
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
    """A portal into the event loop, which raises ``Disconnected`` after closing."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.closed = False
        self._portal = portal

    @overload
    def call(self, act: Callable[..., Awaitable[T]], *arguments: Any) -> T: ...

    @overload
    def call(self, act: Callable[..., T], *arguments: Any) -> T: ...

    def call(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Run ``act`` in the event loop, await it if needed, and return its result.

        If Ctrl-C interrupts the wait, the call is cancelled in the event loop, so that a
        message that it would have received stays in the delivery buffer.

        Raises:
          Disconnected: if this side has closed the connection.
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
        """Run ``act`` in the event loop without waiting; raises as ``call``."""
        self.check()
        return self._portal.start_task_soon(act)

    def wrap_async_context_manager(
        self, context: AbstractAsyncContextManager[T]
    ) -> AbstractContextManager[T]:
        """Return an async context manager as a blocking one."""
        return self._portal.wrap_async_context_manager(context)

    def check(self) -> None:
        """Raise ``Disconnected`` if this side has closed the connection."""
        if self.closed:
            raise Disconnected("the connection was closed by this side")


class _Visit:
    """One call into the event loop, which can be ended before, during and after its run."""

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
