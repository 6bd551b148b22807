"""How what has a name is changed: one at a time, in the database first, and whole.

Of several that want the same new name at once, one creates it and the others wait.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import trio

from escapement.storage.engine.base import Connection

T = TypeVar("T")


class Transact(Protocol):
    """Runs a function in a transaction and returns its value once that is durable."""

    async def __call__(
        self, statement: Callable[[Connection], T], *, topic_id: int = 0, forgets: str = ""
    ) -> T: ...


class Changes:
    """See the module's docstring."""

    def __init__(self, transact: Transact) -> None:
        self._transact = transact
        self._locks: dict[str, trio.Lock] = {}  # of names that somebody is changing now

    @asynccontextmanager
    async def alone(self, name: str) -> Any:
        """Of those that change the same thing, one after the other."""
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
        """Change the database; who is cancelled meanwhile is cancelled afterwards.

        What was made durable must be entered in memory too, or nobody would know of it
        until the next start. An outage ends the wait with an error, so it is never long.
        """
        with trio.CancelScope(shield=True):
            value: T = await self._transact(statement, topic_id=topic_id, forgets=forgets)
        return value
