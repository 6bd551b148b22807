"""Transactions of a job on a connection of its own, tried again when the database fails.

Only for what may be done twice: after a COMMIT without a reply it is simply done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from escapement.errors import OutcomeUnknown, StorageReadOnly, StorageUnavailable
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.engine.transaction import transaction

T = TypeVar("T")

# A restart of a server, or a fail-over, is over by then; tasks are better ended than hung.
_PATIENCE_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 2.0


class Transactions:
    """See the module's docstring. Blocking; for one thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._connection: Connection | None = None
        self.in_doubt = False  # whether a COMMIT was lost, and what it did was done again

    def run(self, statement: Callable[[Connection], T]) -> T:
        """What ``statement`` gives, once that is durable.

        Raises:
          StorageUnavailable: the database was away for too long.
        """
        deadline_s = time.monotonic() + _PATIENCE_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._once(statement)
            except (StorageUnavailable, TransactionAborted) as error:
                self.in_doubt |= isinstance(error, OutcomeUnknown)
                if time.monotonic() + pause_s > deadline_s or isinstance(error, StorageReadOnly):
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _once(self, statement: Callable[[Connection], T]) -> T:
        if self._connection is None:
            self._connection = self.engine.connect()
        connection = self._connection
        try:
            with transaction(connection):
                return statement(connection)
        except StorageUnavailable:
            self.close()
            raise

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
