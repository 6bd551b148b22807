"""Async work that Ctrl-C, or another signal, cancels as a whole.

A plain ``KeyboardInterrupt`` could be raised in any task, such as the connection's, and the command
would only see a lost connection. In a finalizer Python ignores it, and the command would go on.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import trio

Result = TypeVar("Result")


async def until_interrupted(
    work: Callable[[], Awaitable[Result]], *signals: signal.Signals
) -> Result:
    """Run ``work`` and return its result; one of the signals cancels it.

    Args:
      work: an async function without arguments.
      signals: the signals that cancel the work; by default Ctrl-C.

    Raises:
      KeyboardInterrupt: after a signal, when the cancelled work has ended.
    """
    with trio.open_signal_receiver(*(signals or (signal.SIGINT,))) as received:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on, received, nursery.cancel_scope)
            result = await work()
            nursery.cancel_scope.cancel()
            return result
    raise KeyboardInterrupt


async def _cancel_on(received: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in received:
        scope.cancel()
