"""A broker on a short lease, which a test lets another broker take."""

from __future__ import annotations

from typing import Final

import trio

from escapement.errors import LeaseLost
from escapement.testing import World

LEASE_S: Final = 10


class Owner(World):
    """A broker that may lose its lease."""

    was_overtaken = False

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            await super()._live(task_status)
        except* LeaseLost:
            self.was_overtaken = True
