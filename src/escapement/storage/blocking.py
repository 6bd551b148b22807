"""Runners of blocking calls, such as database statements, for asynchronous code.

In production :func:`in_threads` makes the calls in threads. Tests with a virtual clock use
:func:`inline`, which makes them in the event loop. The code in ``storage`` receives its runner as
an argument of the type :class:`Run`. Once a call has begun in a thread, the runner waits for its
end even if the caller is cancelled, so that the outcome of the call is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class Run(Protocol):
    """The type of a runner. ``await run(function, *args)`` does the same as ``function(*args)``."""

    async def __call__(self, function: Callable[..., T], /, *arguments: object) -> T: ...


def in_threads(most: int, *, leaves: bool = False) -> Run:
    """Return a runner that makes at most ``most`` calls at a time, in trio's worker threads.

    Args:
      leaves: whether a cancelled task leaves its call alone in the thread. Otherwise it waits.
    """
    limiter = trio.CapacityLimiter(most)

    async def run(function: Callable[..., T], /, *arguments: object) -> T:
        return await trio.to_thread.run_sync(
            lambda: function(*arguments), abandon_on_cancel=leaves, limiter=limiter
        )

    return run


class ReadSource(Protocol):
    """A source of data. If it is ``in_memory``, reading it does not block."""

    @property
    def in_memory(self) -> bool: ...


async def read_from(
    source: ReadSource, run: Run, read: Callable[..., T], /, *arguments: object
) -> T:
    """Return ``read(*arguments)``. It goes through ``run`` unless ``source`` is in memory."""
    return read(*arguments) if source.in_memory else await run(read, *arguments)


async def inline(function: Callable[..., T], /, *arguments: object) -> T:
    """Call ``function`` in the event loop, after other tasks had a turn.

    This is a runner for tests, whose calls do not block for long.
    """
    await trio.lowlevel.checkpoint()
    return function(*arguments)
