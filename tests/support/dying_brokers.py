"""A broker that dies between two steps of a piece of work, and what it may lose with that."""

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


def lose_index(world: World) -> None:
    """The directory of the index is empty; of a world that is not running."""
    for path in world.index_directory.iterdir():
        path.unlink()


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
