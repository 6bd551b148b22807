"""A database that a test makes read-only or unreachable, and repairs again."""

from __future__ import annotations

from typing import Final

from escapement.errors import OutcomeUnknown, StorageReadOnly, StorageUnavailable
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from support.storage.commit_pipelines import FaultyEngine

_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE")


class Outage:
    """The outages of one broker's database; ``engine`` has them.

    A read-only database refuses writes and allows reads. An unreachable one refuses all steps and
    loses every connection. A lost reply belongs to a COMMIT that took effect. If several brokers
    share a ``database``, each has its own outages.
    """

    def __init__(self, database: Engine | None = None) -> None:
        self._error: StorageUnavailable | None = None
        self._renewing = True
        self._replies = 0  # the reply of this number from now on is lost; 0: none
        self.database = database or SqliteEngine.in_memory()
        self.engine = FaultyEngine(self.database, self._ask, self._answer)

    def read_only(self) -> None:
        self._error = StorageReadOnly("read-only, says the test")

    def unreachable(self) -> None:
        self._error = StorageUnavailable("out of reach, says the test")

    def unrenewed(self) -> None:
        """Make only renewals of the lease fail."""
        self._renewing = False

    def lose_reply(self, number: int) -> None:
        """Lose the reply to the COMMIT of that number from now on; 1 is the next."""
        self._replies = number

    def over(self) -> None:
        self._error = None
        self._renewing = True
        self._replies = 0

    def _ask(self, step: str) -> None:
        if not self._renewing and step.startswith("UPDATE brokers"):
            raise StorageUnavailable("the lease cannot be renewed, says the test")
        reading = isinstance(self._error, StorageReadOnly) and not step.startswith(_WRITES)
        if self._error is not None and not reading:
            raise self._error

    def _answer(self, step: str) -> None:
        if self._replies:
            self._replies -= 1
            if not self._replies:
                raise OutcomeUnknown("the reply to a COMMIT is lost, says the test")
