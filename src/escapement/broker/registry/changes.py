"""Changes of named objects: one at a time, first in the database and then in memory.

If several requests create the same name at once, one creates it and the others wait.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import trio

from escapement.storage.engine.base import Connection

T = TypeVar("T")

# The pause between two steps of slow work, so that commits come first.
_BREATH_S: Final = 0.05


class Transact(Protocol):
    """A function that runs a statement in a transaction. It returns when that is durable."""

    async def __call__(
        self, statement: Callable[[Connection], T], *, topic_id: int = 0, forgets: str = ""
    ) -> T: ...


async def step_by_step(transact: Transact, step: Callable[[Connection], bool]) -> None:
    """Run short transactions, with pauses, until one reports that nothing is left."""
    more = True
    while more:
        more = await transact(step)
        await trio.sleep(_BREATH_S)


class Changes:
    """The locks of named objects, and the transactions that change them."""

    def __init__(self, transact: Transact) -> None:
        self._transact = transact
        self._locks: dict[str, trio.Lock] = {}  # of names that are being changed

    @asynccontextmanager
    async def alone(self, name: str) -> Any:
        """Hold the lock of a name, so that its changes happen one after the other."""
        lock = self._locks.setdefault(name, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._locks.pop(name, None)

    async def durably(
        self, statement: Callable[[Connection], T], *, topic_id: int = 0, forgets: str = ""
    ) -> T:
        """Change the database. A cancellation takes effect only afterwards.

        The caller must enter a durable change in memory too, or the broker would not know it until
        the next start. An outage ends the wait with an error, so the wait is never long.
        """
        with trio.CancelScope(shield=True):
            value: T = await self._transact(statement, topic_id=topic_id, forgets=forgets)
        return value
