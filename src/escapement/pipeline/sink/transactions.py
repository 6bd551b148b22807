"""Transactions of a bulk job over a connection of its own, retried when the database fails.

If a COMMIT gets no reply, its transaction runs again. So a second run must do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from escapement.errors import OutcomeUnknown, StorageReadOnly, StorageUnavailable
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.storage.engine.transaction import transaction

T = TypeVar("T")

# Transactions are retried for this long, which is enough for a restart or a fail-over of the
# database server. After that, the task fails instead of hanging.
_TIMEOUT_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 2.0


class Transactions:
    """A connection with retried transactions. Blocking; for one thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._connection = KeptConnection(engine)
        self.in_doubt = False  # whether a COMMIT had no reply, so that its transaction ran again

    def run(self, statement: Callable[[Connection], T]) -> T:
        """Run ``statement`` in a transaction, and return its result after the COMMIT.

        Raises:
          StorageUnavailable: if the database could not be reached for too long, or is read-only.
        """
        deadline_s = time.monotonic() + _TIMEOUT_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                with self._connection.use() as connection, transaction(connection):
                    return statement(connection)
            except (StorageUnavailable, TransactionAborted) as error:
                self.in_doubt |= isinstance(error, OutcomeUnknown)
                if time.monotonic() + pause_s > deadline_s or isinstance(error, StorageReadOnly):
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
