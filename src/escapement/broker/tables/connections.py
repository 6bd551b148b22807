"""The connections of a broker to one database with message tables.

There are three, used by one thread each: one for polls, discovery and purges, one for claims, one
for acknowledgements and retries. Each holds a named lock of the server. A broker that takes over
opens all three at once, and ends the connections of an earlier broker that hangs. So the statements
of the earlier broker change nothing any more, and its locks are released. A broker connects only
while it holds the lease of its log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha1

from escapement.errors import StorageUnavailable
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.storage.engine.named_lock import take_over


class Connections:
    """The connections to one database.

    Args:
      log: the id of the broker's log.
      holds_lease: returns whether the broker holds its lease.
    """

    def __init__(
        self, engine: Engine, database: str, log: str, holds_lease: Callable[[], bool]
    ) -> None:
        self._engine = engine
        self._holds_lease = holds_lease
        # Locks are common to all databases of the server.
        self._whose = sha1(f"{log}/{database}".encode()).hexdigest()[:32]
        self.polls = KeptConnection(engine, opened=partial(self._own, "polls"))
        self.claims = KeptConnection(engine, opened=partial(self._own, "claims"))
        self.writes = KeptConnection(engine, opened=partial(self._own, "writes"))

    @property
    def all(self) -> tuple[KeptConnection, ...]:
        return self.polls, self.claims, self.writes

    def open(self) -> None:
        """Open the connections that are not open, and so end those of an earlier broker; blocking.

        Raises:
          StorageError: if a connection cannot be opened.
        """
        for kept in self.all:
            with kept.use():
                pass

    def close(self) -> None:
        """Close the connections. The next use opens another one."""
        for kept in self.all:
            kept.close()

    def _own(self, purpose: str, connection: Connection) -> None:
        """End the connection of an earlier broker with this purpose, and hinder it from more."""
        self._check_lease()
        _wait_little(connection, purpose)
        take_over(self._engine, connection, f"tables.{purpose}.{self._whose}")
        # If this broker has hung since the first check, it has ended the connection of its
        # successor. If it still has its lease, a successor ends this connection.
        self._check_lease()

    def _check_lease(self) -> None:
        if not self._holds_lease():
            raise StorageUnavailable(f"{self._engine.location}: the lease has expired")


def _wait_little(connection: Connection, purpose: str) -> None:
    """Let statements wait a short time only for the lock of a whole table.

    One table that is being altered would otherwise hold up all others for long. A purge that drops
    partitions waits for other statements, on the connection for polls.
    """
    if purpose == "polls":
        connection.execute("SET lock_wait_timeout = 1")
    else:  # MySQL cannot do without any wait, and MariaDB can
        connection.execute("SET lock_wait_timeout = /*M! 0 */ /*!80000 1 */")
