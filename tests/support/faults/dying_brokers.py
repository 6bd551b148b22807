"""Crashes between two database steps, and a lost index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from escapement.errors import StorageUnavailable
from escapement.testing import World


class DiesAt:
    """A fault: from the step of that number on, every step fails."""

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
    """Delete the index of a world that is not running."""
    for path in world.index_directory.iterdir():
        path.unlink()


async def finish(world: World, work: Callable[[], Awaitable[object]]) -> None:
    """Run work to its end, or to an unavailable database, while time passes."""
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
