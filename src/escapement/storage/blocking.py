"""Runners of blocking calls: in threads in production, inline on a virtual clock.

Storage gets a :data:`Run` and never chooses one. In threads, a call that has begun is always
waited for, even if it is cancelled, so that its outcome is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class Run(Protocol):
    """``await run(function, *arguments)`` returns or raises what the function does."""

    async def __call__(self, function: Callable[..., T], /, *arguments: object) -> T: ...


def in_threads(most: int) -> Run:
    """Return a runner for trio's worker threads with a limit of ``most`` calls at a time."""
    limiter = trio.CapacityLimiter(most)

    async def run(function: Callable[..., T], /, *arguments: object) -> T:
        return await trio.to_thread.run_sync(
            lambda: function(*arguments), abandon_on_cancel=False, limiter=limiter
        )

    return run


class Near(Protocol):
    """A source that may be in memory."""

    @property
    def in_memory(self) -> bool: ...


async def read_from(source: Near, run: Run, read: Callable[..., T], /, *arguments: object) -> T:
    """Call ``read``: at once if its source is in memory, otherwise by ``run``."""
    return read(*arguments) if source.in_memory else await run(read, *arguments)


async def inline(function: Callable[..., T], /, *arguments: object) -> T:
    """Run in the event loop, after a checkpoint. For an engine that answers at once."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)
