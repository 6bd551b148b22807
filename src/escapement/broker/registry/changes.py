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

# The pause between two steps of slow work, in which waiting group commits get their turn.
_BREATH_S: Final = 0.05


class Transact(Protocol):
    """A function that runs a statement in a transaction, and returns when that is durable.

    ``topic_id`` names the topic that the statement changes, if it changes one. ``forgets`` names a
    group of that topic that the statement deletes.
    """

    async def __call__(
        self, statement: Callable[[Connection], T], *, topic_id: int = 0, forgets: str = ""
    ) -> T: ...


class Read(Protocol):
    """A function that returns ``read(connection)``, without waiting for transactions."""

    async def __call__(self, read: Callable[[Connection], T], /) -> T: ...


async def step_by_step(transact: Transact, step: Callable[[Connection], bool]) -> None:
    """Repeat a step in short transactions, with pauses, until it returns False: nothing is left."""
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
        """Hold the lock of a name, so that changes of the named object do not overlap."""
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
        """Run a statement in a transaction, and return its result once it is durable.

        A cancellation takes effect only afterwards: the caller must make the same change in memory,
        or the broker would not know of it until the next start. If the database is unavailable,
        this raises an error, so the wait is never long.
        """
        with trio.CancelScope(shield=True):
            value: T = await self._transact(statement, topic_id=topic_id, forgets=forgets)
        return value
