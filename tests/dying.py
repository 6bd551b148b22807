"""A broker that dies between two steps of a piece of work, on the virtual clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from escapement.errors import StorageUnavailable
from escapement.testing import World


class DiesAt:
    """From the step of that number on nothing reaches the database any more."""

    def __init__(self, number: int) -> None:
        self.left = number

    @property
    def dead(self) -> bool:
        return self.left <= 0

    def __call__(self, step: str) -> None:
        self.left -= 1
        if self.dead:
            raise StorageUnavailable("the broker's process has ended")


async def finish(world: World, work: Callable[[], Awaitable[None]]) -> None:
    """See a piece of work to its end, while time passes."""
    ended = False

    async def run() -> None:
        nonlocal ended
        with suppress(StorageUnavailable):
            await work()
        ended = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        while not ended:
            await world.clock.advance(ms=100)
