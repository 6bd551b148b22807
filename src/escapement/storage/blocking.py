"""Where blocking calls run: in threads in production, at once on a virtual clock.

Storage never chooses; it is given a :data:`Run`. In threads a call that has begun is
always waited for, cancelled or not, so that its outcome is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class Run(Protocol):
    """``await run(function, *arguments)`` gives what the function returns or raises."""

    async def __call__(self, function: Callable[..., T], /, *arguments: object) -> T: ...


def in_threads(most: int) -> Run:
    """Run in trio's worker threads, ``most`` calls at a time, apart from other users."""
    limiter = trio.CapacityLimiter(most)

    async def run(function: Callable[..., T], /, *arguments: object) -> T:
        return await trio.to_thread.run_sync(
            lambda: function(*arguments), abandon_on_cancel=False, limiter=limiter
        )

    return run


async def inline(function: Callable[..., T], /, *arguments: object) -> T:
    """Run right here; others get their turn before. For an engine that answers at once."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)
