"""A database that a test makes read-only, or unreachable, and well again."""

from __future__ import annotations

from typing import Final

from committing import FaultyEngine
from escapement.errors import StorageReadOnly, StorageUnavailable
from escapement.storage.engine.sqlite import SqliteEngine

_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE")


class Outage:
    """What is wrong with a database; ``engine`` is one in memory that has it.

    Read-only refuses writes and lets reads pass; unreachable refuses everything, and
    loses every connection.
    """

    def __init__(self) -> None:
        self._error: StorageUnavailable | None = None
        self.engine = FaultyEngine(SqliteEngine.in_memory(), self._ask)

    def read_only(self) -> None:
        self._error = StorageReadOnly("read-only, says the test")

    def unreachable(self) -> None:
        self._error = StorageUnavailable("out of reach, says the test")

    def over(self) -> None:
        self._error = None

    def _ask(self, step: str) -> None:
        reading = isinstance(self._error, StorageReadOnly) and not step.startswith(_WRITES)
        if self._error is not None and not reading:
            raise self._error
