"""Named locks of a MySQL or MariaDB server: only one connection at a time can hold a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from escapement.errors import EscapementError
from escapement.storage.engine.base import Connection


@contextmanager
def named_lock(connection: Connection, name: str, wait_s: int) -> Iterator[bool]:
    """Hold a lock until the ``with`` block ends; it is lost if the connection is closed.

    Waits at most ``wait_s`` for the lock. Provides whether it was taken: if not, the block runs
    without the lock.

    Args:
      name: the name of the lock; each database has its own lock of that name.
    """
    # The server's locks are common to all its databases. So the lock's name includes a hash of the
    # name of this database.
    lock = f"CONCAT('escapement.{name}', SHA1(DATABASE()))"
    got = connection.execute(f"SELECT GET_LOCK({lock}, {wait_s})").rows[0][0] == 1
    try:
        yield got
    finally:
        if got:
            # Closing the connection would release the lock too, but perhaps only after a while.
            with suppress(EscapementError):
                connection.execute(f"SELECT RELEASE_LOCK({lock})")
